/* gelu, elementwise: the formula is in primitives/gelu.cuh.  Bound by memory bandwidth. */
#include "core/backend/cuda/primitives/gelu.cuh"

template <typename P> static void forward(const struct call *c)
{
	const auto x = input<P>(c, 0);
	const auto y = output<P>(c, 0);

	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, n, all_of<P>(x, y), [=] __device__(auto p) {
		auto v = x[p];

		for (int k = 0; k < p.n; k++)
			v[k] *= gelu_factor<P>(v[k]);
		y.put(p, v);
	});
}

template <typename P> static void backward(const struct call *c)
{
	const auto x = input<P>(c, 0), dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0);

	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, n, all_of<P>(x, dy, dx), [=] __device__(auto p) {
		const auto v = x[p];
		auto d = dy[p];

		for (int k = 0; k < p.n; k++)
			d[k] *= gelu_slope(v[k], gelu_factor<P>(v[k]));
		dx.put(p, d);
	});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P> };
}
KERNELS(gelu, set)
