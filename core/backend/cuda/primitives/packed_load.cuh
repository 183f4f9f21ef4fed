/*
 * access - reads whose type and alignment the compiler knows.
 *
 * numbers<P> asks at every access how a tensor is kept.  A loop that needs many reads under way at
 * a time must not ask: with_load_type() does, once, on the host.
 */
#ifndef CUDA_PRIMITIVES_PACKED_LOAD_CUH
#define CUDA_PRIMITIVES_PACKED_LOAD_CUH

#include <string.h>

#include <type_traits>

#include "core/backend/cuda/primitives/kernel.cuh"

/*
 * N numbers that one thread reads together, by accesses of up to 16 bytes.  They stay in words
 * until they are used: to take words apart, a thread must wait for them.
 */
template <typename T, int N> struct packed_vec {
	static constexpr int n = N, BYTES = N * (int)sizeof(T);
	typedef std::conditional_t<BYTES % 4 == 0, uint32_t, uint16_t> word;

	alignas(BYTES < 16 ? BYTES : 16) word words[BYTES / sizeof(word)];

	__device__ T operator[](int k) const
	{
		T x;

		if constexpr (sizeof(T) < sizeof(word)) {
			const uint16_t half = (uint16_t)(words[k / 2] >> 16 * (k % 2));

			memcpy(&x, &half, sizeof(x));
		} else {
			memcpy(&x, words + k * sizeof(T) / sizeof(word), sizeof(x));
		}
		return x;
	}
};

template <int N, typename T> static __device__ packed_vec<T, N> load_packed(const T *at)
{
	return *(const packed_vec<T, N> *)at;
}

/*
 * pass.run<T, N>(), where x is kept as T, and a thread may read N neighbours of a row together,
 * since rows have `width` elements and begin `pitch` apart.
 */
template <typename P, typename Pass>
static void with_load_type(const input_view<P> &x, int64_t width, int64_t pitch, const Pass &pass)
{
	const bool together = (width | pitch) % VEC == 0 && (uintptr_t)x.at % 16 == 0;

	if (ROUNDS<P> && x.bf16_storage)
		together ? pass.template run<typename P::factor, VEC>()
			 : pass.template run<typename P::factor, 1>();
	else
		together ? pass.template run<typename P::real, VEC>()
			 : pass.template run<typename P::real, 1>();
}

template <typename P, typename Pass>
static void with_load_type(const input_view<P> &x, int64_t width, const Pass &pass)
{
	with_load_type(x, width, width, pass);
}

#endif
