/*
 * windows - where in a stream of tokens a sequence starts.
 *
 * A window of T inputs needs T + 1 tokens: the targets are the inputs moved by one.
 * Training windows are drawn independently, a pure function of (key, iteration, row).
 * Validation windows lie on the grid 0, T, 2T, ...: no two of them predict the same token. Together
 * they predict every token once, except the first and the (count - 1) mod T last.
 */
#ifndef DATA_WINDOWS_H
#define DATA_WINDOWS_H

#include <stdint.h>

#include "core/util/rng.h"

uint64_t window_train_start(struct rng_key key, uint64_t iteration, uint64_t row, uint64_t count,
			    uint64_t T);

/* The largest number of validation windows. */
uint64_t window_valid_number(uint64_t count, uint64_t T);

/* The start of window `index` of `number`, evenly spread; number <= window_valid_number(). */
uint64_t window_valid_start(uint64_t index, uint64_t number, uint64_t count, uint64_t T);

#endif
