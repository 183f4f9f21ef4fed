/*
 * attention_rows - what the gradients of attention need of every query: delta = dO.o, lse in powers
 * of two, and dO as products read it.
 */
#ifndef CUDA_ATTENTION_QUERY_ROWS_CUH
#define CUDA_ATTENTION_QUERY_ROWS_CUH

#include "core/backend/cuda/primitives/packed_load.cuh"
#include "core/backend/cuda/attention/attention.cuh"
#include "core/backend/cuda/primitives/mma_tile.cuh"

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
static __device__ __forceinline__ void
read_numbers(typename P::real (&x)[N], const struct numbers<P> &from, int64_t left, bool aligned)
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

/* A thread's piece of query i of head h: of T queries, for which there is room for `rows`, in all
 * `pieces`. */
struct query_piece {
	uint32_t b, h, H, i, T, rows, piece, pieces;

	__device__ bool is_there() const
	{
		return i < T;
	}
	__device__ int64_t head() const
	{
		return (int64_t)b * H + h;
	}
};

template <typename P> struct row_source {
	typedef typename P::real real;
	typedef typename P::factor factor;

	static constexpr int N = PIECE<factor>;

	struct heads x;			/* of o, lost and dO */
	struct numbers<P> o, lost, d_o; /* lost.at: NULL where o is not rounded */
	bool aligned;
	const real *lse;
	real *lse2, *delta; /* [B,H,rows] */
	factor *out;	    /* dO [B,H,T,width of all pieces], or NULL: it is read in place */

	/*
	 * Of a query: lse in powers of two and delta, with dO as products read it, in memory and as
	 * two[]. Returns this thread's piece of dO, also in memory.  Queries that are not there get
	 * an infinite lse: all their probabilities are 0.  The threads of a row are neighbours in a
	 * warp.
	 */
	__device__ __forceinline__ auto prepare(const struct query_piece &q, real (&two)[2]) const
	{
		const int64_t from = x.at(q.b, q.h, q.i) + q.piece * N;
		const int64_t left = q.is_there() ? x.width - q.piece * N : 0;
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
		return finish(q, y, sum, q.is_there() ? lse[q.head() * q.T + q.i] : 0, two);
	}

	/* Is all of it kept in bfloat16, in whole pieces? */
	__device__ bool is_narrow() const
	{
		return aligned && d_o.narrow && o.narrow && lost;
	}

	/* Then the same in two steps, so that a thread can ask for pieces of many rows before it
	 * waits for one. */
	struct narrow_pieces {
		struct packed<factor, N> d_o, o, lost;
		real lse;
		bool are_there;
	};

	__device__ __forceinline__ struct narrow_pieces
	read_narrow(const struct query_piece &q) const
	{
		const bool are_there = q.is_there() && q.piece * N < x.width;
		const uint32_t row = q.is_there() ? q.i : q.T - 1;
		const int64_t from = x.at(q.b, q.h, row) + (are_there ? q.piece * N : 0);

		return { read_packed<N>((const factor *)d_o.at + from),
			 read_packed<N>((const factor *)o.at + from),
			 read_packed<N>((const factor *)lost.at + from), lse[q.head() * q.T + row],
			 are_there };
	}
	__device__ __forceinline__ auto prepare_narrow(const struct query_piece &q,
						       const struct narrow_pieces &given,
						       real (&two)[2]) const
	{
		real y[N], sum = 0;

		for (int e = 0; e < N; e++) {
			y[e] = given.are_there ? (real)given.d_o[e] : 0;
			sum += y[e] * ((real)given.o[e] + (real)given.lost[e]);
		}
		return finish(q, y, sum, given.lse, two);
	}

	/* y: the thread's piece of dO; sum: its part of delta; row_lse: if the query is there. */
	__device__ __forceinline__ auto finish(const struct query_piece &q, const real (&y)[N],
					       real sum, real row_lse, real (&two)[2]) const
	{
		for (uint32_t step = q.pieces / 2; step > 0; step /= 2)
			sum += __shfl_xor_sync(0xffffffffu, sum, step);
		two[0] = INFINITY;
		two[1] = sum;
		if (q.piece == 0) {
			if (q.is_there())
				two[0] = row_lse * (real)M_LOG2E;
			if (q.i < q.rows) {
				lse2[q.head() * q.rows + q.i] = two[0];
				delta[q.head() * q.rows + q.i] = sum;
			}
		}
		auto rounded = as_piece(y);
		factor *to = out + ((q.head() * q.T + q.i) * q.pieces + q.piece) * N;

		if (out && q.is_there())
			*(decltype(rounded) *)to = rounded;
		return rounded;
	}
};

#endif
