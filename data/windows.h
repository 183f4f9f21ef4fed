/*
 * windows - where in a stream of tokens a sequence starts.
 *
 * A window of T inputs needs T + 1 tokens: the targets are the inputs moved by one.
 * Training windows are drawn independently, a pure function of (key, iteration, row); or without
 * replacement, a pure function of (key, number of the window): the disjoint windows of the text in
 * an order that the key shuffles.  When all were drawn there is another order, of windows that lie
 * elsewhere.
 * Validation windows lie on the grid 0, T, 2T, ...: no two of them predict the same token. Together
 * they predict every token once, except the first and the (count - 1) mod T last.
 */
#ifndef DATA_WINDOWS_H
#define DATA_WINDOWS_H

#include <stdint.h>

#include "core/util/rng.h"

uint64_t window_train_start(struct rng_key key, uint64_t iteration, uint64_t row, uint64_t count,
			    uint64_t T);

/* Without replacement: window `n` of a run, which has drawn n before it. */
uint64_t window_once_start(struct rng_key key, uint64_t n, uint64_t count, uint64_t T);

/* The largest number of validation windows. */
uint64_t window_valid_number(uint64_t count, uint64_t T);

/* The start of window `index` of `number`, evenly spread; number <= window_valid_number(). */
uint64_t window_valid_start(uint64_t index, uint64_t number, uint64_t count, uint64_t T);

#endif
