/*
 * Sums over the tokens of an example x [T,C], split into blocks of 32 tokens.
 *
 * One thread serves one token block and N adjacent channels, so short sequences still fill the GPU.
 * The order of a sum depends only on the shape.  Memory bandwidth bounds it.
 */
#ifndef CUDA_PRIMITIVES_TOKEN_BLOCKS_CUH
#define CUDA_PRIMITIVES_TOKEN_BLOCKS_CUH

#include "core/backend/cuda/primitives/packed_load.cuh"
#include "core/backend/cuda/primitives/fast_divide.cuh"

#define BLOCK_TOKENS 32
static constexpr int TOKEN_LOADS = 4; /* loads of a thread in flight */

struct token_blocks {
	int64_t B, T, C, n; /* n: token blocks of each example */
	int64_t from_pitch,
		to_pitch; /* elements from one token to the next, where they are read and written */
};

static inline struct token_blocks token_blocks_of(int64_t B, int64_t T, int64_t C)
{
	return { B, T, C, (T + BLOCK_TOKENS - 1) / BLOCK_TOKENS, C, C };
}

/* Scratch memory [B,n,C]: one element for each token block and channel. */
template <typename R> static R *alloc_token_blocks(struct scratch *m, const struct token_blocks &p)
{
	return m->alloc<R>(p.B * p.n * p.C);
}

/* The work of a thread: one token block and N channels. */
struct token_block {
	int64_t first, last; /* tokens [first, last) */
	int64_t at;	     /* index in [B,n,C] */
	int64_t from, to; /* its channels of token 0 in [B,T,C], where they are read and written */
	int64_t channel;  /* index in [B,C] */
};

template <int N> struct token_block_index {
	struct token_blocks p;
	int64_t count;
	struct divisor per_row, per_example;

	__device__ struct token_block operator[](int64_t i) const
	{
		const int64_t row = per_row.quotient(i), b = per_example.quotient(row);
		const int64_t channel = (i - row * per_row.d) * N,
			      first = (row - b * p.n) * BLOCK_TOKENS;

		return { first,
			 first + BLOCK_TOKENS < p.T ? first + BLOCK_TOKENS : p.T,
			 row * p.C + channel,
			 b * p.T * p.from_pitch + channel,
			 b * p.T * p.to_pitch + channel,
			 b * p.C + channel };
	}
};

template <int N> static token_block_index<N> token_block_index_of(const struct token_blocks &p)
{
	const int64_t count = p.B * p.n * (p.C / N);

	return { p, count, divisor_of(p.C / N, count), divisor_of(p.n, count) };
}

template <typename P, typename T, int N, typename W>
static __global__ void token_block_sum_kernel(struct replicas replicas, token_block_index<N> index,
					      const T *x, const __grid_constant__ W given_weight,
					      const __grid_constant__ output_view<P> given_sums)
{
	replicas.to_own(x);
	const auto &weight = replicas.own(given_weight);
	const auto &sums = replicas.own(given_sums);
	typedef typename P::real real;
	const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;

	pdl_wait();
	if (i >= index.count)
		return;
	const struct token_block token_block = index[i];
	vec<real, N> sum = {};

#pragma unroll TOKEN_LOADS
	for (int64_t t = token_block.first; t < token_block.last; t++) {
		const auto v = load_packed<N>(x + token_block.from + t * index.p.from_pitch);
		const real w = weight(t);

#pragma unroll
		for (int k = 0; k < N; k++)
			sum[k] += w * (real)v[k];
	}
	sums.put(vec_index<N>{ token_block.at }, sum);
}

/* sums[block, channel] = sum of weight(t) x_t over the tokens of the block. */
template <typename P, typename W> struct token_block_sums {
	const struct call *c;
	struct token_blocks p;
	input_view<P> x;
	W weight;
	typename P::real *sums;

	template <typename T, int N> void run() const
	{
		const token_block_index<N> index = token_block_index_of<N>(p);

		launch_for(c, token_block_sum_kernel<P, T, N, W>,
			   (unsigned)((index.count + BLOCK - 1) / BLOCK), BLOCK, 0, index,
			   (const T *)x.at, weight, real_view<P>(sums));
	}
};

template <typename R> struct equal_weight {
	__device__ R operator()(int64_t) const
	{
		return 1;
	}
};

/*
 * finish(i, sum of x_t over the tokens) for every i in [0, B C).  `sums` comes from
 * alloc_token_blocks().
 */
template <typename P, typename G>
static void sum_tokens(const struct call *c, const struct token_blocks &blocks, input_view<P> x,
		       typename P::real *sums, G finish)
{
	typedef typename P::real real;
	const struct token_blocks p = blocks;

	with_load_type(x, p.C, p.from_pitch,
		       token_block_sums<P, equal_weight<real>>{ c, p, x, {}, sums });
	each(c, p.B * p.C, [=] __device__(int64_t i) {
		const int64_t first = i / p.C * p.n * p.C + i % p.C;
		real sum = 0;

#pragma unroll 8
		for (int64_t token_block = 0; token_block < p.n; token_block++)
			sum += sums[first + token_block * p.C];
		finish(i, sum);
	});
}

#endif
