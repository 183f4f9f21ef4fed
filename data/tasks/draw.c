#include "data/tasks/draw.h"

#include <assert.h>
#include <stdbool.h>

void draw_quantise(const double *weights, size_t n, uint32_t *units)
{
	double sum = 0.0, spare = DRAW_UNITS - (double)n;
	size_t largest = 0;
	uint32_t total = 0;

	assert(n > 0 && n <= DRAW_UNITS / 2);
	for (size_t i = 0; i < n; i++)
		sum += weights[i];
	for (size_t i = 0; i < n; i++) {
		units[i] = 1 + (uint32_t)(spare * (weights[i] / sum));
		total += units[i];
		if (weights[i] > weights[largest])
			largest = i;
	}
	/* The largest share takes what rounding left over (or gives up one unit too many). */
	units[largest] += DRAW_UNITS - total;
}

size_t draw_index(struct rng_reader *random, const uint32_t *units, uint32_t total)
{
	uint64_t point = rng_next_below(random, total);
	size_t i = 0;

	while (point >= units[i])
		point -= units[i++];
	return i;
}

static bool holds(const int32_t *list, int count, int32_t number)
{
	for (int i = 0; i < count; i++)
		if (list[i] == number)
			return true;
	return false;
}

void draw_distinct(struct rng_reader *random, int32_t first, uint64_t n, int count, int32_t *out)
{
	assert(count >= 0 && (uint64_t)count <= n);
	for (int i = 0; i < count; i++)
		do {
			out[i] = first + (int32_t)rng_next_below(random, n);
		} while (holds(out, i, out[i]));
}

void draw_shuffle(struct rng_reader *random, int32_t *list, size_t n)
{
	for (size_t i = n; i > 1; i--) {
		size_t other = rng_next_below(random, i);
		int32_t kept = list[i - 1];

		list[i - 1] = list[other];
		list[other] = kept;
	}
}
