/*
 * few_rows - y [n,O] = x [n,I] W + b for the few rows of a decoding step, with factors in bfloat16.
 *
 * Reading W once takes the time.  It is read as [O,I]: a warp sums over I for some outputs, each lane a
 * piece of 16 bytes at a time, and all pieces are under way at once.  Where I is large, several warps of a
 * block share it and are added in their order.  x is rounded when it is read, and b is added at the end, so
 * there is one kernel.
 */
#ifndef CUDA_FEW_ROWS_CUH
#define CUDA_FEW_ROWS_CUH

#include "core/backend/cuda/product.cuh"

#define MOST_FEW_ROWS 4
#define FEW_ROWS_WARPS 4  /* of a block */
#define FEW_ROWS_PIECES 4 /* of a lane at a time */
#define FEW_ROWS_STEP (FEW_ROWS_PIECES * WARP * 8)
#define MANY_OUTPUTS 8192 /* from here on a warp takes several */

template <typename P> struct few_rows_problem {
	typedef typename P::real real;

	int n, split; /* rows; warps that share an output */
	int64_t I, O, x_pitch;
	struct numbers<P> x;
	const typename P::factor *w; /* [O,I] */
	const real *b;		     /* or NULL */
	struct results<P> y;
};

/* Eight neighbours of W, and of x as products read it. */
template <typename P>
static __device__ void multiply_eight(typename P::real &sum, const sixteen_bytes &w,
				      const struct values<typename P::real, 8> &x)
{
	typedef typename P::factor factor;

#pragma unroll
	for (int e = 0; e < 8; e++)
		sum += (typename P::real)((const factor *)&w)[e] * (typename P::real)(factor)x[e];
}

/* What a warp's share of I contributes to OUTS outputs from `first` on; every lane gets it. */
template <typename P, int ROWS, int OUTS>
static __device__ void few_rows_sums(const struct few_rows_problem<P> &p, int64_t first, int share,
				     typename P::real (&sum)[ROWS][OUTS])
{
	const int lane = (int)threadIdx.x % WARP;

	for (int64_t base = share * FEW_ROWS_STEP; base < p.I; base += p.split * FEW_ROWS_STEP) {
		sixteen_bytes w[OUTS][FEW_ROWS_PIECES];

#pragma unroll
		for (int k = 0; k < FEW_ROWS_PIECES; k++)
#pragma unroll
			for (int o = 0; o < OUTS; o++) {
				const int64_t i = base + (k * WARP + lane) * 8;

				w[o][k] = {};
				if (i < p.I && first + o < p.O)
					w[o][k] = *(const sixteen_bytes *)(p.w + (first + o) * p.I + i);
			}
#pragma unroll
		for (int k = 0; k < FEW_ROWS_PIECES; k++) {
			const int64_t i = base + (k * WARP + lane) * 8;

			if (i >= p.I)
				break;
#pragma unroll
			for (int r = 0; r < ROWS; r++) {
				if (r >= p.n)
					break;
				const auto x = p.x[span<8>{ r * p.x_pitch + i }];

#pragma unroll
				for (int o = 0; o < OUTS; o++)
					multiply_eight<P>(sum[r][o], w[o][k], x);
			}
		}
	}
#pragma unroll
	for (int r = 0; r < ROWS; r++)
#pragma unroll
		for (int o = 0; o < OUTS; o++)
			for (int step = WARP / 2; step > 0; step /= 2)
				sum[r][o] += __shfl_xor_sync(0xffffffffu, sum[r][o], step);
}

/* The weights of a warp's first step: the kernel before need not have ended. */
template <typename P, int OUTS>
static __device__ void few_rows_near(const struct few_rows_problem<P> &p, int64_t first, int share)
{
	const int lane = (int)threadIdx.x % WARP;

	if (lane % 2)
		return;
#pragma unroll
	for (int k = 0; k < FEW_ROWS_PIECES; k++)
#pragma unroll
		for (int o = 0; o < OUTS; o++) {
			const int64_t i = share * FEW_ROWS_STEP + (k * WARP + lane) * 8;

			if (i < p.I && first + o < p.O)
				bring_near(p.w + (first + o) * p.I + i);
		}
}

template <typename P, int ROWS, int OUTS>
static __global__ void __launch_bounds__(FEW_ROWS_WARPS *WARP)
	few_rows_kernel(const __grid_constant__ struct few_rows_problem<P> p)
{
	typedef typename P::real real;
	__shared__ real shared[FEW_ROWS_WARPS][ROWS * OUTS];
	const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
	const int share = warp % p.split;
	const int64_t group = ((int64_t)blockIdx.x * FEW_ROWS_WARPS + warp) / p.split;
	const int64_t first = group * OUTS, o = first + lane % OUTS;
	const int row = lane / OUTS;
	real sum[ROWS][OUTS] = {};

	few_rows_near<P, OUTS>(p, first, share);
	previous_done();
	few_rows_sums<P, ROWS, OUTS>(p, first, share, sum);
#pragma unroll
	for (int k = 0; k < ROWS * OUTS; k++)
		if (lane == k)
			shared[warp][k] = sum[k / OUTS][k % OUTS];
	__syncthreads();
	if (share > 0 || row >= p.n || o >= p.O)
		return;
	real total = p.b ? p.b[o] : 0;

	for (int k = 0; k < p.split; k++)
		total += shared[warp + k][lane];
	p.y[row * p.O + o] = total;
}

template <typename P> struct few_rows {
	/* Depends on the node alone. */
	static bool takes(const struct node *node)
	{
		const struct tensor *x = node->in[0], *w = node->in[1];
		const int64_t I = tensor_dim(x, -1);

		return ROUNDS<P> && tensor_count(x) / I <= MOST_FEW_ROWS && I % 8 == 0 &&
		       w->kind == TENSOR_PARAM;
	}

	static bool is_transposed(const struct node *node)
	{
		return ((const struct linear_attr *)node->attr)->transposed;
	}

	/* The number of the copy of W that is [O,I]. */
	static int copy(const struct node *node)
	{
		return is_transposed(node) ? 0 : 1;
	}

	template <int ROWS, int OUTS> static void launch(const struct call *c, struct few_rows_problem<P> p)
	{
		const int64_t warps = (p.O + OUTS - 1) / OUTS * p.split;

		launch_next(context_of(c)->overlaps, few_rows_kernel<P, ROWS, OUTS>,
			    (unsigned)((warps + FEW_ROWS_WARPS - 1) / FEW_ROWS_WARPS),
			    FEW_ROWS_WARPS * WARP, 0, stream_of(c), p);
		note_launch(c);
	}

	template <int ROWS> static void launch_rows(const struct call *c, struct few_rows_problem<P> p)
	{
		if (p.O >= MANY_OUTPUTS)
			launch<ROWS, 4>(c, p);
		else
			launch<ROWS, 1>(c, p);
	}

	static void forward(const struct call *c)
	{
		const struct tensor *x = c->node->in[0];
		const int64_t I = tensor_dim(x, -1);
		struct few_rows_problem<P> p = {};

		p.n = (int)(tensor_count(x) / I);
		p.split = I <= FEW_ROWS_STEP ? 1 : I <= 2 * FEW_ROWS_STEP ? 2 : 4;
		p.I = I;
		p.O = tensor_dim(c->node->out[0], -1);
		p.x_pitch = tensor_contiguous(x) ? I : x->pitch;
		p.x = input<P>(c, 0);
		p.w = (const typename P::factor *)c->copy[1][copy(c->node)]->memory;
		p.b = wide_input<P>(c, 2);
		p.y = output<P>(c, 0);
		if (p.n == 1)
			launch_rows<1>(c, p);
		else
			launch_rows<MOST_FEW_ROWS>(c, p);
	}
};

#endif
