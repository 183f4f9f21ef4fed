/*
 * The backward pass of norms for rows of some hundreds of elements.
 *
 * A thread owns N columns and visits all rows of its block, so w, dw and db of its columns stay in
 * registers.  The two means of a row are reduced over the block.  Memory bandwidth bounds it.
 */
#ifndef CUDA_NORM_NORM_COLUMNS_CUH
#define CUDA_NORM_NORM_COLUMNS_CUH

#include "core/backend/cuda/norm/norm_rows.cuh"

/*
 * A thread owns N columns.  It loads ROWS rows at a time; AHEAD: it loads the next rows while it
 * computes with the current ones.  BLOCKS: blocks per SM at the maximum number of threads.
 * PER_SM: of the grid.
 */
template <int N_, int ROWS_, int BLOCKS_, int PER_SM_, bool AHEAD_> struct column_shape {
	static constexpr int N = N_, ROWS = ROWS_, BLOCKS = BLOCKS_, PER_SM = PER_SM_;
	static constexpr int MAX_THREADS = ROW_VEC * WARP * MAX_VECS<float> / N;
	static constexpr bool AHEAD = AHEAD_;
};

/*
 * A thread's columns of ROWS rows, in the storage type: the first n rows, `width` elements apart;
 * the others are 0.
 */
template <typename T, typename C> struct packed_rows {
	packed_vec<T, C::N> of[C::ROWS];

	__device__ void load(const T *from, int64_t width, int n)
	{
#pragma unroll
		for (int r = 0; r < C::ROWS; r++) {
			of[r] = {};
			if (r < n)
				of[r] = load_packed<C::N>(from + r * width);
		}
	}
};

template <typename R, typename C> struct column_rows {
	vec<R, C::N> of[C::ROWS];

	template <typename T> __device__ void unpack(const packed_rows<T, C> &packed)
	{
#pragma unroll
		for (int r = 0; r < C::ROWS; r++)
#pragma unroll
			for (int i = 0; i < C::N; i++)
				of[r][i] = (R)packed.of[r][i];
	}
	template <typename T> __device__ void store(T *to, int64_t width, int n) const
	{
#pragma unroll
		for (int r = 0; r < C::ROWS; r++)
			if (r < n)
				store_vec<true>(to + r * width, of[r]);
	}
	/* Writes the gradient, or adds to it. */
	template <typename T> __device__ void put(T *to, bool add, int64_t width, int n) const
	{
		packed_rows<T, C> packed;
		struct column_rows sum;

		if (!add) {
			store(to, width, n);
			return;
		}
		packed.load(to, width, n);
		sum.unpack(packed);
#pragma unroll
		for (int r = 0; r < C::ROWS; r++)
#pragma unroll
			for (int i = 0; i < C::N; i++)
				sum.of[r][i] += of[r][i];
		sum.store(to, width, n);
	}
	template <typename P>
	__device__ void put(gradient_view<P> to, int64_t at, int64_t width, int n) const
	{
		if (ROUNDS<P> && to && to.to.bf16_storage)
			put((typename P::factor *)to.to.at + at, to.add, width, n);
		else if (to)
			put((R *)to.to.at + at, to.add, width, n);
	}
};

/*
 * Sums over all threads of the block, in a fixed order.  Two consecutive calls need different
 * `buffers`.
 */
template <int N, int WARPS, typename R>
static __device__ void add_warps(vec<R, N> &sum, R (&buffers)[WARPS][N])
{
	const int warps = (int)blockDim.x / WARP;

#pragma unroll
	for (int k = 0; k < N; k++)
		sum[k] = warp_sum(sum[k]);
	if (threadIdx.x % WARP == 0)
#pragma unroll
		for (int k = 0; k < N; k++)
			buffers[threadIdx.x / WARP][k] = sum[k];
	__syncthreads();
	sum = {};
	for (int warp = 0; warp < warps; warp++)
#pragma unroll
		for (int k = 0; k < N; k++)
			sum[k] += buffers[warp][k];
}

/* What a thread loads of ROWS rows.  X: storage type of the residual stream; Y: of dy. */
template <typename P, typename X, typename Y, typename C> struct rows_read {
	typedef typename P::real real;

	packed_rows<X, C> s, ds;
	packed_rows<Y, C> dy;
	real mean[C::ROWS], inverse[C::ROWS];

	/* Loads `rows` rows from row `row` on. */
	__device__ void load(const norm_call<P> &m, const norm_gradients<P> &d, int64_t row,
			     int rows, int column)
	{
		const int own = column < m.width ? rows : 0;
		const int64_t at = row * m.width + column;

		s.load((const X *)m.sum().at + at, m.width, own);
		if (d.ds)
			ds.load((const X *)d.ds.at + at, m.width, own);
		dy.load((const Y *)d.dy.at + at, m.width, own);
#pragma unroll
		for (int r = 0; r < C::ROWS; r++) {
			mean[r] = r < rows ? m.statistics[2 * (row + r)] : 0;
			inverse[r] = r < rows ? m.statistics[2 * (row + r) + 1] : 0;
		}
	}
};

/* Computes what norm_backward_kernel() does (kernels/norm.cu). */
template <typename P, typename X, typename Y, typename C>
static __global__ void __launch_bounds__(C::MAX_THREADS, C::BLOCKS)
	norm_backward_columns_kernel(struct replicas replicas,
				     const __grid_constant__ norm_call<P> given_m,
				     const __grid_constant__ norm_gradients<P> given_d)
{
	const auto &m = replicas.own(given_m);
	const auto &d = replicas.own(given_d);
	typedef typename P::real real;
	constexpr int N = C::N, ROWS = C::ROWS;
	__shared__ struct alignas(16) {
		real of[C::MAX_THREADS / WARP][2 * ROWS];
	} buffers[2];
	const int column = (int)threadIdx.x * N;
	const bool inside = column < m.width;
	const int64_t first = m.rows * blockIdx.x / gridDim.x;
	const int64_t last = m.rows * (blockIdx.x + 1) / gridDim.x;
	const auto rows_at = [&](int64_t row) {
		return last - row < ROWS ? (int)(last - row) : ROWS;
	};
	vec<real, N> w = {}, dw = {}, db = {};
	rows_read<P, X, Y, C> next = {};
	int half = 0;

	pdl_wait();
	if (inside)
		w = load_vec<real, real, N, true>(m.w + column);
	if (C::AHEAD)
		next.load(m, d, first, rows_at(first), column);
	for (int64_t row = first; row < last; row += ROWS) {
		const int own = inside ? rows_at(row) : 0;
		rows_read<P, X, Y, C> now = next;
		column_rows<real, C> n, g, ds;
		vec<real, 2 *ROWS> means = {}; /* the sums of g, then of g n */

		if (!C::AHEAD)
			now.load(m, d, row, rows_at(row), column);
		else if (row + ROWS < last)
			next.load(m, d, row + ROWS, rows_at(row + ROWS), column);
		n.unpack(now.s);
		g.unpack(now.dy);
		ds.unpack(now.ds);
#pragma unroll
		for (int r = 0; r < ROWS; r++) {
#pragma unroll
			for (int i = 0; i < N; i++) {
				n.of[r][i] = (n.of[r][i] - now.mean[r]) * now.inverse[r];
				dw[i] += g.of[r][i] * n.of[r][i];
				db[i] += g.of[r][i];
				g.of[r][i] *= w[i];
				means[r] += g.of[r][i];
				means[ROWS + r] += g.of[r][i] * n.of[r][i];
			}
		}
		add_warps(means, buffers[half].of);
		half = !half;
#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			const real plain = m.kind == NORM_LAYER ? means[r] / (real)m.width : 0;
			const real weighted = means[ROWS + r] / (real)m.width;

#pragma unroll
			for (int i = 0; i < N; i++)
				ds.of[r][i] += (g.of[r][i] - plain - n.of[r][i] * weighted) *
					       now.inverse[r];
		}
		ds.put(d.dx, row * m.width + column, m.width, own);
		ds.put(d.dresidual, row * m.residual_pitch + column, m.residual_pitch, own);
	}
	if (!d.columns || !inside)
		return;
	store_vec<true>(d.partial + blockIdx.x * d.columns + column, dw);
	if (d.columns > m.width)
		store_vec<true>(d.partial + blockIdx.x * d.columns + m.width + column, db);
}

/* Does the backward pass of this row shape use this file? */
template <typename S> static constexpr bool BY_COLUMNS = S::N > 1 && S::K > 2 && S::TEAM == WARP;

template <typename X>
using plain_columns = column_shape<ROW_VEC, 2, (sizeof(X) > 4 ? 1 : 3), NORM_BLOCKS_PER_SM, false>;

/*
 * In bfloat16 a row has few bytes, so a thread loads the next row ahead to keep enough in flight.
 */
template <typename X>
using column_shape_of =
	std::conditional_t<(sizeof(X) < 4), column_shape<8, 1, 6, MAX_BLOCKS_PER_SM, true>,
			   plain_columns<X>>;

/* Returns the number of blocks, which is that of partial sums. */
template <typename C, typename X, typename Y, typename P>
static int64_t launch_columns_of(const struct call *c, const norm_call<P> &m,
				 const norm_gradients<P> &d)
{
	const int64_t threads = (m.width + C::N * WARP - 1) / (C::N * WARP) * WARP;
	const int64_t parts = norm_parts(context_of(c)->sm_count, m.rows, C::ROWS, C::PER_SM);

	if (parts)
		launch_for(c, norm_backward_columns_kernel<P, X, Y, C>, (unsigned)parts,
			   (int)threads, 0, m, d);
	return parts;
}

template <typename C, typename X, typename P>
static int64_t backward_columns(const struct call *c, const norm_call<P> &m,
				const norm_gradients<P> &d)
{
	if (ROUNDS<P> && d.dy.bf16_storage)
		return launch_columns_of<C, X, typename P::factor>(c, m, d);
	return launch_columns_of<C, X, typename P::real>(c, m, d);
}

#endif
