/* scale: y = f x with a constant or learned f, elementwise.  Bound by memory bandwidth. */
#include "core/backend/cuda/primitives/kernel.cuh"

template <typename P> static void forward(const struct call *c)
{
	const auto f = factor<P>(c, 1);
	const auto x = input<P>(c, 0);
	const auto y = output<P>(c, 0);

	const int64_t n = count_of(c->node->in[0]);

	each_vec(c, n, n, all_of<P>(x, y), [=] __device__(auto p) {
		const typename P::real by = f.get();
		auto v = x[p];

		for (int k = 0; k < p.n; k++)
			v[k] *= by;
		y.put(p, v);
	});
}

/* dx = f dy, df = sum dy x.  dx comes last, because it may be the memory of dy. */
template <typename P> static void backward(const struct call *c)
{
	const int64_t n = count_of(c->node->in[0]);
	const auto f = factor<P>(c, 1);
	const auto x = input<P>(c, 0), dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0), df = input_gradient<P>(c, 1);

	if (df)
		sum_all(
			c, n, [=] __device__(int64_t i) { return dy[i] * x[i]; }, c->work,
			[=] __device__(double sum) { df.put(0, (typename P::real)sum); });
	if (dx)
		each_vec(c, n, n, all_of<P>(dy, dx), [=] __device__(auto p) {
			const typename P::real by = f.get();
			auto d = dy[p];

			for (int k = 0; k < p.n; k++)
				d[k] *= by;
			dx.put(p, d);
		});
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	(void)threads;
	return pass == PASS_BACKWARD && n->in[1] ? SUM_WORK : 0;
}

template <typename P> static constexpr struct kernels plain()
{
	return { forward<P>, backward<P> };
}
template <typename P> static constexpr struct kernels learned()
{
	return { forward<P>, backward<P>, forward<P>, NULL, workspace<P> };
}
KERNELS(scale, plain)
KERNELS(scale_learned, learned)
