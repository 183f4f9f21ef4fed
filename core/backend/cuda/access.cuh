/*
 * access - reads whose type and alignment the compiler knows.
 *
 * numbers<P> asks at every access how a tensor is kept.  A loop that needs many reads under way at a time
 * must not ask: with_access() does, once, on the host.
 */
#ifndef CUDA_ACCESS_CUH
#define CUDA_ACCESS_CUH

#include "core/backend/cuda/cuda.cuh"

/* N numbers that one thread reads together, by accesses of up to 16 bytes. */
template <typename T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) packed {
	T x[N];
};

template <int N, typename T> static __device__ struct packed<T, N> read_packed(const T *at)
{
	return *(const struct packed<T, N> *)at;
}

/*
 * pass.run<T, N>(), where x is kept as T, and a thread may read N neighbours of a row together, since
 * rows have `width` elements.
 */
template <typename P, typename Pass>
static void with_access(const struct numbers<P> &x, int64_t width, const Pass &pass)
{
	const bool together = width % SPAN == 0 && (uintptr_t)x.at % 16 == 0;

	if (ROUNDS<P> && x.narrow)
		together ? pass.template run<typename P::factor, SPAN>()
			 : pass.template run<typename P::factor, 1>();
	else
		together ? pass.template run<typename P::real, SPAN>()
			 : pass.template run<typename P::real, 1>();
}

#endif
