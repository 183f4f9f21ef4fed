#include "core/backend/cuda/cuda.cuh"
#include "core/backend/cuda/softplus.cuh"

/* wasserstein: y = (mean, sigma); overlap: y = mean / sqrt(sigma), logdet = sum log sigma */
template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const int64_t width = c->node->in[0]->dim[3] / 2;
	const int64_t rows = tensor_count(c->node->in[0]) / (2 * width);
	const real eps = (real)attr->eps;
	const auto x = input<P>(c, 0);
	const auto y = output<P>(c, 0);
	real *logdet = wide_output<P>(c, 1); /* a remake does not want logdet */

	if (attr->score == W2_WASSERSTEIN) {
		each(c, 2 * rows * width, [=] __device__(int64_t i) {
			y[i] = i % (2 * width) < width ? x[i] : softplus(x[i]) + eps;
		});
		return;
	}
	each(c, rows * width, [=] __device__(int64_t i) {
		const int64_t at = i / width * 2 * width + i % width;

		y[i] = x[at] / sqrt(softplus(x[at + width]) + eps);
	});
	if (logdet)
		each(c, rows, [=] __device__(int64_t r) {
			real sum = 0;

			for (int64_t i = (2 * r + 1) * width; i < 2 * (r + 1) * width; i++)
				sum += log(softplus(x[i]) + eps);
			logdet[r] = sum;
		});
}

/*
 * y = (mean, softplus(raw) + eps), or y = mean p, p = 1 / sqrt(sigma), and logdet:
 * one thread per pair of mean and raw.
 */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const struct w2_attr *attr = (const struct w2_attr *)c->node->attr;
	const int64_t width = c->node->in[0]->dim[3] / 2;
	const int64_t rows = tensor_count(c->node->in[0]) / (2 * width);
	const bool wasserstein = attr->score == W2_WASSERSTEIN;
	const real eps = (real)attr->eps;
	const auto x = input<P>(c, 0), dy = output_gradient<P>(c, 0);
	const real *dlogdet = wide_output_gradient<P>(c, 1);
	const auto dx = input_gradient<P>(c, 0);

	each(c, rows * width, [=] __device__(int64_t i) {
		const int64_t r = i / width, mean = 2 * r * width + i % width, raw = mean + width;
		const real slope = 1 / (1 + exp(-x[raw]));

		if (wasserstein) {
			const real d_mean = dy[mean], d_raw = dy[raw];

			dx.put(mean, d_mean);
			dx.put(raw, slope * d_raw);
		} else {
			const real p = 1 / sqrt(softplus(x[raw]) + eps), d = (dy ? dy[i] : 0) * p;
			const real all = dlogdet ? dlogdet[r] : 0;
			const real d_raw = slope * p * p * (all - (real)0.5 * d * x[mean]);

			dx.put(mean, d);
			dx.put(raw, d_raw);
		}
	});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P> };
}
KERNELS(w2_gaussian, set)
