#include "data/windows.h"

#include <assert.h>

uint64_t window_train_start(struct rng_key key, uint64_t iteration, uint64_t row, uint64_t count,
			    uint64_t T)
{
	assert(T > 0 && count > T);
	return rng_below(rng_subkey(key, iteration), row, count - T);
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
