/*
 * few_rows - y [n,O] = x [n,I] W + b for the few rows of a decoding step, with factors in bfloat16.
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

#include "core/backend/cuda/primitives/gelu.cuh"
#include "core/backend/cuda/norm/norm.cuh"
#include "core/backend/cuda/gemm/gemm.cuh"

#define MOST_FEW_ROWS 4
#define MOST_PRODUCTS 4	  /* of a kernel */
#define FEW_ROWS_WARPS 4  /* of a block */
#define FEW_ROWS_PIECES 4 /* of a lane at a time */
#define FEW_ROWS_STEP (FEW_ROWS_PIECES * WARP * 8)
#define MANY_OUTPUTS 8192 /* from here on a warp takes several */

/* One product: warps take its outputs in groups. */
template <typename P> struct few_rows_product {
	int64_t before; /* groups of the products before */
	int64_t O;
	const typename P::factor *w; /* [O,I] */
	const typename P::real *b;   /* or NULL */
	struct results<P> y;
};

/* Outputs `first`, first + 1, .. of a product, which a cache keeps. */
template <typename P> struct few_rows_kept {
	int product;
	int64_t first, size;
	int T;			 /* tokens of an example */
	int64_t capacity, pitch; /* of the cache */
	struct results<P> to;
};

template <typename P> struct few_rows_problem {
	int n, split; /* rows; warps that share an output */
	int64_t I, x_pitch;
	struct numbers<P> x;
	bool in_pieces; /* x is kept as products read it, and can be read 16 bytes at a time */
	int n_products, n_kept;
	struct few_rows_product<P> product[MOST_PRODUCTS];
	struct norm_call<P> norm; /* makes x, if the kernel is a normed one */
	struct results<P> gelu;	  /* of product 0; or without memory */
	struct few_rows_kept<P> kept[CACHE_MOST];
	const struct run *run;
};

/* Where a warp works: some outputs of a product, and a share of I. */
template <typename P, int OUTS> struct few_rows_place {
	int lane, share, number;
	int64_t first;

	__device__ explicit few_rows_place(const struct few_rows_problem<P> &p)
	{
		const int warp = (int)threadIdx.x / WARP;
		const int group = ((int)blockIdx.x * FEW_ROWS_WARPS + warp) / p.split;

		lane = (int)threadIdx.x % WARP;
		share = warp % p.split;
		number = 0;
		while (number + 1 < p.n_products && group >= p.product[number + 1].before)
			number++;
		first = (group - p.product[number].before) * OUTS;
	}
	/* Piece k of the lane, from `base` on. */
	__device__ int64_t at(const struct few_rows_problem<P> &p, int64_t base, int k) const
	{
		return base + ((k * p.split + share) * WARP + lane) * 8;
	}
};

/* What a lane has of W at a time. */
template <typename P, int OUTS> struct few_rows_weights {
	sixteen_bytes w[OUTS][FEW_ROWS_PIECES];

	__device__ void read(const struct few_rows_problem<P> &p,
			     const struct few_rows_place<P, OUTS> &x, int64_t base)
	{
		const struct few_rows_product<P> &product = p.product[x.number];

#pragma unroll
		for (int k = 0; k < FEW_ROWS_PIECES; k++)
#pragma unroll
			for (int o = 0; o < OUTS; o++) {
				const int64_t i = x.at(p, base, k);

				w[o][k] = {};
				if (i < p.I && x.first + o < product.O)
					w[o][k] = *(const sixteen_bytes *)(product.w +
									   (x.first + o) * p.I + i);
			}
	}
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

/* ------------------------------------------------------------------ norm */

/* All threads get the sum of their values. */
template <typename R> static __device__ R few_rows_block_sum(R value)
{
	__shared__ R part[FEW_ROWS_WARPS];
	R sum = 0;

	value = warp_sum(value);
	__syncthreads(); /* the last use of part[] is over */
	if (threadIdx.x % WARP == 0)
		part[threadIdx.x / WARP] = value;
	__syncthreads();
	for (int k = 0; k < FEW_ROWS_WARPS; k++)
		sum += part[k];
	return sum;
}

/* The factors of a thread's eight channels: they are parameters, as W is. */
template <typename P> struct few_rows_norm {
	typedef typename P::real real;
	typedef span<8, ROUNDS<P> ? SPAN_OF_NARROW : SPAN_OF_WIDE> narrow_span_type;
	typedef span<8, SPAN_OF_WIDE> wide_span_type;

	static __device__ struct values<real, 8> eight(struct numbers<P> x, span<8> at) {
		return x.narrow ? x[narrow_span_type{ at.first }] : x[wide_span_type{ at.first }];
	}

	int column;
	bool active;
	struct values<real, 8> w, b;

	__device__ explicit few_rows_norm(const struct norm_call<P> &m)
	    : column((int)threadIdx.x * 8), active(column < m.width), w{}, b{}
	{
		if (active)
			w = load_span<real, real, 8>(m.w + column);
		if (active && m.b)
			b = load_span<real, real, 8>(m.b + column);
	}

	/* s, y and the statistics of a row; one block writes them.  y to `normed`, too, as products
	 * read it. */
	__device__ void row(const struct norm_call<P> &m, int64_t row,
			    typename P::factor *normed) const
	{
		struct values<real, 8> s = {
		};
		real sum = 0, squares = 0;
		const span<8> at = { row * m.width + column };

		if (active) {
			s = eight(m.x, at);
			if (m.s) {
				const auto residual = eight(m.residual, at);

#pragma unroll
				for (int e = 0; e < 8; e++)
					s[e] = as_kept(m.s, s[e] + residual[e]);
			}
#pragma unroll
			for (int e = 0; e < 8; e++)
				sum += s[e];
		}
		const real mean =
			m.kind == NORM_LAYER ? few_rows_block_sum(sum) / (real)m.width : 0;

#pragma unroll
		for (int e = 0; e < 8; e++)
			squares += active ? (s[e] - mean) * (s[e] - mean) : 0;
		const real inverse = 1 / sqrt(few_rows_block_sum(squares) / (real)m.width + m.eps);

		if (!active)
			return;
		write(m, at, s, mean, inverse, normed);
		if (blockIdx.x == 0 && threadIdx.x == 0) {
			m.statistics[2 * row] = mean;
			m.statistics[2 * row + 1] = inverse;
		}
	}

	__device__ void write(const struct norm_call<P> &m, span<8> at, struct values<real, 8> s,
			      real mean, real inverse, typename P::factor *normed) const
	{
		if (blockIdx.x == 0 && m.s)
			m.s.put(at, s);
#pragma unroll
		for (int e = 0; e < 8; e++)
			s[e] = w[e] * ((s[e] - mean) * inverse) + b[e];
		if (blockIdx.x == 0)
			m.y.put(at, s);
		store_span<true>(normed + column, s);
	}
};

/* --------------------------------------------------------------- the kernel */

/* What a lane has of a row of x at a time: all accesses are under way together. */
template <typename P, int OUTS>
static __device__ void few_rows_read(const struct few_rows_problem<P> &p,
				     const struct few_rows_place<P, OUTS> &x, int64_t base, int r,
				     sixteen_bytes (&pieces)[FEW_ROWS_PIECES])
{
	const typename P::factor *row = (const typename P::factor *)p.x.at + r * p.x_pitch;

#pragma unroll
	for (int k = 0; k < FEW_ROWS_PIECES; k++) {
		const int64_t i = x.at(p, base, k);

		pieces[k] = {};
		if (i < p.I)
			pieces[k] = *(const sixteen_bytes *)(row + i);
	}
}

template <typename P, int ROWS, int OUTS>
static __device__ void few_rows_add_pieces(const struct few_rows_problem<P> &p,
					   const struct few_rows_place<P, OUTS> &x, int64_t base,
					   const struct few_rows_weights<P, OUTS> &w,
					   typename P::real (&sum)[ROWS][OUTS])
{
#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		sixteen_bytes pieces[FEW_ROWS_PIECES];

		if (r >= p.n)
			break;
		few_rows_read(p, x, base, r, pieces);
#pragma unroll
		for (int k = 0; k < FEW_ROWS_PIECES; k++) {
			struct values<typename P::real, 8> eight;

#pragma unroll
			for (int e = 0; e < 8; e++)
				eight[e] = (typename P::real)(
					(const typename P::factor *)&pieces[k])[e];
#pragma unroll
			for (int o = 0; o < OUTS; o++)
				multiply_eight<P>(sum[r][o], w.w[o][k], eight);
		}
	}
}

/* `normed`: rows of x, FEW_ROWS_STEP apart; or NULL. */
template <typename P, int ROWS, int OUTS>
static __device__ void
few_rows_add(const struct few_rows_problem<P> &p, const struct few_rows_place<P, OUTS> &x,
	     int64_t base, const struct few_rows_weights<P, OUTS> &w,
	     const typename P::factor *normed, typename P::real (&sum)[ROWS][OUTS])
{
	typedef typename P::real real;

#pragma unroll
	for (int k = 0; k < FEW_ROWS_PIECES; k++) {
		const int64_t i = x.at(p, base, k);

		if (i >= p.I)
			break;
#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			if (r >= p.n)
				break;
			const auto eight = normed ? load_span<typename P::factor, real, 8, true>(
							    normed + r * FEW_ROWS_STEP + i)
						  : p.x[span<8>{ r * p.x_pitch + i }];

#pragma unroll
			for (int o = 0; o < OUTS; o++)
				multiply_eight<P>(sum[r][o], w.w[o][k], eight);
		}
	}
}

/* What becomes of an output.  Its bias and the tokens so far, which no kernel of a run writes, are
 * read at once. */
template <typename P> struct few_rows_end {
	typedef typename P::real real;

	int number, o, kept; /* kept: which cache keeps it; or -1 */
	real bias;
	int64_t past; /* tokens that the cache has already */

	__device__ few_rows_end(const struct few_rows_problem<P> &p, int number, int o)
	    : number(number), o(o), kept(-1), bias(0), past(p.n_kept > 0 ? p.run->past : 0)
	{
		const struct few_rows_product<P> &product = p.product[number];

		if (product.b && o < product.O)
			bias = product.b[o];
#pragma unroll 1
		for (int k = 0; k < p.n_kept; k++)
			if (p.kept[k].product == number && o >= p.kept[k].first &&
			    o < p.kept[k].first + p.kept[k].size)
				kept = k;
	}
	/* sum: without the bias */
	__device__ void put(const struct few_rows_problem<P> &p, int row, real sum) const
	{
		const struct few_rows_product<P> &product = p.product[number];
		const real value = sum + bias;
		const real rounded = product.y.narrow ? (real)(typename P::factor)value : value;

		product.y[row * product.O + o] = value;
		if (p.gelu)
			p.gelu[row * product.O + o] = rounded * gelu_factor<P>(rounded);
		if (kept < 0)
			return;
		const struct few_rows_kept<P> &cache = p.kept[kept];
		const int64_t token = row / cache.T * cache.capacity + past + row % cache.T;

		cache.to[token * cache.pitch + o - cache.first] = rounded;
	}
};

template <typename P, int ROWS, int OUTS, bool NORMED>
static __global__ void __launch_bounds__(FEW_ROWS_WARPS *WARP)
	few_rows_kernel(const __grid_constant__ struct few_rows_problem<P> p)
{
	typedef typename P::real real;
	typedef typename P::factor factor;
	__shared__ real shared[FEW_ROWS_WARPS][ROWS * OUTS];
	__shared__ __align__(16) factor normed[NORMED ? ROWS * FEW_ROWS_STEP : 1];
	const int warp = (int)threadIdx.x / WARP;
	const struct few_rows_place<P, OUTS> x(p);
	const int o = (int)x.first + x.lane % OUTS;
	const int row = x.lane / OUTS;
	struct few_rows_weights<P, OUTS> w;
	real sum[ROWS][OUTS] = {};

	w.read(p, x, 0);
	const struct few_rows_end<P> end(p, x.number, o);

	if constexpr (NORMED) {
		const struct few_rows_norm<P> norm(p.norm);

		previous_done();
		for (int r = 0; r < p.n; r++)
			norm.row(p.norm, r, normed + r * FEW_ROWS_STEP);
		__syncthreads();
	} else {
		previous_done();
	}
	for (int64_t base = 0; base < p.I; base += p.split * FEW_ROWS_STEP) {
		if (base > 0)
			w.read(p, x, base);
		if (!NORMED && p.in_pieces)
			few_rows_add_pieces<P, ROWS, OUTS>(p, x, base, w, sum);
		else
			few_rows_add<P, ROWS, OUTS>(p, x, base, w, NORMED ? normed : NULL, sum);
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
#define LONGEST_OF_SOME 1024
#define MOST_OF_SOME 4096
#define MANY_OF_SOME 2048 /* outputs: from here on a block has two tiles */

template <typename P> struct few_rows {
	static int64_t rows(const struct node *node)
	{
		return tensor_count(node->in[0]) / tensor_dim(node->in[0], -1);
	}

	/* Does some_rows.cuh take it?  Only where a node makes x, so that it is aligned. */
	static bool are_some(const struct node *node)
	{
		const struct tensor *x = node->in[0];
		const int64_t pitch = tensor_contiguous(x) ? tensor_dim(x, -1) : x->pitch;

		return rows(node) > MOST_FEW_ROWS && rows(node) <= MOST_SOME_ROWS && is_narrow(x) &&
		       tensor_root(x)->kind == TENSOR_ACTIVATION && tensor_dim(x, -1) % 32 == 0 &&
		       pitch % 8 == 0 && pitch <= INT32_MAX / MOST_SOME_ROWS &&
		       x->offset % 8 == 0 && tensor_dim(x, -1) <= LONGEST_OF_SOME &&
		       tensor_dim(node->out[0], -1) <= MOST_OF_SOME;
	}

	/* Depends on the node alone. */
	static bool takes(const struct node *node)
	{
		return ROUNDS<P> && node->in[1]->kind == TENSOR_PARAM &&
		       (!node->in[2] || tensor_root(node->in[2])->kind == TENSOR_PARAM) &&
		       ((rows(node) <= MOST_FEW_ROWS && tensor_dim(node->in[0], -1) % 8 == 0) ||
			are_some(node));
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

		if (are_some(node))
			return O < MANY_OF_SOME ? SOME_ROWS_OUTS : 2 * SOME_ROWS_OUTS;
		return O >= MANY_OUTPUTS ? 4 : 1;
	}

	/* The product of call c after the others; all have the same x and outs(). */
	static void add(struct few_rows_problem<P> *p, const struct call *c)
	{
		const int64_t O = tensor_dim(c->node->out[0], -1);
		struct few_rows_product<P> *product = &p->product[p->n_products++];

		product->before =
			p->n_products > 1 ? groups(*p, p->n_products - 1, outs(c->node)) : 0;
		product->O = O;
		product->w = (const typename P::factor *)c->copy[1][copy(c->node)]->memory;
		product->b = wide_input<P>(c, 2);
		product->y = output<P>(c, 0);
	}

	/* Of the first n products. */
	static int64_t groups(const struct few_rows_problem<P> &p, int n, int outs)
	{
		return p.product[n - 1].before + (p.product[n - 1].O + outs - 1) / outs;
	}

	static struct few_rows_problem<P> problem(const struct call *c) {
		const struct tensor *x = c->node->in[0];
		const int64_t I = tensor_dim(x, -1);
		struct few_rows_problem<P> p = {
		};

		p.n = (int)(tensor_count(x) / I);
		p.split = I <= FEW_ROWS_STEP ? 1 : I <= 2 * FEW_ROWS_STEP ? 2 : 4;
		p.I = I;
		p.x_pitch = tensor_contiguous(x) ? I : x->pitch;
		p.x = input<P>(c, 0);
		p.in_pieces = ROUNDS<P> && p.x.narrow && p.x_pitch % 8 == 0 &&
			      (uintptr_t)p.x.at % 16 == 0;
		p.run = run_of(c);
		add(&p, c);
		return p;
	}

	template <int ROWS, int OUTS, bool NORMED>
	static void launch(const struct call *c, const struct few_rows_problem<P> &p)
	{
		const int64_t warps = groups(p, p.n_products, OUTS) * p.split;

		launch_next(context_of(c)->overlaps, few_rows_kernel<P, ROWS, OUTS, NORMED>,
			    (unsigned)((warps + FEW_ROWS_WARPS - 1) / FEW_ROWS_WARPS),
			    FEW_ROWS_WARPS * WARP, 0, stream_of(c), p);
		note_launch(c);
	}

	/* c: the call of a product. */
	template <bool NORMED>
	static void launch_rows(const struct call *c, const struct few_rows_problem<P> &p)
	{
		const bool many = !NORMED && outs(c->node) > 1;

		if (many && p.n == 1)
			launch<1, 4, false>(c, p);
		else if (many)
			launch<MOST_FEW_ROWS, 4, false>(c, p);
		else if (p.n == 1)
			launch<1, 1, NORMED>(c, p);
		else
			launch<MOST_FEW_ROWS, 1, NORMED>(c, p);
	}

	template <int TILES>
	static void launch_some(const struct call *c, const struct few_rows_problem<P> &p)
	{
		launch_next(context_of(c)->overlaps, some_rows_kernel<P, TILES>,
			    (unsigned)groups(p, p.n_products, SOME_ROWS_OUTS * TILES),
			    SOME_ROWS_WARPS * WARP, 0, stream_of(c), p);
		note_launch(c);
	}

	/* c: the call of a product of p, which has no norm. */
	static void launch_plain(const struct call *c, const struct few_rows_problem<P> &p)
	{
		if constexpr (ROUNDS<P>)
			if (are_some(c->node)) {
				if (outs(c->node) == SOME_ROWS_OUTS)
					launch_some<1>(c, p);
				else
					launch_some<2>(c, p);
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
