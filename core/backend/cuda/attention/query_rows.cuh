/*
 * query_rows - preprocess of the backward pass, per query (FlashAttention's dot_do_o):
 *
 *     delta_i = rowsum(dO_i * O_i)    lse_log2_i = lse_i * log2(e)    dO_i rounded to the operand
 * type
 *
 * delta uses the rounded dO and the unrounded O (O + rounding_error), so that rows of dS sum to
 * zero. Memory bandwidth bounds it.
 */
#ifndef CUDA_ATTENTION_QUERY_ROWS_CUH
#define CUDA_ATTENTION_QUERY_ROWS_CUH

#include "core/backend/cuda/primitives/packed_load.cuh"
#include "core/backend/cuda/attention/attention.cuh"
#include "core/backend/cuda/primitives/mma_tile.cuh"

/* ------------------------------------------------------------- 16-byte vectors */

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

/* Loads N elements; those from `left` on are 0. */
template <int N, typename P>
static __device__ __forceinline__ void
load_elements(typename P::real (&x)[N], const input_view<P> &from, int64_t left, bool aligned)
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

/* May vectors of N elements be read with 16-byte loads? */
template <int N, typename P> static bool is_aligned(struct heads x, input_view<P> data)
{
	const size_t size =
		data.bf16_storage ? sizeof(typename P::factor) : sizeof(typename P::real);

	return x.width % N == 0 && (size_t)x.pitch * size % 16 == 0 && (uintptr_t)data.at % 16 == 0;
}

/* ------------------------------------------------------------------------ rows */

/*
 * One thread's 16-byte vector of query i of head h. T: queries; rows: queries including padding;
 * vecs: vectors per row.
 */
struct query_vec {
	uint32_t b, h, H, i, T, rows, vec, vecs;

	__device__ bool in_bounds() const
	{
		return i < T;
	}
	__device__ int64_t head() const
	{
		return (int64_t)b * H + h;
	}
};

template <typename P> struct backward_preprocess {
	typedef typename P::real real;
	typedef typename P::factor factor;

	static constexpr int N = VEC16<factor>;

	struct heads x;			      /* of o, rounding_error and dO */
	input_view<P> o, rounding_error, d_o; /* rounding_error.at is NULL if O is not rounded */
	bool aligned;
	const real *lse;
	real *lse_log2, *delta; /* [B,H,rows] */
	factor *out;		/* dO [B,H,T,vecs * N]; NULL: dO is read in place */

	/*
	 * Preprocesses one vector of a query; the threads of a row are neighbours in a warp. Writes
	 * lse_log2, delta and dO to memory, returns the thread's vector of dO, and sets lse_delta =
	 * { lse_log2, delta }. Padding rows get lse = +inf, which makes their P zero.
	 */
	__device__ __forceinline__ auto preprocess(const struct query_vec &q,
						   real (&lse_delta)[2]) const
	{
		const int64_t from = x.at(q.b, q.h, q.i) + q.vec * N;
		const int64_t left = q.in_bounds() ? x.width - q.vec * N : 0;
		real y[N], z[N], sum = 0;

		load_elements<N, P>(y, d_o + from, left, aligned);
		load_elements<N, P>(z, o + from, left, aligned);
		for (int e = 0; e < N; e++)
			sum += (real)(factor)y[e] * z[e];
		if (ROUNDS<P> && rounding_error) {
			load_elements<N, P>(z, rounding_error + from, left, aligned);
			for (int e = 0; e < N; e++)
				sum += (real)(factor)y[e] * z[e];
		}
		return reduce_and_store(q, y, sum, q.in_bounds() ? lse[q.head() * q.T + q.i] : 0,
					lse_delta);
	}

	/* Are dO, O and its rounding error all bfloat16 with aligned vectors? */
	__device__ bool is_bf16() const
	{
		return aligned && d_o.bf16_storage && o.bf16_storage && rounding_error;
	}

	/*
	 * The same in two steps for is_bf16(): a thread issues the loads of several rows before it
	 * uses the first.
	 */
	struct bf16_vecs {
		packed_vec<factor, N> d_o, o, rounding_error;
		real lse;
		bool in_bounds;
	};

	__device__ __forceinline__ struct bf16_vecs load_bf16(const struct query_vec &q) const
	{
		const bool in_bounds = q.in_bounds() && q.vec * N < x.width;
		const uint32_t row = q.in_bounds() ? q.i : q.T - 1;
		const int64_t from = x.at(q.b, q.h, row) + (in_bounds ? q.vec * N : 0);

		return { load_packed<N>((const factor *)d_o.at + from),
			 load_packed<N>((const factor *)o.at + from),
			 load_packed<N>((const factor *)rounding_error.at + from),
			 lse[q.head() * q.T + row], in_bounds };
	}
	__device__ __forceinline__ auto preprocess_bf16(const struct query_vec &q,
							const struct bf16_vecs &loaded,
							real (&lse_delta)[2]) const
	{
		real y[N], sum = 0;

		for (int e = 0; e < N; e++) {
			y[e] = loaded.in_bounds ? (real)loaded.d_o[e] : 0;
			sum += y[e] * ((real)loaded.o[e] + (real)loaded.rounding_error[e]);
		}
		return reduce_and_store(q, y, sum, loaded.lse, lse_delta);
	}

	/*
	 * y: the thread's elements of dO; sum: its share of delta; row_lse: valid if the query is
	 * in bounds.
	 */
	__device__ __forceinline__ auto reduce_and_store(const struct query_vec &q,
							 const real (&y)[N], real sum, real row_lse,
							 real (&lse_delta)[2]) const
	{
		for (uint32_t step = q.vecs / 2; step > 0; step /= 2)
			sum += __shfl_xor_sync(0xffffffffu, sum, step);
		lse_delta[0] = INFINITY;
		lse_delta[1] = sum;
		if (q.vec == 0) {
			if (q.in_bounds())
				lse_delta[0] = row_lse * (real)M_LOG2E;
			if (q.i < q.rows) {
				lse_log2[q.head() * q.rows + q.i] = lse_delta[0];
				delta[q.head() * q.rows + q.i] = sum;
			}
		}
		auto packed = as_vec(y);
		factor *to = out + ((q.head() * q.T + q.i) * q.vecs + q.vec) * N;

		if (out && q.in_bounds())
			*(decltype(packed) *)to = packed;
		return packed;
	}
};

#endif
