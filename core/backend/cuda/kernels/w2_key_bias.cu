#include "core/backend/cuda/w2.cuh"

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const int64_t heads = c->node->in[0]->dim[2], width = c->node->in[0]->dim[3];
	const int64_t rows = count_of(c->node->out[0]);
	const struct divisor per_token = divisor_of(heads, rows);
	const bool wasserstein = attr->score == W2_WASSERSTEIN;
	const real eps = (real)attr->eps;
	const auto y = input<P>(c, 0), second = input<P>(c, 1);
	auto *bias = wide_output<P>(c, 0);

	sum_rows(
		c, rows, width, all_of<P>(y),
		[=] __device__(int64_t, auto p) {
			const auto v = y[p];
			real square = 0;

			for (int k = 0; k < p.n; k++)
				square += v[k] * v[k];
			return square;
		},
		[=] __device__(int64_t r, real square) {
			bias[r] = wasserstein
					  ? -square * inverse_temperature(second[per_token.remainder(r)], eps)
					  : (real)-0.5 * (square + second[r]);
		});
}

/* Partial sums for the gradient of tau. */
static double *take_work(struct space *m, const struct node *n, enum pass pass)
{
	const int64_t *dim = n->out[0]->dim;

	return pass == PASS_BACKWARD ? take_head_parts(m, dim[0] * dim[1], dim[2]) : NULL;
}

/*
 * bias = -f |y|^2 + ..; wasserstein: f = i = 1 / (|tau| + eps), so
 * d bias / d tau = |y|^2 i^2 sign = -bias i sign
 */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const int64_t heads = c->node->in[0]->dim[2], width = c->node->in[0]->dim[3];
	const int64_t rows = tensor_count(c->node->out[0]);
	const struct divisor channels = divisor_of(width, rows * width);
	const struct divisor per_token = divisor_of(heads, rows);
	const bool wasserstein = attr->score == W2_WASSERSTEIN;
	const real eps = (real)attr->eps;
	const auto y = input<P>(c, 0), second = input<P>(c, 1), dbias = output_gradient<P>(c, 0);
	auto *bias = wide_output<P>(c, 0);
	const auto dy = input_gradient<P>(c, 0), dsecond = input_gradient<P>(c, 1);
	struct space m = { (char *)c->work, 0 };
	double *partial = take_work(&m, c->node, PASS_BACKWARD);

	if (dy)
		each_span(c, rows * width, width, all_of<P>(y, dy), [=] __device__(auto p) {
			const int64_t r = channels.quotient(p.first);
			const real f = wasserstein
					       ? inverse_temperature(second[per_token.remainder(r)], eps)
					       : (real)0.5;
			const real all = -2 * f * dbias[r];
			auto d = y[p];

			for (int k = 0; k < p.n; k++)
				d[k] *= all;
			dy.put(p, d);
		});
	if (dsecond && wasserstein)
		sum_heads(
			c, rows / heads, heads,
			[=] __device__(int64_t r) { return -bias[r] * dbias[r]; }, partial,
			[=] __device__(int64_t h, double sum) {
				dsecond.put(h, (real)sum * inverse_temperature(second[h], eps) *
						       sign(second[h]));
			});
	else if (dsecond)
		each(c, rows, [=] __device__(int64_t r) { dsecond.put(r, (real)-0.5 * dbias[r]); });
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, NULL, NULL, workspace_of<take_work> };
}
KERNELS(w2_key_bias, set)
