#include "core/backend/cuda/cuda.cuh"

template <typename P> static void forward(const struct call *c)
{
	const auto f = factor<P>(c, 2);
	const auto a = input<P>(c, 0), b = input<P>(c, 1);
	const auto y = output<P>(c, 0);

	const int64_t n = count_of(c->node->in[0]);

	each_span(c, n, n, all_of<P>(a, b, y), [=] __device__(auto p) {
		const typename P::real by = f.get();
		const auto u = a[p], v = b[p];
		auto sum = u;

		for (int k = 0; k < p.n; k++)
			sum[k] += by * v[k];
		y.put(p, sum);
	});
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
		sum_spans(
			c, n, all_of<P>(dy, b),
			[=] __device__(auto p) {
				const auto d = dy[p], v = b[p];
				typename P::real sum = 0;

#pragma unroll
				for (int k = 0; k < p.n; k++)
					sum += d[k] * v[k];
				return sum;
			},
			c->work, [=] __device__(double sum) { df.put(0, (typename P::real)sum); });
	each_span(c, n, n, all_of<P>(dy, da, db), [=] __device__(auto p) {
		const typename P::real by = f.get();
		auto d = dy[p];

		if (da && da.to.at != dy.at)
			da.put(p, d);
		for (int k = 0; k < p.n; k++)
			d[k] *= by;
		if (db)
			db.put(p, d);
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
