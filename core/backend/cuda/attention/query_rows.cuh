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

static __device__ __forceinline__ uint4 as_vec(const float (&x)[8])
{
	return { pack_bf16x2(x[0], x[1]), pack_bf16x2(x[2], x[3]), pack_bf16x2(x[4], x[5]),
		 pack_bf16x2(x[6], x[7]) };
}

static __device__ __forceinline__ float4 as_vec(const float (&x)[4])
{
	return { x[0], x[1], x[2], x[3] };
}

static __device__ __forceinline__ double2 as_vec(const double (&x)[2])
{
	return { x[0], x[1] };
}

/* N numbers, of which `left` are there; the others are 0. */
template <int N, typename P>
static __device__ __forceinline__ void
read_numbers(typename P::real (&x)[N], const input_view<P> &from, int64_t left, bool aligned)
{
	constexpr int STEP = 16 / (int)sizeof(typename P::real);

	if (!aligned || left < N) {
		for (int e = 0; e < N; e++)
			x[e] = e < left ? from[e] : 0;
	} else if (ROUNDS<P> && from.bf16_storage) {
		const uint4 vec = *(const uint4 *)from.at;

		for (int e = 0; e < N; e++)
			x[e] = ((const typename P::factor *)&vec)[e];
	} else {
		for (int e = 0; e < N; e += STEP)
			*(uint4 *)(x + e) = *(const uint4 *)((const typename P::real *)from.at + e);
	}
}

/* May pieces of N numbers of each head be read 16 bytes at once? */
template <int N, typename P> static bool is_aligned(struct heads x, input_view<P> data)
{
	const size_t size =
		data.bf16_storage ? sizeof(typename P::factor) : sizeof(typename P::real);

	return x.width % N == 0 && (size_t)x.pitch * size % 16 == 0 && (uintptr_t)data.at % 16 == 0;
}

/* ------------------------------------------------------------------------ rows */

/* A thread's piece of query i of head h: of T queries, for which there is room for `rows`, in all
 * `pieces`. */
struct query_vec {
	uint32_t b, h, H, i, T, rows, vec, vecs;

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

	static constexpr int N = VEC16<factor>;

	struct heads x;		    /* of o, lost and dO */
	input_view<P> o, lost, d_o; /* lost.at: NULL where o is not rounded */
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
	__device__ __forceinline__ auto prepare(const struct query_vec &q, real (&two)[2]) const
	{
		const int64_t from = x.at(q.b, q.h, q.i) + q.vec * N;
		const int64_t left = q.is_there() ? x.width - q.vec * N : 0;
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
	__device__ bool is_bf16() const
	{
		return aligned && d_o.bf16_storage && o.bf16_storage && lost;
	}

	/* Then the same in two steps, so that a thread can ask for pieces of many rows before it
	 * waits for one. */
	struct bf16_vecs {
		packed_vec<factor, N> d_o, o, lost;
		real lse;
		bool are_there;
	};

	__device__ __forceinline__ struct bf16_vecs load_bf16(const struct query_vec &q) const
	{
		const bool are_there = q.is_there() && q.vec * N < x.width;
		const uint32_t row = q.is_there() ? q.i : q.T - 1;
		const int64_t from = x.at(q.b, q.h, row) + (are_there ? q.vec * N : 0);

		return { load_packed<N>((const factor *)d_o.at + from),
			 load_packed<N>((const factor *)o.at + from),
			 load_packed<N>((const factor *)lost.at + from), lse[q.head() * q.T + row],
			 are_there };
	}
	__device__ __forceinline__ auto
	prepare_bf16(const struct query_vec &q, const struct bf16_vecs &given, real (&two)[2]) const
	{
		real y[N], sum = 0;

		for (int e = 0; e < N; e++) {
			y[e] = given.are_there ? (real)given.d_o[e] : 0;
			sum += y[e] * ((real)given.o[e] + (real)given.lost[e]);
		}
		return finish(q, y, sum, given.lse, two);
	}

	/* y: the thread's piece of dO; sum: its part of delta; row_lse: if the query is there. */
	__device__ __forceinline__ auto finish(const struct query_vec &q, const real (&y)[N],
					       real sum, real row_lse, real (&two)[2]) const
	{
		for (uint32_t step = q.vecs / 2; step > 0; step /= 2)
			sum += __shfl_xor_sync(0xffffffffu, sum, step);
		two[0] = INFINITY;
		two[1] = sum;
		if (q.vec == 0) {
			if (q.is_there())
				two[0] = row_lse * (real)M_LOG2E;
			if (q.i < q.rows) {
				lse2[q.head() * q.rows + q.i] = two[0];
				delta[q.head() * q.rows + q.i] = sum;
			}
		}
		auto rounded = as_vec(y);
		factor *to = out + ((q.head() * q.T + q.i) * q.vecs + q.vec) * N;

		if (out && q.is_there())
			*(decltype(rounded) *)to = rounded;
		return rounded;
	}
};

#endif
