/*
 * Loads whose type and alignment are known at compile time.
 *
 * input_view<P> branches on the storage type at every access.  A loop that must keep many loads in
 * flight cannot afford that.  with_load_type() branches once, on the host, and runs a pass
 * instantiated for the type.
 */
#ifndef CUDA_PRIMITIVES_PACKED_LOAD_CUH
#define CUDA_PRIMITIVES_PACKED_LOAD_CUH

#include <string.h>

#include <type_traits>

#include "core/backend/cuda/primitives/kernel.cuh"

/*
 * N elements that one thread loads together, up to 16 bytes per access.  They stay packed in words
 * until they are used: unpacking them would wait for the load.
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
 * Calls pass.run<T, N>().  T is the storage type of x.  N is VEC if every row of `width` elements,
 * `pitch` apart, consists of aligned vectors, else 1.
 */
template <typename P, typename Pass>
static void with_load_type(const input_view<P> &x, int64_t width, int64_t pitch, const Pass &pass)
{
	const bool vectorized = (width | pitch) % VEC == 0 && (uintptr_t)x.at % 16 == 0;

	if (ROUNDS<P> && x.bf16_storage)
		vectorized ? pass.template run<typename P::factor, VEC>()
			   : pass.template run<typename P::factor, 1>();
	else
		vectorized ? pass.template run<typename P::real, VEC>()
			   : pass.template run<typename P::real, 1>();
}

template <typename P, typename Pass>
static void with_load_type(const input_view<P> &x, int64_t width, const Pass &pass)
{
	with_load_type(x, width, width, pass);
}

#endif
