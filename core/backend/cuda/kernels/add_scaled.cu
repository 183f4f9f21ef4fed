#include "core/backend/cuda/cuda.cuh"

template <typename P> static void forward(const struct call *c)
{
	const auto f = factor<P>(c, 2);
	const auto a = input<P>(c, 0), b = input<P>(c, 1);
	const auto y = output<P>(c, 0);

	each(c, count_of(c->node->in[0]),
	     [=] __device__(int64_t i) { y[i] = a[i] + f.get() * b[i]; });
}

/* y = a + f b */
template <typename P> static void backward(const struct call *c)
{
	const int64_t n = count_of(c->node->in[0]);
	const auto f = factor<P>(c, 2);
	const auto b = input<P>(c, 1), dy = output_gradient<P>(c, 0);
	const auto da = input_gradient<P>(c, 0), db = input_gradient<P>(c, 1);
	const auto df = input_gradient<P>(c, 2);

	if (df)
		sum_all(
			c, n, [=] __device__(int64_t i) { return dy[i] * b[i]; }, c->work,
			[=] __device__(double sum) { df.put(0, (typename P::real)sum); });
	each(c, n, [=] __device__(int64_t i) {
		const typename P::real d = dy[i];

		if (da && da.to.at != dy.at)
			da.put(i, d);
		if (db)
			db.put(i, f.get() * d);
	});
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	(void)threads;
	return pass == PASS_BACKWARD && n->in[2] ? SUM_WORK : 0;
}

template <typename P> static constexpr struct kernels plain()
{
	return { forward<P>, backward<P> };
}
template <typename P> static constexpr struct kernels learned()
{
	return { forward<P>, backward<P>, NULL, NULL, workspace<P> };
}
KERNELS(add_scaled, plain)
KERNELS(add_scaled_learned, learned)
