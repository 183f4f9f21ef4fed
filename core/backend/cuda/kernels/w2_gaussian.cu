#include "core/backend/cuda/heads.cuh"
#include "core/backend/cuda/softplus.cuh"

/* f(span of means, span of their raw sigmas) for all of them, in x [.., 2 width] of n numbers. */
template <typename P, typename F>
static void each_pair(const struct call *c, int64_t n, int64_t width, const struct tensors<P> &of, F f)
{
	const struct divisor per_row = divisor_of(width, n);

	each_span(c, n / 2, width, of, [=] __device__(auto p) {
		auto raw = p;

		p.first += per_row.quotient(p.first) * width;
		raw.first = p.first + width;
		f(p, raw);
	});
}

/* y = (mean, sigma) */
template <typename P> static void forward_wasserstein(const struct call *c)
{
	typedef typename P::real real;
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const int64_t n = tensor_count(c->node->in[0]), width = c->node->in[0]->dim[3] / 2;
	const real eps = (real)attr->eps;
	const auto x = input<P>(c, 0);
	const auto y = output<P>(c, 0);

	each_pair(c, n, width, all_of<P>(x, y), [=] __device__(auto mean, auto raw) {
		const auto m = x[mean];
		auto r = x[raw];

		for (int k = 0; k < raw.n; k++)
			r[k] = softplus(r[k]) + eps;
		y.put(mean, m);
		y.put(raw, r);
	});
}

/* y = mean / sqrt(sigma), logdet = sum log sigma */
template <typename P> static void forward_overlap(const struct call *c)
{
	typedef typename P::real real;
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const int64_t width = c->node->in[0]->dim[3] / 2, rows = tensor_count(c->node->in[0]) / width / 2;
	const real eps = (real)attr->eps;
	const auto x = input<P>(c, 0);
	const auto y = output<P>(c, 0);
	real *logdet = wide_output<P>(c, 1); /* a remake does not want logdet */

	sum_rows(
		c, rows, width, all_of<P>(x, y),
		[=] __device__(int64_t row, auto p) {
			auto mean = p, raw = p;

			mean.first += row * width;
			raw.first = mean.first + width;
			auto m = x[mean], r = x[raw];
			real sum = 0;

			for (int k = 0; k < p.n; k++) {
				const real sigma = softplus(r[k]) + eps;

				m[k] /= sqrt(sigma);
				sum += logdet ? log(sigma) : 0;
			}
			y.put(p, m);
			return sum;
		},
		[=] __device__(int64_t row, real sum) {
			if (logdet)
				logdet[row] = sum;
		});
}

template <typename P> static void forward(const struct call *c)
{
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;

	if (attr->score == W2_WASSERSTEIN)
		forward_wasserstein<P>(c);
	else
		forward_overlap<P>(c);
}

template <typename R> static __device__ R softplus_slope(R x)
{
	return 1 / (1 + exp(-x));
}

/* y = (mean, softplus(raw) + eps) */
template <typename P> static void backward_wasserstein(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]), width = c->node->in[0]->dim[3] / 2;
	const auto x = input<P>(c, 0), dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0);

	each_pair(c, n, width, all_of<P>(x, dy, dx), [=] __device__(auto mean, auto raw) {
		const auto dmean = dy[mean], r = x[raw];
		auto d = dy[raw];

		for (int k = 0; k < raw.n; k++)
			d[k] *= softplus_slope(r[k]);
		dx.put(mean, dmean);
		dx.put(raw, d);
	});
}

/* y = mean p, p = 1 / sqrt(sigma), and logdet: a thread takes means and their raw sigmas. */
template <typename P> static void backward_overlap(const struct call *c)
{
	typedef typename P::real real;
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const int64_t n = tensor_count(c->node->in[0]) / 2, width = c->node->in[0]->dim[3] / 2;
	const struct divisor per_row = divisor_of(width, n);
	const real eps = (real)attr->eps;
	const auto x = input<P>(c, 0), dy = output_gradient<P>(c, 0);
	const real *dlogdet = wide_output_gradient<P>(c, 1);
	const auto dx = input_gradient<P>(c, 0);

	each_span(c, n, width, all_of<P>(x, dy, dx), [=] __device__(auto at) {
		const int64_t row = per_row.quotient(at.first);
		const real all = dlogdet ? dlogdet[row] : 0;
		auto mean = at, raw = at;

		mean.first += row * width;
		raw.first = mean.first + width;
		auto m = x[mean], r = x[raw], d = m;

		if (dy)
			d = dy[at];
		for (int k = 0; k < at.n; k++) {
			const real p = 1 / sqrt(softplus(r[k]) + eps);

			d[k] = (dy ? d[k] : 0) * p;
			r[k] = softplus_slope(r[k]) * p * p * (all - (real)0.5 * d[k] * m[k]);
		}
		dx.put(mean, d);
		dx.put(raw, r);
	});
}

template <typename P> static void backward(const struct call *c)
{
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;

	if (attr->score == W2_WASSERSTEIN)
		backward_wasserstein<P>(c);
	else
		backward_overlap<P>(c);
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P> };
}
KERNELS(w2_gaussian, set)
