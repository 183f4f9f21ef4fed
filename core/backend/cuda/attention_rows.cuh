/*
 * attention_rows - what the gradients of attention need of every query: delta = dO.o, lse in powers
 * of two, and dO as products read it.
 */
#ifndef CUDA_ATTENTION_ROWS_CUH
#define CUDA_ATTENTION_ROWS_CUH

#include "core/backend/cuda/attention.cuh"
#include "core/backend/cuda/tiles.cuh"

/* ---------------------------------------------------------------------- pieces */

static __device__ __forceinline__ uint4 as_piece(const float (&x)[8])
{
	return { two_rounded(x[0], x[1]), two_rounded(x[2], x[3]), two_rounded(x[4], x[5]),
		 two_rounded(x[6], x[7]) };
}

static __device__ __forceinline__ float4 as_piece(const float (&x)[4])
{
	return { x[0], x[1], x[2], x[3] };
}

static __device__ __forceinline__ double2 as_piece(const double (&x)[2])
{
	return { x[0], x[1] };
}

/* N numbers, of which `left` are there; the others are 0. */
template <int N, typename P>
static __device__ __forceinline__ void read_numbers(typename P::real (&x)[N],
						    const struct numbers<P> &from, int64_t left,
						    bool aligned)
{
	constexpr int STEP = 16 / (int)sizeof(typename P::real);

	if (!aligned || left < N) {
		for (int e = 0; e < N; e++)
			x[e] = e < left ? from[e] : 0;
	} else if (ROUNDS<P> && from.narrow) {
		const uint4 piece = *(const uint4 *)from.at;

		for (int e = 0; e < N; e++)
			x[e] = ((const typename P::factor *)&piece)[e];
	} else {
		for (int e = 0; e < N; e += STEP)
			*(uint4 *)(x + e) = *(const uint4 *)((const typename P::real *)from.at + e);
	}
}

/* May pieces of N numbers of each head be read 16 bytes at once? */
template <int N, typename P> static bool is_aligned(struct heads x, struct numbers<P> data)
{
	const size_t size = data.narrow ? sizeof(typename P::factor) : sizeof(typename P::real);

	return x.width % N == 0 && (size_t)x.pitch * size % 16 == 0 && (uintptr_t)data.at % 16 == 0;
}

/* ------------------------------------------------------------------------ rows */

template <typename P> struct row_source {
	typedef typename P::real real;
	typedef typename P::factor factor;

	struct heads x; /* of o, lost and dO */
	struct numbers<P> o, lost, d_o; /* lost.at: NULL where o is not rounded */
	bool aligned;
	const real *lse;
	real *lse2, *delta; /* [B,H,rows] */
	factor *out;	    /* dO [B,H,T,width of all pieces], or NULL: it is read in place */

	/*
	 * Of query i of head h: lse in powers of two and delta, with dO as products read it, in
	 * memory and as two[].  Returns this thread's piece of dO, also in memory.  Queries that
	 * are not there get an infinite lse: all their probabilities are 0.  The threads of a row
	 * are neighbours in a warp.
	 */
	__device__ __forceinline__ auto prepare(uint32_t b, uint32_t h, uint32_t H, uint32_t i,
						uint32_t T, uint32_t rows, uint32_t piece,
						uint32_t pieces, real (&two)[2]) const
	{
		constexpr int N = PIECE<factor>;
		const int64_t from = x.at(b, h, i) + piece * N, head = (int64_t)b * H + h;
		const int64_t left = i < T ? x.width - piece * N : 0;
		real y[N], z[N], sum = 0;

		read_numbers<N, P>(y, d_o + from, left, aligned);
		read_numbers<N, P>(z, o + from, left, aligned);
		for (int e = 0; e < N; e++)
			sum += (real)(factor)y[e] * z[e];
		if (ROUNDS<P> && lost) {
			read_numbers<N, P>(z, lost + from, left, aligned);
			for (int e = 0; e < N; e++)
				sum += (real)(factor)y[e] * z[e];
		}
		for (uint32_t step = pieces / 2; step > 0; step /= 2)
			sum += __shfl_xor_sync(0xffffffffu, sum, step);
		two[0] = INFINITY;
		two[1] = sum;
		if (piece == 0) {
			if (i < T)
				two[0] = lse[head * T + i] * (real)M_LOG2E;
			if (i < rows) {
				lse2[head * rows + i] = two[0];
				delta[head * rows + i] = sum;
			}
		}
		auto rounded = as_piece(y);
		factor *to = out + ((head * T + i) * pieces + piece) * N;

		if (out && i < T)
			*(decltype(rounded) *)to = rounded;
		return rounded;
	}
};

#endif
