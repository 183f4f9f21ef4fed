#include "core/backend/cuda/cuda.cuh"

/*
 * Both ops in one shape: where each tensor is, and NULL for what an op or a
 * call does not have.
 */
template <typename P> struct norm_call {
	typedef typename P::real R;

	enum norm_kind kind;
	R eps;
	int64_t rows, width;
	int weight; /* number of the input w; b follows it */
	const R *x, *w, *b;
	struct numbers<P> residual;
	R *s;
	struct results<P> y;
	R *statistics; /* [rows,2]: mean, 1 / deviation */

	__device__ R normalised(const R *values, int64_t row, int64_t i) const
	{
		return (values[row * width + i] - statistics[2 * row]) * statistics[2 * row + 1];
	}
};

template <typename P> static struct norm_call<P> read_call(const struct call *c)
{
	typedef typename P::real real;
	const struct norm_attr *attr = (const struct norm_attr *)c->node->attr;
	const bool has_residual = c->node->id == OP_norm_residual;
	const int64_t width = tensor_dim(c->node->in[0], -1);
	struct norm_call<P> m;

	m.kind = attr->kind;
	m.eps = (real)attr->eps;
	m.width = width;
	m.rows = tensor_count(c->node->in[0]) / width;
	m.weight = has_residual ? 2 : 1;
	m.x = wide_input<P>(c, 0);
	m.residual = input<P>(c, 1); /* of norm_residual */
	m.w = wide_input<P>(c, m.weight);
	m.b = wide_input<P>(c, m.weight + 1);
	m.s = has_residual ? wide_output<P>(c, 0) : NULL;
	m.y = output<P>(c, has_residual ? 1 : 0);
	m.statistics = wide_output<P>(c, has_residual ? 2 : 1);
	return m;
}

/* s = x + residual, y = w (s - mean) / deviation + b */
template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const struct norm_call<P> m = read_call<P>(c);

	each_row(c, m.rows, [=] __device__(int64_t row) {
		const int64_t first = row * m.width;
		const real *s = m.s ? m.s : m.x;
		const real width = (real)m.width;
		real sum = 0, squares = 0, mean, inverse;

		for (int64_t i = threadIdx.x; i < m.width; i += BLOCK) {
			if (m.s)
				m.s[first + i] = m.x[first + i] + m.residual[first + i];
			sum += s[first + i];
		}
		sum = block_sum(sum);
		mean = m.kind == NORM_LAYER ? sum / width : 0;
		for (int64_t i = threadIdx.x; i < m.width; i += BLOCK)
			squares += (s[first + i] - mean) * (s[first + i] - mean);
		inverse = 1 / sqrt(block_sum(squares) / width + m.eps);
		if (threadIdx.x == 0) {
			m.statistics[2 * row] = mean;
			m.statistics[2 * row + 1] = inverse;
		}
		for (int64_t i = threadIdx.x; i < m.width; i += BLOCK)
			m.y[first + i] = m.w[i] * ((s[first + i] - mean) * inverse) +
					 (m.b ? m.b[i] : 0);
	});
}

template <typename P> static void remake(const struct call *c)
{
	const struct norm_call<P> m = read_call<P>(c);

	each(c, m.rows * m.width, [=] __device__(int64_t at) {
		const int64_t i = at % m.width;

		m.y[at] = m.w[i] * m.normalised(m.s ? m.s : m.x, at / m.width, i) +
			  (m.b ? m.b[i] : 0);
	});
}

/* Only the sum is on the way to a loss. */
template <typename P> static void backward_sum(const struct call *c, int64_t n, int64_t width, int w)
{
	const auto *ds = wide_output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0), dresidual = input_gradient<P>(c, 1);

	each(c, n, [=] __device__(int64_t i) {
		const typename P::real d = ds[i];

		if (dx)
			dx.put(i, d);
		if (dresidual)
			dresidual.put(i, d);
	});
	for (int input = w; input <= w + 1; input++) {
		const auto d = input_gradient<P>(c, input);

		if (d)
			each(c, width, [=] __device__(int64_t i) { d.put(i, 0); });
	}
}

/*
 * y = w n + b, n = (s - mean) / deviation: dw = sum dy n, db = sum dy over the rows, as the columns of
 * one sum: those of dw first.
 */
template <typename P>
static void backward_weights(const struct call *c, const struct norm_call<P> &m,
			     struct numbers<P> dy)
{
	typedef typename P::real real;
	const auto dw = input_gradient<P>(c, m.weight), db = input_gradient<P>(c, m.weight + 1);
	const struct norm_call<P> k = m;

	const int64_t first = dw ? 0 : k.width, columns = (db ? 2 : 1) * k.width - first;

	if (!dw && !db)
		return;
	sum_columns<real>(
		c, m.rows, columns,
		[=] __device__(int64_t row, int64_t column) {
			const int64_t i = (first + column) % k.width;
			const real d = dy[row * k.width + i];

			return first + column < k.width
				       ? d * k.normalised(k.s ? k.s : k.x, row, i)
				       : d;
		},
		c->work,
		[=] __device__(int64_t column, real sum) {
			const int64_t i = first + column;

			if (i < k.width)
				dw.put(i, sum);
			else
				db.put(i - k.width, sum);
		});
}

/*
 * With g = w dy:  d = (g - mean(g) - n mean(g n)) / deviation + ds, where RMSNorm, which
 * subtracts no mean, lacks mean(g).  d may be the memory of dy or ds.
 */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const struct norm_call<P> m = read_call<P>(c);
	const auto dy = output_gradient<P>(c, m.s ? 1 : 0);
	const real *ds = m.s ? wide_output_gradient<P>(c, 0) : NULL; /* what arrives at the sum itself */
	const auto dx = input_gradient<P>(c, 0);
	const struct gradient<P> none = { { NULL, false }, false };
	const auto dresidual = m.s ? input_gradient<P>(c, 1) : none;

	if (m.s && !dy) {
		backward_sum<P>(c, m.rows * m.width, m.width, m.weight);
		return;
	}
	backward_weights<P>(c, m, dy);
	each_row(c, m.rows, [=] __device__(int64_t row) {
		const int64_t first = row * m.width;
		const real *s = m.s ? m.s : m.x;
		const real inverse = m.statistics[2 * row + 1], width = (real)m.width;
		real plain = 0, weighted = 0;

		for (int64_t i = threadIdx.x; i < m.width; i += BLOCK) {
			const real g = m.w[i] * dy[first + i];

			plain += g;
			weighted += g * m.normalised(s, row, i);
		}
		plain = block_sum(plain);
		plain = m.kind == NORM_LAYER ? plain / width : 0;
		weighted = block_sum(weighted) / width;
		for (int64_t i = threadIdx.x; i < m.width; i += BLOCK) {
			const real g = m.w[i] * dy[first + i];
			const real d = (g - plain - m.normalised(s, row, i) * weighted) * inverse +
				       (ds ? ds[first + i] : 0);

			if (dx)
				dx.put(first + i, d);
			if (dresidual)
				dresidual.put(first + i, d);
		}
	});
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	const int64_t width = tensor_dim(n->in[0], -1), rows = tensor_count(n->in[0]) / width;

	(void)threads;
	return pass == PASS_BACKWARD
		       ? (size_t)column_room(rows, 2 * width) * sizeof(typename P::real)
		       : 0;
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, remake<P>, NULL, workspace<P> };
}
KERNELS(norm, set)
KERNELS(norm_residual, set)
