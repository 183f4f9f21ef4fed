#include "core/backend/cuda/cuda.cuh"

/* y_t = y_(t-1) + (x_t - y_(t-1)) / (t + 1); t counts from `past`, whose mean is in so_far. */
template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const int64_t *dim = c->node->in[0]->dim, length = dim[1], channels = dim[2];
	const struct run *run = run_of(c);
	const auto x = input<P>(c, 0);
	const auto y = output<P>(c, 0);
	real *so_far = wide_output<P>(c, 1);

	each(c, dim[0] * channels, [=] __device__(int64_t i) {
		const int64_t first = i / channels * length * channels + i % channels;
		const int64_t past = run->past;
		real mean = past > 0 ? so_far[i] : 0;

		for (int64_t t = 0; t < length; t++) {
			const int64_t at = first + t * channels;

			mean += (x[at] - mean) * (1 / (real)(past + t + 1));
			y[at] = mean;
		}
		if (so_far)
			so_far[i] = mean;
	});
}

/* y_t = sum_(s<=t) x_s / (t + 1), so dx_s = sum_(t>=s) dy_t / (t + 1) */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const int64_t *dim = c->node->in[0]->dim, length = dim[1], channels = dim[2];
	const auto dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0);

	each(c, dim[0] * channels, [=] __device__(int64_t i) {
		const int64_t first = i / channels * length * channels + i % channels;
		real later = 0;

		for (int64_t t = length - 1; t >= 0; t--) {
			const int64_t at = first + t * channels;

			later += (1 / (real)(t + 1)) * dy[at];
			dx.put(at, later);
		}
	});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P> };
}
KERNELS(running_mean, set)
