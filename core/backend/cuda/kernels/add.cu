/* add: y = a + b, elementwise.  Bound by memory bandwidth. */
#include "core/backend/cuda/primitives/kernel.cuh"

template <typename P> static void forward(const struct call *c)
{
	const auto a = input<P>(c, 0), b = input<P>(c, 1);
	const auto y = output<P>(c, 0);

	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, n, all_of<P>(a, b, y), [=] __device__(auto p) {
		const auto u = a[p], v = b[p];
		auto sum = u;

		for (int k = 0; k < p.n; k++)
			sum[k] += v[k];
		y.put(p, sum);
	});
}

/* y = a + b, so da = db = dy.  da may be the memory of dy. */
template <typename P> static void backward(const struct call *c)
{
	const auto dy = output_gradient<P>(c, 0);
	const auto da = input_gradient<P>(c, 0), db = input_gradient<P>(c, 1);

	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, n, all_of<P>(dy, da, db), [=] __device__(auto p) {
		const auto d = dy[p];

		if (da && (da.add || da.to.at != dy.at))
			da.put(p, d);
		if (db)
			db.put(p, d);
	});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P> };
}
KERNELS(add, set)
