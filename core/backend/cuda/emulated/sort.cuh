/*
 * The emulated form of core/backend/cuda/primitives/sort.cuh.
 */
#ifndef EMULATED_SORT_CUH
#define EMULATED_SORT_CUH

#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>
#include <vector>

static inline size_t sort_work(int n)
{
	return 2 * (size_t)n * sizeof(int32_t);
}

static inline cudaError_t sort_pairs(void *work, size_t bytes, const int32_t *keys,
				     int32_t *sorted_keys, const int32_t *values,
				     int32_t *sorted_values, int n, int bits, cudaStream_t stream)
{
	const uint32_t mask = bits < 32 ? (1u << bits) - 1 : ~0u;

	if (bytes < sort_work(n))
		return cudaErrorInvalidValue;
	emulated_enqueue(stream, [=] {
		std::vector<int> at((size_t)n);

		std::iota(at.begin(), at.end(), 0);
		std::stable_sort(at.begin(), at.end(), [=](int a, int b) {
			return ((uint32_t)keys[a] & mask) < ((uint32_t)keys[b] & mask);
		});
		memset(work, EMULATED_UNSET, bytes);
		for (int i = 0; i < n; i++) {
			sorted_keys[i] = keys[at[(size_t)i]];
			sorted_values[i] = values[at[(size_t)i]];
		}
	});
	return cudaSuccess;
}

#endif
