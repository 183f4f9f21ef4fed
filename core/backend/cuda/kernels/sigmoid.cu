#include "core/backend/cuda/cuda.cuh"

template <typename P> static void forward(const struct call *c)
{
	const auto x = input<P>(c, 0);
	const auto y = output<P>(c, 0);

	each(c, count_of(c->node->in[0]), [=] __device__(int64_t i) { y[i] = 1 / (1 + exp(-x[i])); });
}

/* y = sigmoid(x), so dx = dy y (1 - y) */
template <typename P> static void backward(const struct call *c)
{
	const struct numbers<P> y = output<P>(c, 0);
	const auto dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0);

	each(c, count_of(c->node->in[0]),
	     [=] __device__(int64_t i) { dx.put(i, dy[i] * (y[i] * (1 - y[i]))); });
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P> };
}
KERNELS(sigmoid, set)
