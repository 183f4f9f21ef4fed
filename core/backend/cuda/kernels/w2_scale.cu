#include "core/backend/cuda/w2.cuh"

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const int64_t heads = c->node->in[0]->dim[2], width = c->node->in[0]->dim[3];
	const int64_t n = tensor_count(c->node->in[0]);
	const struct divisor channels = divisor_of(width, n), per_token = divisor_of(heads, n);
	const real eps = (real)attr->eps;
	const auto y = input<P>(c, 0);
	const real *tau = wide_input<P>(c, 1);
	const auto z = output<P>(c, 0);

	each_span(c, n, width, all_of<P>(y, z), [=] __device__(auto p) {
		const int64_t head = per_token.remainder(channels.quotient(p.first));
		const real f = 2 * inverse_temperature(tau[head], eps);
		auto v = y[p];

		for (int k = 0; k < p.n; k++)
			v[k] *= f;
		z.put(p, v);
	});
}

template <typename P> struct scale_work {
	double *partial;
	typename P::real *dots; /* dz.y of each row */
};

template <typename P>
static struct scale_work<P> take_work(struct space *m, const struct node *n, enum pass pass)
{
	const int64_t heads = n->in[0]->dim[2], tokens = n->in[0]->dim[0] * n->in[0]->dim[1];

	if (pass != PASS_BACKWARD)
		return {};
	return { take_head_parts(m, tokens, heads), m->take<typename P::real>(tokens * heads) };
}

/* z = 2 y i, i = 1 / (|tau| + eps), so dz / dtau = -2 y i^2 sign */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const int64_t heads = c->node->in[0]->dim[2], width = c->node->in[0]->dim[3];
	const int64_t rows = tensor_count(c->node->in[0]) / width;
	const struct divisor per_token = divisor_of(heads, rows);
	const real eps = (real)attr->eps;
	const auto y = input<P>(c, 0), dz = output_gradient<P>(c, 0);
	const real *tau = wide_input<P>(c, 1);
	const auto dy = input_gradient<P>(c, 0), dtau = input_gradient<P>(c, 1);
	struct space m = { (char *)c->work, 0 };
	const struct scale_work<P> work = take_work<P>(&m, c->node, PASS_BACKWARD);

	sum_rows(
		c, rows, width, all_of<P>(y, dz, dy),
		[=] __device__(int64_t row, auto p) {
			const real f = 2 * inverse_temperature(tau[per_token.remainder(row)], eps);
			auto d = dz[p];
			real sum = 0;

			if (dtau) {
				const auto v = y[p];

				for (int k = 0; k < p.n; k++)
					sum += d[k] * v[k];
			}
			for (int k = 0; k < p.n; k++)
				d[k] *= f;
			if (dy)
				dy.put(p, d);
			return sum;
		},
		[=] __device__(int64_t row, real sum) { work.dots[row] = sum; });
	if (dtau)
		sum_heads(
			c, rows / heads, heads,
			[=] __device__(int64_t row) { return work.dots[row]; }, work.partial,
			[=] __device__(int64_t h, double sum) {
				const real inverse = inverse_temperature(tau[h], eps);

				dtau.put(h, (real)sum * -2 * inverse * inverse * sign(tau[h]));
			});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P>, NULL, workspace_of<take_work<P>> };
}
KERNELS(w2_scale, set)
