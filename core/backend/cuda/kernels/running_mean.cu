/*
 * running_mean: y_t = y_(t-1) + (x_t - y_(t-1)) / (t + 1), the mean of tokens 0 to t.
 *
 * A scan in three launches: sums of token blocks, the start value of each block, then all blocks in
 * parallel.  Backward is a reversed scan, dx_s = sum_(t>=s) dy_t / (t + 1).  Memory bandwidth
 * bounds it.
 */
#include "core/backend/cuda/primitives/token_blocks.cuh"
#include "core/backend/cuda/primitives/tokens.cuh"

/* x, or dx in the backward pass, may be a slice. */
static struct token_blocks token_blocks_of_node(const struct node *n, enum pass pass)
{
	const struct tokens x = tokens_of(n->in[0]);
	struct token_blocks p = token_blocks_of(x.B, x.T, x.size);

	(pass == PASS_FORWARD ? p.from_pitch : p.to_pitch) = x.pitch;
	return p;
}

/* The start values of the token blocks; NULL: there is only one block. */
template <typename P>
static typename P::real *alloc_starts(struct scratch *m, const struct node *n, enum pass pass)
{
	const struct token_blocks p = token_blocks_of_node(n, pass);

	return p.n > 1 ? alloc_token_blocks<typename P::real>(m, p) : NULL;
}

#define STARTS 8 /* start values that a thread loads at a time */

/*
 * For one channel: replaces starts[block], the sum of a block, by begin(its first token, sum), from
 * the first block to the last, or in reverse.
 */
template <typename R, typename F>
static __device__ void scan_starts(const struct token_blocks &p, R *starts, bool backward, F begin)
{
	for (int64_t i = 0; i < p.n; i += STARTS) {
		R sum[STARTS];

#pragma unroll
		for (int u = 0; u < STARTS; u++)
			if (i + u < p.n)
				sum[u] = starts[(backward ? p.n - 1 - i - u : i + u) * p.C];
#pragma unroll
		for (int u = 0; u < STARTS; u++) {
			const int64_t token_block = backward ? p.n - 1 - i - u : i + u;

			if (i + u < p.n)
				starts[token_block * p.C] =
					begin(token_block * BLOCK_TOKENS, sum[u]);
		}
	}
}

/* ------------------------------------------------------------------- forward */

/*
 * y_t = y_(t-1) + (x_t - y_(t-1)) / (t + 1).  t counts from `past`; so_far holds the mean of the
 * past tokens.
 */
template <typename P, typename T, int N>
static __global__ void running_mean_kernel(struct replicas replicas, token_block_index<N> index,
					   const T *x, const struct run *run,
					   const __grid_constant__ input_view<P> given_starts,
					   const __grid_constant__ output_view<P> given_so_far,
					   const __grid_constant__ output_view<P> given_y)
{
	replicas.to_own(x, run);
	const auto &starts = replicas.own(given_starts);
	const auto &so_far = replicas.own(given_so_far);
	const auto &y = replicas.own(given_y);
	typedef typename P::real real;
	const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x, past = run->past;

	if (i >= index.count)
		return;
	const struct token_block token_block = index[i];
	const struct token_blocks &p = index.p;
	vec<real, N> mean = {};

	if (starts)
		mean = starts[vec_index<N>{ token_block.at }];
	else if (past > 0)
		mean = ((input_view<P>)so_far)[vec_index<N>{ token_block.channel }];
	for (int64_t t = token_block.first; t < token_block.last; t += TOKEN_LOADS) {
		packed_vec<T, N> v[TOKEN_LOADS];

#pragma unroll
		for (int u = 0; u < TOKEN_LOADS; u++)
			if (t + u < token_block.last)
				v[u] = load_packed<N>(x + token_block.from +
						      (t + u) * p.from_pitch);
#pragma unroll
		for (int u = 0; u < TOKEN_LOADS; u++) {
			const real weight = 1 / (real)(past + t + u + 1);

			if (t + u >= token_block.last)
				break;
#pragma unroll
			for (int k = 0; k < N; k++)
				mean[k] += ((real)v[u][k] - mean[k]) * weight;
			y.put(vec_index<N>{ token_block.to + (t + u) * p.to_pitch }, mean);
		}
	}
	if (so_far && token_block.last == p.T)
		so_far.put(vec_index<N>{ token_block.channel }, mean);
}

template <typename P> struct running_mean {
	const struct call *c;
	struct token_blocks p;
	input_view<P> x;
	typename P::real *starts, *so_far;

	template <typename T, int N> void run() const
	{
		const token_block_index<N> index = token_block_index_of<N>(p);

		launch_kernel(
			running_mean_kernel<P, T, N>, (unsigned)((index.count + BLOCK - 1) / BLOCK),
			BLOCK, 0, stream_of(c), index, (const T *)x.at, run_of(c),
			(input_view<P>)real_view<P>(starts), real_view<P>(so_far), output<P>(c, 0));
		note_launch(c);
	}
};

/* Turns the sums of the blocks into the mean before each block. */
template <typename P>
static void start_means(const struct call *c, const struct token_blocks &blocks,
			typename P::real *starts, const typename P::real *so_far)
{
	typedef typename P::real real;
	const struct token_blocks p = blocks;
	const struct run *run = run_of(c);

	each(c, p.B * p.C, [=] __device__(int64_t i) {
		const int64_t past = run->past;
		real mean = past > 0 ? so_far[i] : 0;

		scan_starts(p, starts + i / p.C * p.n * p.C + i % p.C, false,
			    [&](int64_t first, real sum) {
				    const int64_t left = p.T - first;
				    const int64_t n = left < BLOCK_TOKENS ? left : BLOCK_TOKENS;
				    const real before = mean;

				    mean += (sum - (real)n * mean) / (real)(past + first + n);
				    return before;
			    });
	});
}

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	struct scratch m = scratch_of(c);
	real *starts = alloc_starts<P>(&m, c->node, PASS_FORWARD), *so_far = real_output<P>(c, 1);
	const struct token_blocks p = token_blocks_of_node(c->node, PASS_FORWARD);
	const auto x = input<P>(c, 0);

	if (starts) {
		with_load_type(x, p.C, p.from_pitch,
			       token_block_sums<P, equal_weight<real>>{ c, p, x, {}, starts });
		start_means<P>(c, p, starts, so_far);
	}
	with_load_type(x, p.C, p.from_pitch, running_mean<P>{ c, p, x, starts, so_far });
}

/* ------------------------------------------------------------------ backward */

template <typename R> struct token_weight {
	__device__ R operator()(int64_t t) const
	{
		return 1 / (R)(t + 1);
	}
};

/* y_t = sum_(s<=t) x_s / (t + 1), so dx_s = sum_(t>=s) dy_t / (t + 1) */
template <typename P, typename T, int N>
static __global__ void
running_mean_backward_kernel(struct replicas replicas, token_block_index<N> index, const T *dy,
			     const __grid_constant__ input_view<P> given_starts,
			     const __grid_constant__ gradient_view<P> given_dx)
{
	replicas.to_own(dy);
	const auto &starts = replicas.own(given_starts);
	const auto &dx = replicas.own(given_dx);
	typedef typename P::real real;
	const token_weight<real> weight;
	const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;

	if (i >= index.count)
		return;
	const struct token_block token_block = index[i];
	const struct token_blocks &p = index.p;
	vec<real, N> later = {};

	if (starts)
		later = starts[vec_index<N>{ token_block.at }];
	for (int64_t t = token_block.last - 1; t >= token_block.first; t -= TOKEN_LOADS) {
		packed_vec<T, N> v[TOKEN_LOADS];

#pragma unroll
		for (int u = 0; u < TOKEN_LOADS; u++)
			if (t - u >= token_block.first)
				v[u] = load_packed<N>(dy + token_block.from +
						      (t - u) * p.from_pitch);
#pragma unroll
		for (int u = 0; u < TOKEN_LOADS; u++) {
			if (t - u < token_block.first)
				break;
#pragma unroll
			for (int k = 0; k < N; k++)
				later[k] += weight(t - u) * (real)v[u][k];
			dx.put(vec_index<N>{ token_block.to + (t - u) * p.to_pitch }, later);
		}
	}
}

template <typename P> struct running_mean_gradient {
	const struct call *c;
	struct token_blocks p;
	input_view<P> dy;
	typename P::real *starts;

	template <typename T, int N> void run() const
	{
		const token_block_index<N> index = token_block_index_of<N>(p);

		launch_kernel(running_mean_backward_kernel<P, T, N>,
			      (unsigned)((index.count + BLOCK - 1) / BLOCK), BLOCK, 0, stream_of(c),
			      index, (const T *)dy.at, (input_view<P>)real_view<P>(starts),
			      input_gradient<P>(c, 0));
		note_launch(c);
	}
};

/* Turns the sums of the blocks into the sum of all later blocks. */
template <typename R>
static void start_sums(const struct call *c, const struct token_blocks &blocks, R *starts)
{
	const struct token_blocks p = blocks;

	each(c, p.B * p.C, [=] __device__(int64_t i) {
		R later = 0;

		scan_starts(p, starts + i / p.C * p.n * p.C + i % p.C, true, [&](int64_t, R sum) {
			const R before = later;

			later += sum;
			return before;
		});
	});
}

template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	struct scratch m = scratch_of(c);
	real *starts = alloc_starts<P>(&m, c->node, PASS_BACKWARD);
	const struct token_blocks p = token_blocks_of_node(c->node, PASS_BACKWARD);
	const auto dy = output_gradient<P>(c, 0);

	if (starts) {
		with_load_type(dy, p.C,
			       token_block_sums<P, token_weight<real>>{ c, p, dy, {}, starts });
		start_sums(c, p, starts);
	}
	with_load_type(dy, p.C, running_mean_gradient<P>{ c, p, dy, starts });
}

KERNELS(running_mean, forward<P>, backward<P>, NULL, NULL, workspace_of<alloc_starts<P>>)
