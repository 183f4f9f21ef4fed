#include "core/backend/cuda/cuda.cuh"

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const int64_t *dim = c->node->in[0]->dim, length = dim[1], channels = dim[2];
	const auto x = input<P>(c, 0);
	const auto y = output<P>(c, 0);

	each(c, dim[0] * channels, [=] __device__(int64_t i) {
		const int64_t first = i / channels * length * channels + i % channels;
		real sum = 0;

		for (int64_t t = 0; t < length; t++)
			sum += x[first + t * channels];
		y[i] = sum * (1 / (real)length);
	});
}

/* y = sum_t x_t / T */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const int64_t *dim = c->node->in[0]->dim, length = dim[1], channels = dim[2];
	const auto dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0);

	each(c, dim[0] * length * channels, [=] __device__(int64_t i) {
		dx.put(i, (1 / (real)length) * dy[i / (length * channels) * channels + i % channels]);
	});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P> };
}
KERNELS(sequence_mean, set)
