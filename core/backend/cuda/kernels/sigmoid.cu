/* sigmoid: y = 1 / (1 + exp(-x)), elementwise.  Bound by memory bandwidth. */
#include "core/backend/cuda/primitives/fast_math.cuh"

template <typename P> static void forward(const struct call *c)
{
	const auto x = input<P>(c, 0);
	const auto y = output<P>(c, 0);

	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, n, all_of<P>(x, y), [=] __device__(auto p) {
		auto v = x[p];

		for (int k = 0; k < p.n; k++)
			v[k] = fast_sigmoid<P>(v[k]);
		y.put(p, v);
	});
}

/* y = sigmoid(x), so dx = dy y (1 - y) */
template <typename P> static void backward(const struct call *c)
{
	const input_view<P> y = output<P>(c, 0);
	const auto dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0);

	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, n, all_of<P>(y, dy, dx), [=] __device__(auto p) {
		const auto v = y[p];
		auto d = dy[p];

		for (int k = 0; k < p.n; k++)
			d[k] *= v[k] * (1 - v[k]);
		dx.put(p, d);
	});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P> };
}
KERNELS(sigmoid, set)
