#include "core/backend/cuda/cuda.cuh"

template <typename R> static __device__ R sigmoid(R x)
{
	return 1 / (1 + exp(-x));
}

/* y = gate s x, s = sigmoid(gate) */
template <typename P> static void forward(const struct call *c)
{
	const auto gate = input<P>(c, 0), x = input<P>(c, 1);
	const auto y = output<P>(c, 0);

	each(c, count_of(c->node->in[0]),
	     [=] __device__(int64_t i) { y[i] = sigmoid(gate[i]) * gate[i] * x[i]; });
}

/* With d = dy s: dx = d gate, dgate = d x (1 + gate (1 - s)).  dgate may be written over dy. */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const auto gate = input<P>(c, 0), x = input<P>(c, 1), dy = output_gradient<P>(c, 0);
	const auto dgate = input_gradient<P>(c, 0), dx = input_gradient<P>(c, 1);

	each(c, count_of(c->node->in[0]), [=] __device__(int64_t i) {
		const real s = sigmoid(gate[i]), d = dy[i] * s;

		if (dgate)
			dgate.put(i, d * x[i] * (1 + gate[i] * (1 - s)));
		if (dx)
			dx.put(i, d * gate[i]);
	});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P> };
}
KERNELS(silu_gate, set)
