/* multiply: y = a b, elementwise.  Bound by memory bandwidth. */
#include "core/backend/cuda/primitives/kernel.cuh"

template <typename P> static void forward(const struct call *c)
{
	const auto a = input<P>(c, 0), b = input<P>(c, 1);
	const auto y = output<P>(c, 0);

	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, n, all_of<P>(a, b, y), [=] __device__(auto p) {
		const auto u = a[p], v = b[p];
		auto product = u;

		for (int k = 0; k < p.n; k++)
			product[k] *= v[k];
		y.put(p, product);
	});
}

/* da = dy b, db = dy a.  da may be the memory of dy, and db may add to da. */
template <typename P> static void backward(const struct call *c)
{
	const auto a = input<P>(c, 0), b = input<P>(c, 1), dy = output_gradient<P>(c, 0);
	const auto da = input_gradient<P>(c, 0), db = input_gradient<P>(c, 1);

	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, n, all_of<P>(a, b, dy, da, db), [=] __device__(auto p) {
		const auto d = dy[p], u = a[p], v = b[p];
		auto left = d, right = d;

		for (int k = 0; k < p.n; k++) {
			left[k] *= v[k];
			right[k] *= u[k];
		}
		if (da)
			da.put(p, left);
		if (db)
			db.put(p, right);
	});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P> };
}
KERNELS(multiply, set)
