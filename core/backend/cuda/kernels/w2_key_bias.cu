#include "core/backend/cuda/w2.cuh"

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const int64_t heads = c->node->in[0]->dim[2], width = c->node->in[0]->dim[3];
	const bool wasserstein = attr->score == W2_WASSERSTEIN;
	const real eps = (real)attr->eps;
	const auto y = input<P>(c, 0), second = input<P>(c, 1);
	auto *bias = wide_output<P>(c, 0);

	each(c, count_of(c->node->out[0]), [=] __device__(int64_t r) {
		real square = 0;

		for (int64_t i = r * width; i < (r + 1) * width; i++)
			square += y[i] * y[i];
		bias[r] = wasserstein ? -square * inverse_temperature(second[r % heads], eps)
				      : (real)-0.5 * (square + second[r]);
	});
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
	const bool wasserstein = attr->score == W2_WASSERSTEIN;
	const real eps = (real)attr->eps;
	const auto y = input<P>(c, 0), second = input<P>(c, 1), dbias = output_gradient<P>(c, 0);
	auto *bias = wide_output<P>(c, 0);
	const auto dy = input_gradient<P>(c, 0), dsecond = input_gradient<P>(c, 1);

	if (dy)
		each(c, rows * width, [=] __device__(int64_t i) {
			const int64_t r = i / width;
			const real f = wasserstein ? inverse_temperature(second[r % heads], eps)
						   : (real)0.5;

			dy.put(i, -2 * f * dbias[r] * y[i]);
		});
	if (dsecond && wasserstein)
		sum_heads(
			c, rows, heads, [=] __device__(int64_t r) { return -bias[r] * dbias[r]; },
			[=] __device__(int64_t h, double sum) {
				dsecond.put(h, (real)sum * inverse_temperature(second[h], eps) *
						       sign(second[h]));
			});
	else if (dsecond)
		each(c, rows, [=] __device__(int64_t r) { dsecond.put(r, (real)-0.5 * dbias[r]); });
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P> };
}
KERNELS(w2_key_bias, set)
