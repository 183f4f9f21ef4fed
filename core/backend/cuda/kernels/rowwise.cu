/*
 * The kernels of all row-wise ops (core/ops/rowwise.h).  A warp takes a row, or a block if rows are
 * long; its threads take vectors of 16 bytes.  A row is read again for each reduction: from the
 * cache.  Bound by memory bandwidth.
 */
#include "core/backend/cuda/primitives/formulas.cuh"
#include "core/backend/cuda/primitives/fast_divide.cuh"
#include "generated/rowwise_ops.h"

#define WARP_ROW 1024 /* elements of the longest row that a warp takes */

/* The part of a row that passes the mask, and the threads that work on it. */
struct row_part {
	int64_t row, start, first, last; /* start: index of its first element in x */
	int thread, threads;
};

struct rowwise {
	struct row_mask mask;
	int64_t rows, n;
	struct divisor queries;

	explicit rowwise(const struct call *c)
	{
		const struct tensor *x = c->node->in[0];

		mask = *(const struct row_mask *)c->node->attr;
		n = tensor_dim(x, -1);
		rows = tensor_count(x) / n;
		queries = divisor_of(x->ndim > 1 ? tensor_dim(x, -2) : 1, rows);
	}
	__device__ struct row_part part(int64_t row, int threads) const
	{
		struct row_part p = { row, row * n, 0, n, (int)threadIdx.x % threads, threads };

		ROW_RANGE(mask, queries.remainder(row), queries.d, n, &p.first, &p.last);
		return p;
	}
};

template <bool WHOLE_BLOCK, typename R, typename Op> static __device__ R reduce_row(R value, Op op)
{
	return WHOLE_BLOCK ? block_reduce(value, op) : warp_reduce(value, op);
}

/* f(p) for the vectors p of N elements that touch elements [first, last) of the row. */
template <int N, typename F>
static __device__ void each_row_vec(const struct row_part &p, int64_t first, int64_t last, F f)
{
	for (int64_t i = first / N * N + p.thread * N; i < last; i += p.threads * N)
		f(vec_index<N>{ p.start + i });
}

/* Does element k of the vector pass the mask? */
template <int N> static __device__ bool passes(const struct row_part &p, vec_index<N> at, int k)
{
	const int64_t i = at.first + k - p.start;

	return i >= p.first && i < p.last;
}

/* The rows of x and y, and how a row of x becomes one of y. */
template <typename P, typename OP> struct row_forward {
	typedef typename P::real real;
	struct rowwise of;
	input_view<P> x;
	output_view<P> y;

	template <int N, bool WHOLE_BLOCK>
	__device__ void operator()(const struct row_part &p) const
	{
		real m = -(real)INFINITY, s = 0;

		if constexpr (OP::REDUCTIONS & ROW_MAX) {
			each_row_vec<N>(p, p.first, p.last, [&](auto at) {
				const auto v = x[at];

#pragma unroll
				for (int k = 0; k < N; k++)
					m = passes(p, at, k) && v[k] > m ? v[k] : m;
			});
			m = reduce_row<WHOLE_BLOCK>(m, larger_value());
		} else {
			m = 0;
		}
		if constexpr (OP::REDUCTIONS & ROW_SUM) {
			each_row_vec<N>(p, p.first, p.last, [&](auto at) {
				const auto v = x[at];

#pragma unroll
				for (int k = 0; k < N; k++)
					s += passes(p, at, k) ? OP::term(v[k], m) : 0;
			});
			s = reduce_row<WHOLE_BLOCK>(s, add_values());
		}
		if constexpr (OP::ROWS) {
			if (p.thread == 0)
				y[p.row] = OP::forward(0, 0, m, s);
			return;
		}
		each_row_vec<N>(p, 0, of.n, [&](auto at) {
			auto v = x[at];

#pragma unroll
			for (int k = 0; k < N; k++)
				v[k] = passes(p, at, k) ? OP::forward(v[k], OP::term(v[k], m), m, s)
							: 0;
			y.put(at, v);
		});
	}
};

/* dx may be written over dy. */
template <typename P, typename OP> struct row_backward {
	typedef typename P::real real;
	struct rowwise of;
	input_view<P> x, y, dy;
	gradient_view<P> dx;

	/* of x, y or dy; a row has one y and one dy if OP::ROWS */
	template <int N>
	__device__ vec<real, N> read(const struct row_part &p, input_view<P> from, bool rows,
				     vec_index<N> at) const
	{
		vec<real, N> v = {};

		if (!from)
			return v;
		if (!rows)
			return from[at];
		const real value = from[p.row];

#pragma unroll
		for (int k = 0; k < N; k++)
			v[k] = value;
		return v;
	}
	template <int N, bool WHOLE_BLOCK>
	__device__ void operator()(const struct row_part &p) const
	{
		real t = 0;

		if constexpr (OP::REDUCTIONS & GRADIENT_SUM) {
			each_row_vec<N>(p, p.first, p.last, [&](auto at) {
				const auto u = read<N>(p, x, false, at);
				const auto v = read<N>(p, y, OP::ROWS, at);
				const auto d = read<N>(p, dy, OP::ROWS, at);

#pragma unroll
				for (int k = 0; k < N; k++)
					t += passes(p, at, k) ? OP::back_term(u[k], v[k], d[k]) : 0;
			});
			t = reduce_row<WHOLE_BLOCK>(t, add_values());
		}
		each_row_vec<N>(p, 0, of.n, [&](auto at) {
			const auto u = read<N>(p, x, false, at);
			const auto v = read<N>(p, y, OP::ROWS, at);
			auto d = read<N>(p, dy, OP::ROWS, at);

#pragma unroll
			for (int k = 0; k < N; k++)
				d[k] = passes(p, at, k) ? OP::backward(u[k], v[k], d[k], t) : 0;
			dx.put(at, d);
		});
	}
};

template <int N, bool WHOLE_BLOCK, typename F>
static __global__ void row_formula_kernel(struct replicas replicas, const __grid_constant__ F given)
{
	const auto &f = replicas.own(given);
	constexpr int THREADS = WHOLE_BLOCK ? BLOCK : WARP;
	const int64_t step = (int64_t)gridDim.x * (BLOCK / THREADS);

	pdl_wait();
	for (int64_t row = (int64_t)blockIdx.x * (BLOCK / THREADS) + threadIdx.x / THREADS;
	     row < f.of.rows; row += step)
		f.template operator()<N, WHOLE_BLOCK>(f.of.part(row, THREADS));
}

template <int N, bool WHOLE_BLOCK, typename F> static void launch(const struct call *c, const F &f)
{
	const int64_t rows = WHOLE_BLOCK ? 1 : BLOCK / WARP, blocks = (f.of.rows + rows - 1) / rows;

	launch_for(c, row_formula_kernel<N, WHOLE_BLOCK, F>,
		   (unsigned)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS), BLOCK, 0, f);
}

template <typename F> static void each_formula_row(const struct call *c, const F &f)
{
	const bool whole_block = f.of.n > WARP_ROW;

	if (f.of.n % VEC)
		whole_block ? launch<1, true>(c, f) : launch<1, false>(c, f);
	else
		whole_block ? launch<VEC, true>(c, f) : launch<VEC, false>(c, f);
}

template <typename P, typename OP> static void forward(const struct call *c)
{
	each_formula_row(c, row_forward<P, OP>{ rowwise(c), input<P>(c, 0), output<P>(c, 0) });
}

template <typename P, typename OP> static void backward(const struct call *c)
{
	const input_view<P> nothing = {};

	each_formula_row(
		c, row_backward<P, OP>{
			   rowwise(c), OP::SAVES & SAVES_INPUTS ? input<P>(c, 0) : nothing,
			   OP::SAVES & SAVES_OUTPUT ? (input_view<P>)output<P>(c, 0) : nothing,
			   output_gradient<P>(c, 0), input_gradient<P>(c, 0) });
}

template <typename P, typename OP> static constexpr struct kernels set()
{
	return { forward<P, OP>, backward<P, OP> };
}

#define PUBLISH(op, type, P)                                \
	extern "C" const struct kernels cuda_##op##_##type; \
	const struct kernels cuda_##op##_##type = set<P, typename formulas<P>::op##_op>();
#define X(op)                              \
	PUBLISH(op, f32, single_precision) \
	PUBLISH(op, f64, double_precision) \
	PUBLISH(op, bf16, bfloat16_products)
ROWWISE_OPS(X)
