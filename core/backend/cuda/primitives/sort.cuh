/*
 * A stable sort of (key, value) pairs by CUB's radix sort.
 * Include this before kernel.cuh, whose macros would break CUB's headers.
 */
#ifndef CUDA_PRIMITIVES_SORT_CUH
#define CUDA_PRIMITIVES_SORT_CUH

#ifndef __CUDACC__
#include "core/backend/cuda/emulated/sort.cuh"
#else

#include <cub/device/device_radix_sort.cuh>

/* Bytes of scratch memory for n pairs. */
static inline size_t sort_work(int n)
{
	size_t bytes = 0;

	cub::DeviceRadixSort::SortPairs(NULL, bytes, (const int32_t *)NULL, (int32_t *)NULL,
					(const int32_t *)NULL, (int32_t *)NULL, n);
	return bytes;
}

/* Keys are below 2^bits. */
static inline cudaError_t sort_pairs(void *work, size_t bytes, const int32_t *keys,
				     int32_t *sorted_keys, const int32_t *values,
				     int32_t *sorted_values, int n, int bits, cudaStream_t stream)
{
	return cub::DeviceRadixSort::SortPairs(work, bytes, keys, sorted_keys, values,
					       sorted_values, n, 0, bits, stream);
}

#endif
#endif
