#include "data/windows.h"

#include <assert.h>

uint64_t window_train_start(struct rng_key key, uint64_t iteration, uint64_t row, uint64_t count,
			    uint64_t T)
{
	assert(T > 0 && count > T);
	return rng_below(rng_subkey(key, iteration), row, count - T);
}

/*
 * A permutation of the numbers below `size`: a Feistel network on the next power of four (M. Luby,
 * C. Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", 1988), and
 * again where its result is not below `size`.  Two halves of h bits; each round adds a random
 * function of one half to the other.
 */
#define ROUNDS 6

static uint64_t permuted(struct rng_key key, uint64_t at, uint64_t size)
{
	unsigned half = 1;

	while (half < 32 && size > (uint64_t)1 << (2 * half))
		half++;
	do {
		const uint64_t mask = ((uint64_t)1 << half) - 1;
		uint64_t left = at >> half, right = at & mask;

		for (uint64_t round = 0; round < ROUNDS; round++) {
			const uint64_t sum = left ^ (rng_u64(rng_subkey(key, round), right) & mask);

			left = right;
			right = sum;
		}
		at = left << half | right;
	} while (at >= size);
	return at;
}

uint64_t window_once_start(struct rng_key key, uint64_t n, uint64_t count, uint64_t T)
{
	const uint64_t places = window_valid_number(count, T);
	const struct rng_key own = rng_subkey(key, n / places);

	assert(T > 0 && count > T);
	return rng_below(own, 0, count - places * T) +
	       permuted(rng_subkey(own, 1), n % places, places) * T;
}

uint64_t window_valid_number(uint64_t count, uint64_t T)
{
	assert(T > 0);
	return count > 0 ? (count - 1) / T : 0;
}

uint64_t window_valid_start(uint64_t index, uint64_t number, uint64_t count, uint64_t T)
{
	uint64_t places = window_valid_number(count, T);

	assert(index < number && number <= places);
	return index * places / number * T;
}
