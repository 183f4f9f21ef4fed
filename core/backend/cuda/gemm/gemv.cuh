/*
 * gemv - y [n,O] = x [n,I] W + b for the few rows of a decoding step, with factors in bfloat16.
 *
 * Reading W once takes the time.  It is read as [O,I]: a warp sums over I for some outputs, each
 * lane a piece of 16 bytes at a time, and all pieces are under way at once.  Where I is large,
 * several warps of a block share it and are added in their order.  x is rounded when it is read,
 * and b is added at the end, so there is one kernel.  W does not change while kernels run: it is
 * read before the kernel before has ended.
 *
 * joined.cu lets the kernel do more: several products of the same x; the norm that makes x, which
 * every block does again; and what follows: gelu, or writing to a cache.
 */
#ifndef CUDA_GEMM_GEMV_CUH
#define CUDA_GEMM_GEMV_CUH

#include "core/backend/cuda/primitives/formulas.cuh"
#include "core/backend/cuda/norm/norm.cuh"
#include "core/backend/cuda/gemm/gemm.cuh"

#define GEMV_MAX_ROWS 4
#define MAX_PRODUCTS 4 /* of a kernel */
#define GEMV_WARPS 4   /* of a block */
#define GEMV_VECS 4    /* of a lane at a time */
#define GEMV_STEP (GEMV_VECS * WARP * 8)
#define GEMV_MANY_OUTPUTS 8192 /* from here on a warp takes several */

/* One product: warps take its outputs in groups. */
template <typename P> struct gemv_product {
	int64_t before; /* groups of the products before */
	int64_t O;
	const typename P::factor *w; /* [O,I] */
	const typename P::real *b;   /* or NULL */
	output_view<P> y;
};

/* Outputs `first`, first + 1, .. of a product, which a cache keeps. */
template <typename P> struct gemv_kept {
	int product;
	int64_t first, size;
	int T;			 /* tokens of an example */
	int64_t capacity, pitch; /* of the cache */
	output_view<P> to;
};

template <typename P> struct gemv_problem {
	int n, split; /* rows; warps that share an output */
	int64_t I, x_pitch;
	input_view<P> x;
	bool is_vectorized; /* x is kept as products read it, and can be read 16 bytes at a time */
	int n_products, n_kept;
	gemv_product<P> product[MAX_PRODUCTS];
	norm_call<P> norm;   /* makes x, if the kernel is a normed one */
	output_view<P> gelu; /* of product 0; or without memory */
	gemv_kept<P> kept[CACHE_MOST];
	const struct run *run;
};

/* Where a warp works: some outputs of a product, and a share of I. */
template <typename P, int OUTS> struct gemv_place {
	int lane, share, number;
	int64_t first;

	__device__ explicit gemv_place(const gemv_problem<P> &p)
	{
		const int warp = (int)threadIdx.x / WARP;
		const int group = ((int)blockIdx.x * GEMV_WARPS + warp) / p.split;

		lane = (int)threadIdx.x % WARP;
		share = warp % p.split;
		number = 0;
		while (number + 1 < p.n_products && group >= p.product[number + 1].before)
			number++;
		first = (group - p.product[number].before) * OUTS;
	}
	/* Piece k of the lane, from `base` on. */
	__device__ int64_t at(const gemv_problem<P> &p, int64_t base, int k) const
	{
		return base + ((k * p.split + share) * WARP + lane) * 8;
	}
};

/* What a lane has of W at a time. */
template <typename P, int OUTS> struct gemv_weights {
	vec16 w[OUTS][GEMV_VECS];

	__device__ void read(const gemv_problem<P> &p, const gemv_place<P, OUTS> &x, int64_t base)
	{
		const gemv_product<P> &product = p.product[x.number];

#pragma unroll
		for (int k = 0; k < GEMV_VECS; k++)
#pragma unroll
			for (int o = 0; o < OUTS; o++) {
				const int64_t i = x.at(p, base, k);

				w[o][k] = {};
				if (i < p.I && x.first + o < product.O)
					w[o][k] = *(const vec16 *)(product.w + (x.first + o) * p.I +
								   i);
			}
	}
};

/* Eight neighbours of W, and of x as products read it. */
template <typename P>
static __device__ void multiply_vec(typename P::real &sum, const vec16 &w,
				    const vec<typename P::real, 8> &x)
{
	typedef typename P::factor factor;

#pragma unroll
	for (int e = 0; e < 8; e++)
		sum += (typename P::real)((const factor *)&w)[e] * (typename P::real)(factor)x[e];
}

/* ------------------------------------------------------------------ norm */

/* All threads get the sum of their values. */
template <typename R> static __device__ R gemv_block_sum(R value)
{
	__shared__ R part[GEMV_WARPS];
	R sum = 0;

	value = warp_sum(value);
	__syncthreads(); /* the last use of part[] is over */
	if (threadIdx.x % WARP == 0)
		part[threadIdx.x / WARP] = value;
	__syncthreads();
	for (int k = 0; k < GEMV_WARPS; k++)
		sum += part[k];
	return sum;
}

/* The factors of a thread's eight channels: they are parameters, as W is. */
template <typename P> struct gemv_norm {
	typedef typename P::real real;
	typedef vec_index<8, ROUNDS<P> ? VEC_OF_BF16 : VEC_OF_REAL> bf16_index;
	typedef vec_index<8, VEC_OF_REAL> real_index;

	static __device__ vec<real, 8> eight(input_view<P> x, vec_index<8> at)
	{
		return x.bf16_storage ? x[bf16_index{ at.first }] : x[real_index{ at.first }];
	}

	int column;
	bool active;
	vec<real, 8> w, b;

	__device__ explicit gemv_norm(const norm_call<P> &m)
	    : column((int)threadIdx.x * 8), active(column < m.width), w{}, b{}
	{
		if (active)
			w = load_vec<real, real, 8>(m.w + column);
		if (active && m.b)
			b = load_vec<real, real, 8>(m.b + column);
	}

	/* s, y and the statistics of a row; one block writes them.  y to `normed`, too, as products
	 * read it. */
	__device__ void row(const norm_call<P> &m, int64_t row, typename P::factor *normed) const
	{
		vec<real, 8> s = {};
		real sum = 0, squares = 0;
		const vec_index<8> at = { row * m.width + column };

		if (active) {
			s = eight(m.x, at);
			if (m.s) {
				const auto residual = eight(m.residual, at);

#pragma unroll
				for (int e = 0; e < 8; e++)
					s[e] = as_stored(m.s, s[e] + residual[e]);
			}
#pragma unroll
			for (int e = 0; e < 8; e++)
				sum += s[e];
		}
		const real mean = m.kind == NORM_LAYER ? gemv_block_sum(sum) / (real)m.width : 0;

#pragma unroll
		for (int e = 0; e < 8; e++)
			squares += active ? (s[e] - mean) * (s[e] - mean) : 0;
		const real inverse = 1 / sqrt(gemv_block_sum(squares) / (real)m.width + m.eps);

		if (!active)
			return;
		write(m, at, s, mean, inverse, normed);
		if (blockIdx.x == 0 && threadIdx.x == 0) {
			m.statistics[2 * row] = mean;
			m.statistics[2 * row + 1] = inverse;
		}
	}

	__device__ void write(const norm_call<P> &m, vec_index<8> at, vec<real, 8> s, real mean,
			      real inverse, typename P::factor *normed) const
	{
		if (blockIdx.x == 0 && m.s)
			m.s.put(at, s);
#pragma unroll
		for (int e = 0; e < 8; e++)
			s[e] = w[e] * ((s[e] - mean) * inverse) + b[e];
		if (blockIdx.x == 0)
			m.y.put(at, s);
		store_vec<true>(normed + column, s);
	}
};

/* --------------------------------------------------------------- the kernel */

/* What a lane has of a row of x at a time: all accesses are under way together. */
template <typename P, int OUTS>
static __device__ void gemv_read(const gemv_problem<P> &p, const gemv_place<P, OUTS> &x,
				 int64_t base, int r, vec16 (&vecs)[GEMV_VECS])
{
	const typename P::factor *row = (const typename P::factor *)p.x.at + r * p.x_pitch;

#pragma unroll
	for (int k = 0; k < GEMV_VECS; k++) {
		const int64_t i = x.at(p, base, k);

		vecs[k] = {};
		if (i < p.I)
			vecs[k] = *(const vec16 *)(row + i);
	}
}

template <typename P, int ROWS, int OUTS>
static __device__ void gemv_add_vecs(const gemv_problem<P> &p, const gemv_place<P, OUTS> &x,
				     int64_t base, const gemv_weights<P, OUTS> &w,
				     typename P::real (&sum)[ROWS][OUTS])
{
#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		vec16 vecs[GEMV_VECS];

		if (r >= p.n)
			break;
		gemv_read(p, x, base, r, vecs);
#pragma unroll
		for (int k = 0; k < GEMV_VECS; k++) {
			vec<typename P::real, 8> eight;

#pragma unroll
			for (int e = 0; e < 8; e++)
				eight[e] =
					(typename P::real)((const typename P::factor *)&vecs[k])[e];
#pragma unroll
			for (int o = 0; o < OUTS; o++)
				multiply_vec<P>(sum[r][o], w.w[o][k], eight);
		}
	}
}

/* `normed`: rows of x, GEMV_STEP apart; or NULL. */
template <typename P, int ROWS, int OUTS>
static __device__ void gemv_add(const gemv_problem<P> &p, const gemv_place<P, OUTS> &x,
				int64_t base, const gemv_weights<P, OUTS> &w,
				const typename P::factor *normed,
				typename P::real (&sum)[ROWS][OUTS])
{
	typedef typename P::real real;

#pragma unroll
	for (int k = 0; k < GEMV_VECS; k++) {
		const int64_t i = x.at(p, base, k);

		if (i >= p.I)
			break;
#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			if (r >= p.n)
				break;
			const auto eight = normed ? load_vec<typename P::factor, real, 8, true>(
							    normed + r * GEMV_STEP + i)
						  : p.x[vec_index<8>{ r * p.x_pitch + i }];

#pragma unroll
			for (int o = 0; o < OUTS; o++)
				multiply_vec<P>(sum[r][o], w.w[o][k], eight);
		}
	}
}

/* What becomes of an output.  Its bias and the tokens so far, which no kernel of a run writes, are
 * read at once. */
template <typename P> struct gemv_end {
	typedef typename P::real real;

	int number, o, kept; /* kept: which cache keeps it; or -1 */
	real bias;
	int64_t past; /* tokens that the cache has already */

	__device__ gemv_end(const gemv_problem<P> &p, int number, int o)
	    : number(number), o(o), kept(-1), bias(0), past(p.n_kept > 0 ? p.run->past : 0)
	{
		const gemv_product<P> &product = p.product[number];

		if (product.b && o < product.O)
			bias = product.b[o];
#pragma unroll 1
		for (int k = 0; k < p.n_kept; k++)
			if (p.kept[k].product == number && o >= p.kept[k].first &&
			    o < p.kept[k].first + p.kept[k].size)
				kept = k;
	}
	/* sum: without the bias */
	__device__ void put(const gemv_problem<P> &p, int row, real sum) const
	{
		const gemv_product<P> &product = p.product[number];
		const real value = sum + bias;
		const real rounded =
			product.y.bf16_storage ? (real)(typename P::factor)value : value;

		product.y[row * product.O + o] = value;
		if (p.gelu)
			p.gelu[row * product.O + o] = rounded * formulas<P>::gelu_sigmoid(rounded);
		if (kept < 0)
			return;
		const gemv_kept<P> &cache = p.kept[kept];
		const int64_t token = row / cache.T * cache.capacity + past + row % cache.T;

		cache.to[token * cache.pitch + o - cache.first] = rounded;
	}
};

template <typename P, int ROWS, int OUTS, bool NORMED>
static __global__ void __launch_bounds__(GEMV_WARPS *WARP)
	gemv_kernel(const __grid_constant__ gemv_problem<P> p)
{
	typedef typename P::real real;
	typedef typename P::factor factor;
	__shared__ real shared[GEMV_WARPS][ROWS * OUTS];
	__shared__ __align__(16) factor normed[NORMED ? ROWS * GEMV_STEP : 1];
	const int warp = (int)threadIdx.x / WARP;
	const gemv_place<P, OUTS> x(p);
	const int o = (int)x.first + x.lane % OUTS;
	const int row = x.lane / OUTS;
	gemv_weights<P, OUTS> w;
	real sum[ROWS][OUTS] = {};

	w.read(p, x, 0);
	const gemv_end<P> end(p, x.number, o);

	if constexpr (NORMED) {
		const gemv_norm<P> norm(p.norm);

		pdl_wait();
		for (int r = 0; r < p.n; r++)
			norm.row(p.norm, r, normed + r * GEMV_STEP);
		__syncthreads();
	} else {
		pdl_wait();
	}
	for (int64_t base = 0; base < p.I; base += p.split * GEMV_STEP) {
		if (base > 0)
			w.read(p, x, base);
		if (!NORMED && p.is_vectorized)
			gemv_add_vecs<P, ROWS, OUTS>(p, x, base, w, sum);
		else
			gemv_add<P, ROWS, OUTS>(p, x, base, w, NORMED ? normed : NULL, sum);
	}
#pragma unroll
	for (int k = 0; k < ROWS * OUTS; k++) {
		const real all = warp_sum(sum[k / OUTS][k % OUTS]);

		if (x.lane == k)
			shared[warp][k] = all;
	}
	__syncthreads();
	if (x.share > 0 || row >= p.n || o >= p.product[x.number].O)
		return;
	real total = 0;

	for (int k = 0; k < p.split; k++)
		total += shared[warp + k][x.lane];
	end.put(p, row, total);
}

#include "core/backend/cuda/gemm/skinny_gemm.cuh"

/* Where x is longer, or there are more outputs, cuBLAS is faster, even with a kernel for what
 * follows. */
#define SKINNY_MAX_DEPTH 1024
#define SKINNY_MAX_OUTPUTS 4096
#define SKINNY_TWO_TILES 2048 /* outputs: from here on a block has two tiles */

template <typename P> struct gemv {
	static int64_t rows(const struct node *node)
	{
		return tensor_count(node->in[0]) / tensor_dim(node->in[0], -1);
	}

	/* Does some_rows.cuh take it?  Only where a node makes x, so that it is aligned. */
	static bool is_skinny(const struct node *node)
	{
		const struct tensor *x = node->in[0];
		const int64_t pitch = tensor_contiguous(x) ? tensor_dim(x, -1) : x->pitch;

		return rows(node) > GEMV_MAX_ROWS && rows(node) <= SKINNY_MAX_ROWS && is_bf16(x) &&
		       tensor_root(x)->kind == TENSOR_ACTIVATION && tensor_dim(x, -1) % 32 == 0 &&
		       pitch % 8 == 0 && pitch <= INT32_MAX / SKINNY_MAX_ROWS &&
		       x->offset % 8 == 0 && tensor_dim(x, -1) <= SKINNY_MAX_DEPTH &&
		       tensor_dim(node->out[0], -1) <= SKINNY_MAX_OUTPUTS;
	}

	/* Depends on the node alone. */
	static bool takes(const struct node *node)
	{
		return ROUNDS<P> && node->in[1]->kind == TENSOR_PARAM &&
		       (!node->in[2] || tensor_root(node->in[2])->kind == TENSOR_PARAM) &&
		       ((rows(node) <= GEMV_MAX_ROWS && tensor_dim(node->in[0], -1) % 8 == 0) ||
			is_skinny(node));
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

	/* Outputs that a warp takes together; or a block, of some rows. */
	static int outs(const struct node *node)
	{
		const int64_t O = tensor_dim(node->out[0], -1);

		if (is_skinny(node))
			return O < SKINNY_TWO_TILES ? SKINNY_OUTS : 2 * SKINNY_OUTS;
		return O >= GEMV_MANY_OUTPUTS ? 4 : 1;
	}

	/* The product of call c after the others; all have the same x and outs(). */
	static void add(gemv_problem<P> *p, const struct call *c)
	{
		const int64_t O = tensor_dim(c->node->out[0], -1);
		gemv_product<P> *product = &p->product[p->n_products++];

		product->before =
			p->n_products > 1 ? groups(*p, p->n_products - 1, outs(c->node)) : 0;
		product->O = O;
		product->w = (const typename P::factor *)c->copy[1][copy(c->node)]->memory;
		product->b = real_input<P>(c, 2);
		product->y = output<P>(c, 0);
	}

	/* Of the first n products. */
	static int64_t groups(const gemv_problem<P> &p, int n, int outs)
	{
		return p.product[n - 1].before + (p.product[n - 1].O + outs - 1) / outs;
	}

	static gemv_problem<P> problem(const struct call *c)
	{
		const struct tensor *x = c->node->in[0];
		const int64_t I = tensor_dim(x, -1);
		gemv_problem<P> p = {};

		p.n = (int)(tensor_count(x) / I);
		p.split = I <= GEMV_STEP ? 1 : I <= 2 * GEMV_STEP ? 2 : 4;
		p.I = I;
		p.x_pitch = tensor_contiguous(x) ? I : x->pitch;
		p.x = input<P>(c, 0);
		p.is_vectorized = ROUNDS<P> && p.x.bf16_storage && p.x_pitch % 8 == 0 &&
				  (uintptr_t)p.x.at % 16 == 0;
		p.run = run_of(c);
		add(&p, c);
		return p;
	}

	template <int ROWS, int OUTS, bool NORMED>
	static void launch(const struct call *c, const gemv_problem<P> &p)
	{
		const int64_t warps = groups(p, p.n_products, OUTS) * p.split;

		launch_pdl(context_of(c)->pdl, gemv_kernel<P, ROWS, OUTS, NORMED>,
			   (unsigned)((warps + GEMV_WARPS - 1) / GEMV_WARPS), GEMV_WARPS * WARP, 0,
			   stream_of(c), p);
		note_launch(c);
	}

	/* c: the call of a product. */
	template <bool NORMED>
	static void launch_rows(const struct call *c, const gemv_problem<P> &p)
	{
		const bool many = !NORMED && outs(c->node) > 1;

		if (many && p.n == 1)
			launch<1, 4, false>(c, p);
		else if (many)
			launch<GEMV_MAX_ROWS, 4, false>(c, p);
		else if (p.n == 1)
			launch<1, 1, NORMED>(c, p);
		else
			launch<GEMV_MAX_ROWS, 1, NORMED>(c, p);
	}

	template <int TILES>
	static void launch_skinny(const struct call *c, const gemv_problem<P> &p)
	{
		launch_pdl(context_of(c)->pdl, skinny_gemm_kernel<P, TILES>,
			   (unsigned)groups(p, p.n_products, SKINNY_OUTS * TILES),
			   SKINNY_WARPS * WARP, 0, stream_of(c), p);
		note_launch(c);
	}

	/* c: the call of a product of p, which has no norm. */
	static void launch_plain(const struct call *c, const gemv_problem<P> &p)
	{
		if constexpr (ROUNDS<P>)
			if (is_skinny(c->node)) {
				if (outs(c->node) == SKINNY_OUTS)
					launch_skinny<1>(c, p);
				else
					launch_skinny<2>(c, p);
				return;
			}
		launch_rows<false>(c, p);
	}

	static void forward(const struct call *c)
	{
		launch_plain(c, problem(c));
	}
};

#endif
