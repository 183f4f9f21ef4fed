#include "core/backend/cuda/cuda.cuh"

template <typename P> static void forward(const struct call *c)
{
	const auto a = input<P>(c, 0), b = input<P>(c, 1);
	const auto y = output<P>(c, 0);

	each(c, count_of(c->node->in[0]), [=] __device__(int64_t i) { y[i] = a[i] * b[i]; });
}

/* y = a b; da may be written over dy, and db may add to da */
template <typename P> static void backward(const struct call *c)
{
	const auto a = input<P>(c, 0), b = input<P>(c, 1), dy = output_gradient<P>(c, 0);
	const auto da = input_gradient<P>(c, 0), db = input_gradient<P>(c, 1);

	each(c, count_of(c->node->in[0]), [=] __device__(int64_t i) {
		const typename P::real d = dy[i];

		if (da)
			da.put(i, d * b[i]);
		if (db)
			db.put(i, d * a[i]);
	});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, forward<P> };
}
KERNELS(multiply, set)
