/*
 * gemv - y [n,O] = x [n,I] W + b for up to 4 rows, as in decoding, with bfloat16 weights.
 *
 * Memory bandwidth bounds it: W is read once, as [O,I]. A warp computes one or four outputs. Each
 * lane loads 16-byte vectors and issues all of them before it uses the first. If I is large, 2 or 4
 * warps of a block split it and their sums are added in warp order. Kernels never write W, so it is
 * loaded before pdl_wait().
 *
 * fused_decode.cu extends the kernel: up to four products of the same x, the norm that produces x
 * (recomputed by every block), and an epilogue of gelu or a cache write.
 */
#ifndef CUDA_GEMM_GEMV_CUH
#define CUDA_GEMM_GEMV_CUH

#include "core/backend/cuda/primitives/formulas.cuh"
#include "core/backend/cuda/norm/norm.cuh"
#include "core/backend/cuda/gemm/gemm.cuh"

#define GEMV_MAX_ROWS 4
#define GEMV_MAX_PRODUCTS 4 /* per kernel */
#define GEMV_WARPS 4	    /* per block */
#define GEMV_VECS 4	    /* 16-byte vectors per lane and step */
#define GEMV_STEP (GEMV_VECS * WARP * 8)
#define GEMV_MANY_OUTPUTS 8192 /* from here on a warp computes four outputs */

/* One product. Its outputs are divided into groups; a warp (or split warps) computes one group. */
template <typename P> struct gemv_product {
	int64_t first_group; /* output groups of the preceding products */
	int64_t O;
	const typename P::factor *w; /* [O,I] */
	const typename P::real *b;   /* or NULL */
	output_view<P> y;
};

/* A cache that receives outputs first .. first + size - 1 of a product. */
template <typename P> struct gemv_cache_write {
	int product;
	int64_t first, size;
	int T;			 /* tokens per example */
	int64_t capacity, pitch; /* of the cache */
	output_view<P> to;
};

template <typename P> struct gemv_params {
	int n, split; /* rows; warps that split I */
	int64_t I, x_pitch;
	input_view<P> x;
	bool is_vectorized; /* bfloat16 x with aligned rows: 16-byte loads */
	int n_products, n_cache_writes;
	gemv_product<P> product[GEMV_MAX_PRODUCTS];
	norm_call<P> norm;   /* produces x if NORMED */
	output_view<P> gelu; /* gelu of product 0; unset: none */
	gemv_cache_write<P> cache_writes[CACHE_MOST];
	const struct run *run;
};

/* What a warp works on: an output group of a product and a slice of I. */
template <typename P, int OUTS> struct gemv_coord {
	int lane, k_slice, product_index;
	int64_t first;

	__device__ explicit gemv_coord(const gemv_params<P> &p)
	{
		const int warp = (int)threadIdx.x / WARP;
		const int group = ((int)blockIdx.x * GEMV_WARPS + warp) / p.split;

		lane = (int)threadIdx.x % WARP;
		k_slice = warp % p.split;
		product_index = 0;
		while (product_index + 1 < p.n_products &&
		       group >= p.product[product_index + 1].first_group)
			product_index++;
		first = (group - p.product[product_index].first_group) * OUTS;
	}
	/* Index of the lane's k-th vector, from `base` on. */
	__device__ int64_t at(const gemv_params<P> &p, int64_t base, int k) const
	{
		return base + ((k * p.split + k_slice) * WARP + lane) * 8;
	}
};

/* The weights that a lane holds at a time. */
template <typename P, int OUTS> struct gemv_weights {
	vec16 w[OUTS][GEMV_VECS];

	__device__ void read(const gemv_params<P> &p, const gemv_coord<P, OUTS> &coord,
			     int64_t base)
	{
		const gemv_product<P> &product = p.product[coord.product_index];

#pragma unroll
		for (int k = 0; k < GEMV_VECS; k++)
#pragma unroll
			for (int o = 0; o < OUTS; o++) {
				const int64_t i = coord.at(p, base, k);

				w[o][k] = {};
				if (i < p.I && coord.first + o < product.O)
					w[o][k] = *(const vec16 *)(product.w +
								   (coord.first + o) * p.I + i);
			}
	}
};

/* sum += w . x over eight elements; x is rounded to the operand type. */
template <typename P>
static __device__ void fma_vec(typename P::real &sum, const vec16 &w,
			       const vec<typename P::real, 8> &x)
{
	typedef typename P::factor factor;

#pragma unroll
	for (int e = 0; e < 8; e++)
		sum += (typename P::real)((const factor *)&w)[e] * (typename P::real)(factor)x[e];
}

/* ------------------------------------------------------------ fused norm */

/* Sum over the block, returned to all threads. */
template <typename R> static __device__ R gemv_block_sum(R value)
{
	__shared__ R warp_sums[GEMV_WARPS];
	R sum = 0;

	value = warp_sum(value);
	__syncthreads(); /* the previous reads of warp_sums are done */
	if (threadIdx.x % WARP == 0)
		warp_sums[threadIdx.x / WARP] = value;
	__syncthreads();
	for (int k = 0; k < GEMV_WARPS; k++)
		sum += warp_sums[k];
	return sum;
}

/*
 * Norm weights of the thread's eight channels. They are parameters, so they are loaded before
 * pdl_wait().
 */
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

	/*
	 * Normalizes one row. `normed` receives y rounded to the operand type; block 0 also writes
	 * s, y and the statistics to memory.
	 */
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

/* ------------------------------------------------------------------- kernel */

/* Loads the lane's vectors of one row of x; all loads are issued at once. */
template <typename P, int OUTS>
static __device__ void load_x(const gemv_params<P> &p, const gemv_coord<P, OUTS> &coord,
			      int64_t base, int r, vec16 (&vecs)[GEMV_VECS])
{
	const typename P::factor *row = (const typename P::factor *)p.x.at + r * p.x_pitch;

#pragma unroll
	for (int k = 0; k < GEMV_VECS; k++) {
		const int64_t i = coord.at(p, base, k);

		vecs[k] = {};
		if (i < p.I)
			vecs[k] = *(const vec16 *)(row + i);
	}
}

template <typename P, int ROWS, int OUTS>
static __device__ void
accumulate_vectorized(const gemv_params<P> &p, const gemv_coord<P, OUTS> &coord, int64_t base,
		      const gemv_weights<P, OUTS> &w, typename P::real (&sum)[ROWS][OUTS])
{
#pragma unroll
	for (int r = 0; r < ROWS; r++) {
		vec16 vecs[GEMV_VECS];

		if (r >= p.n)
			break;
		load_x(p, coord, base, r, vecs);
#pragma unroll
		for (int k = 0; k < GEMV_VECS; k++) {
			vec<typename P::real, 8> eight;

#pragma unroll
			for (int e = 0; e < 8; e++)
				eight[e] =
					(typename P::real)((const typename P::factor *)&vecs[k])[e];
#pragma unroll
			for (int o = 0; o < OUTS; o++)
				fma_vec<P>(sum[r][o], w.w[o][k], eight);
		}
	}
}

/* normed: rows of x in shared memory, GEMV_STEP apart; NULL: x is read from memory. */
template <typename P, int ROWS, int OUTS>
static __device__ void accumulate(const gemv_params<P> &p, const gemv_coord<P, OUTS> &coord,
				  int64_t base, const gemv_weights<P, OUTS> &w,
				  const typename P::factor *normed,
				  typename P::real (&sum)[ROWS][OUTS])
{
	typedef typename P::real real;

#pragma unroll
	for (int k = 0; k < GEMV_VECS; k++) {
		const int64_t i = coord.at(p, base, k);

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
				fma_vec<P>(sum[r][o], w.w[o][k], eight);
		}
	}
}

/*
 * Epilogue of one output. The constructor loads the bias and the cache length before pdl_wait(): no
 * kernel of a run writes them.
 */
template <typename P> struct gemv_epilogue {
	typedef typename P::real real;

	int product_index, o;
	int cache; /* index of the cache write that receives the output; -1: none */
	real bias;
	int64_t past; /* tokens already in the cache */

	__device__ gemv_epilogue(const gemv_params<P> &p, int product_index, int o)
	    : product_index(product_index), o(o), cache(-1), bias(0),
	      past(p.n_cache_writes > 0 ? p.run->past : 0)
	{
		const gemv_product<P> &product = p.product[product_index];

		if (product.b && o < product.O)
			bias = product.b[o];
#pragma unroll 1
		for (int k = 0; k < p.n_cache_writes; k++)
			if (p.cache_writes[k].product == product_index &&
			    o >= p.cache_writes[k].first &&
			    o < p.cache_writes[k].first + p.cache_writes[k].size)
				cache = k;
	}
	/* sum: without bias */
	__device__ void put(const gemv_params<P> &p, int row, real sum) const
	{
		const gemv_product<P> &product = p.product[product_index];
		const real value = sum + bias;
		const real rounded =
			product.y.bf16_storage ? (real)(typename P::factor)value : value;

		product.y[row * product.O + o] = value;
		if (p.gelu)
			p.gelu[row * product.O + o] = rounded * formulas<P>::gelu_sigmoid(rounded);
		if (cache < 0)
			return;
		const gemv_cache_write<P> &write = p.cache_writes[cache];
		const int64_t token = row / write.T * write.capacity + past + row % write.T;

		write.to[token * write.pitch + o - write.first] = rounded;
	}
};

template <typename P, int ROWS, int OUTS, bool NORMED>
static __global__ void __launch_bounds__(GEMV_WARPS *WARP)
	gemv_kernel(struct replicas replicas, const __grid_constant__ gemv_params<P> given)
{
	const auto &p = replicas.own_copy(given);
	typedef typename P::real real;
	typedef typename P::factor factor;
	__shared__ real shared[GEMV_WARPS][ROWS * OUTS];
	__shared__ __align__(16) factor normed[NORMED ? ROWS * GEMV_STEP : 1];
	const int warp = (int)threadIdx.x / WARP;
	const gemv_coord<P, OUTS> coord(p);
	const int o = (int)coord.first + coord.lane % OUTS;
	const int row = coord.lane / OUTS;
	gemv_weights<P, OUTS> w;
	real sum[ROWS][OUTS] = {};

	w.read(p, coord, 0);
	const gemv_epilogue<P> epilogue(p, coord.product_index, o);

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
			w.read(p, coord, base);
		if (!NORMED && p.is_vectorized)
			accumulate_vectorized<P, ROWS, OUTS>(p, coord, base, w, sum);
		else
			accumulate<P, ROWS, OUTS>(p, coord, base, w, NORMED ? normed : NULL, sum);
	}
#pragma unroll
	for (int k = 0; k < ROWS * OUTS; k++) {
		const real all = warp_sum(sum[k / OUTS][k % OUTS]);

		if (coord.lane == k)
			shared[warp][k] = all;
	}
	__syncthreads();
	if (coord.k_slice > 0 || row >= p.n || o >= p.product[coord.product_index].O)
		return;
	real total = 0;

	for (int k = 0; k < p.split; k++)
		total += shared[warp + k][coord.lane];
	epilogue.put(p, row, total);
}

#include "core/backend/cuda/gemm/skinny_gemm.cuh"

/* For larger I or O cuBLAS is faster, even with a separate kernel for the epilogue. */
#define SKINNY_MAX_DEPTH 1024
#define SKINNY_MAX_OUTPUTS 4096
#define SKINNY_TWO_TILES 2048 /* from here on a block computes two tiles */

template <typename P> struct gemv {
	static int64_t rows(const struct node *node)
	{
		return tensor_count(node->in[0]) / tensor_dim(node->in[0], -1);
	}

	/* Does skinny_gemm_kernel apply? x must be an activation, which is aligned. */
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

	/* Index of the weight copy with layout [O,I]. */
	static int copy(const struct node *node)
	{
		return is_transposed(node) ? 0 : 1;
	}

	/* Outputs per warp, or per block of skinny_gemm_kernel. */
	static int outs(const struct node *node)
	{
		const int64_t O = tensor_dim(node->out[0], -1);

		if (is_skinny(node))
			return O < SKINNY_TWO_TILES ? SKINNY_OUTS : 2 * SKINNY_OUTS;
		return O >= GEMV_MANY_OUTPUTS ? 4 : 1;
	}

	/* Adds the product of call c; all products have the same x and outs(). */
	static void add_product(gemv_params<P> *p, const struct call *c)
	{
		const int64_t O = tensor_dim(c->node->out[0], -1);
		gemv_product<P> *product = &p->product[p->n_products++];

		product->first_group =
			p->n_products > 1 ? output_groups(*p, p->n_products - 1, outs(c->node)) : 0;
		product->O = O;
		product->w = (const typename P::factor *)c->copy[1][copy(c->node)]->memory;
		product->b = real_input<P>(c, 2);
		product->y = output<P>(c, 0);
	}

	/* Output groups of the first n products. */
	static int64_t output_groups(const gemv_params<P> &p, int n, int outs)
	{
		return p.product[n - 1].first_group + (p.product[n - 1].O + outs - 1) / outs;
	}

	static gemv_params<P> make_params(const struct call *c)
	{
		const struct tensor *x = c->node->in[0];
		const int64_t I = tensor_dim(x, -1);
		gemv_params<P> p = {};

		p.n = (int)(tensor_count(x) / I);
		p.split = I <= GEMV_STEP ? 1 : I <= 2 * GEMV_STEP ? 2 : 4;
		p.I = I;
		p.x_pitch = tensor_contiguous(x) ? I : x->pitch;
		p.x = input<P>(c, 0);
		p.is_vectorized = ROUNDS<P> && p.x.bf16_storage && p.x_pitch % 8 == 0 &&
				  (uintptr_t)p.x.at % 16 == 0;
		p.run = run_of(c);
		add_product(&p, c);
		return p;
	}

	template <int ROWS, int OUTS, bool NORMED>
	static void launch(const struct call *c, const gemv_params<P> &p)
	{
		const int64_t warps = output_groups(p, p.n_products, OUTS) * p.split;

		launch_for(c, gemv_kernel<P, ROWS, OUTS, NORMED>,
			   (unsigned)((warps + GEMV_WARPS - 1) / GEMV_WARPS), GEMV_WARPS * WARP, 0,
			   p);
	}

	/* c: call of one of the products. */
	template <bool NORMED>
	static void launch_rows(const struct call *c, const gemv_params<P> &p)
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
	static void launch_skinny(const struct call *c, const gemv_params<P> &p)
	{
		launch_for(c, skinny_gemm_kernel<P, TILES>,
			   (unsigned)output_groups(p, p.n_products, SKINNY_OUTS * TILES),
			   SKINNY_WARPS * WARP, 0, p);
	}

	/* c: call of one of the products; p has no norm. */
	static void launch_plain(const struct call *c, const gemv_params<P> &p)
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
		launch_plain(c, make_params(c));
	}
};

#endif
