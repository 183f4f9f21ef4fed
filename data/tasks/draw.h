/*
 * draw - random choices of the tasks, in integers, so that every machine draws the same.
 *
 * A distribution that is not uniform is a list of whole units that add up to
 * DRAW_UNITS, so its probabilities units[i] / DRAW_UNITS are exact.
 */
#ifndef DATA_TASKS_DRAW_H
#define DATA_TASKS_DRAW_H

#include <stddef.h>
#include <stdint.h>

#include "core/util/rng.h"

/*
 * Coarse enough that the last bit of another machine's pow() does not matter
 * (it moves a share by about 1e-16, a unit is 6e-8), fine enough for thousands
 * of choices.
 */
#define DRAW_UNITS (UINT32_C(1) << 24)

/* Whole units in proportion to the weights, each at least 1; n <= DRAW_UNITS / 2. */
void draw_quantise(const double *weights, size_t n, uint32_t *units);

/* An index with probability units[i] / total; total is the sum of the units. */
size_t draw_index(struct rng_reader *random, const uint32_t *units, uint32_t total);

/* `count` different numbers of first .. first + n - 1, in random order. */
void draw_distinct(struct rng_reader *random, int32_t first, uint64_t n, int count, int32_t *out);

/* Each order has the same probability. */
void draw_shuffle(struct rng_reader *random, int32_t *list, size_t n);

#endif
