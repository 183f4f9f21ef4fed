#include "core/backend/cuda/cuda.cuh"

enum { X, INDEX, WEIGHT };

/* y_t = sum_n weight_tn x[index_tn] */
template <typename P> static void forward(const struct call *c)
{
	const int64_t *dim = c->node->out[0]->dim, T = dim[1], F = dim[2];
	const int64_t S = c->node->in[X]->dim[1], k = c->node->in[INDEX]->dim[2];
	const int32_t *index = (const int32_t *)c->in[INDEX];
	const auto x = input<P>(c, X), weight = input<P>(c, WEIGHT);
	const auto y = output<P>(c, 0);

	each(c, dim[0] * T * F, [=] __device__(int64_t i) {
		const int64_t t = i / F;
		typename P::real sum = 0;

		for (int64_t n = t * k; n < (t + 1) * k; n++)
			if (index[n] >= 0)
				sum += weight[n] * x[(t / T * S + index[n]) * F + i % F];
		y[i] = sum;
	});
}

/*
 * dx[index_tn] += weight_tn dy_t: a block serves one example and BLOCK channels, and takes the
 * tokens in their order.
 */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const int64_t *dim = c->node->in[X]->dim, B = dim[0], T = dim[1], F = dim[2];
	const int64_t k = c->node->in[INDEX]->dim[2], slices = (F + BLOCK - 1) / BLOCK;
	const int32_t *index = (const int32_t *)c->in[INDEX];
	const auto weight = input<P>(c, WEIGHT), dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, X);
	real *sums = dx.to.narrow ? (real *)c->work : wide_input_gradient<P>(c, X);

	if (dx.to.narrow || !dx.add)
		each(c, B * T * F, [=] __device__(int64_t i) { sums[i] = 0; });
	each_row(c, B * slices, [=] __device__(int64_t item) {
		const int64_t b = item / slices, channel = item % slices * BLOCK + threadIdx.x;

		if (channel >= F)
			return;
		for (int64_t t = b * T; t < (b + 1) * T; t++)
			for (int64_t n = t * k; n < (t + 1) * k; n++)
				if (index[n] >= 0)
					sums[(b * T + index[n]) * F + channel] +=
						weight[n] * dy[t * F + channel];
	});
	if (dx.to.narrow)
		each(c, B * T * F, [=] __device__(int64_t i) { dx.put(i, sums[i]); });
}

/* Many tokens add to one, so sums of a narrow gradient are made in real numbers first. */
template <typename P> static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	(void)threads;
	return pass == PASS_BACKWARD && is_narrow(n->in[X])
		       ? (size_t)tensor_count(n->in[X]) * sizeof(typename P::real)
		       : 0;
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, NULL, NULL, workspace<P> };
}
KERNELS(mix_topk, set)
