#include "core/backend/cuda/cuda.cuh"
#include "core/backend/cuda/softplus.cuh"

template <typename P> static void forward(const struct call *c)
{
	const struct softplus_attr *attr = (const struct softplus_attr *)c->node->attr;
	const typename P::real eps = (typename P::real)attr->eps;
	const auto x = input<P>(c, 0);
	const auto y = output<P>(c, 0);

	each(c, count_of(c->node->in[0]), [=] __device__(int64_t i) { y[i] = softplus(x[i]) + eps; });
}

/* y = log(1 + exp(x)) + eps */
template <typename P> static void backward(const struct call *c)
{
	const auto x = input<P>(c, 0), dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0);

	each(c, count_of(c->node->in[0]),
	     [=] __device__(int64_t i) { dx.put(i, dy[i] / (1 + exp(-x[i]))); });
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P> };
}
KERNELS(softplus, set)
