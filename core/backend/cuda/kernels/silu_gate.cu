/* silu_gate (SwiGLU): y = gate sigmoid(gate) x, elementwise.  Bound by memory bandwidth. */
#include "core/backend/cuda/primitives/fast_math.cuh"

template <typename P> static void forward(const struct call *c)
{
	const auto gate = input<P>(c, 0), x = input<P>(c, 1);
	const auto y = output<P>(c, 0);

	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, n, all_of<P>(gate, x, y), [=] __device__(auto p) {
		const auto g = gate[p], v = x[p];
		auto out = g;

		for (int k = 0; k < p.n; k++)
			out[k] = fast_sigmoid<P>(g[k]) * g[k] * v[k];
		y.put(p, out);
	});
}

/*
 * With s = sigmoid(gate) and d = dy s: dx = d gate, dgate = d x (1 + gate (1 - s)).  dgate may be
 * the memory of dy.
 */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const auto gate = input<P>(c, 0), x = input<P>(c, 1), dy = output_gradient<P>(c, 0);
	const auto dgate = input_gradient<P>(c, 0), dx = input_gradient<P>(c, 1);

	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, n, all_of<P>(gate, x, dy, dgate, dx), [=] __device__(auto p) {
		const auto g = gate[p], v = x[p], dy_vec = dy[p];
		auto gate_gradient = g, x_gradient = g;

		for (int k = 0; k < p.n; k++) {
			const real s = fast_sigmoid<P>(g[k]), d = dy_vec[k] * s;

			gate_gradient[k] = d * v[k] * (1 + g[k] * (1 - s));
			x_gradient[k] = d * g[k];
		}
		if (dgate)
			dgate.put(p, gate_gradient);
		if (dx)
			dx.put(p, x_gradient);
	});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P> };
}
KERNELS(silu_gate, set)
