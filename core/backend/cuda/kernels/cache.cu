#include "core/backend/cuda/tokens.cuh"

/* y[b, past + t] = x[b, t] */
template <typename P> static void forward(const struct call *c)
{
	const struct tokens x = tokens_of(c->node->in[0]), y = tokens_of(c->node->out[0]);

	const struct run *run = run_of(c);
	const auto from = input<P>(c, 0);
	const auto to = output<P>(c, 0);

	each(c, y.B * x.T * y.size, [=] __device__(int64_t i) {
		const int64_t b = i / (x.T * y.size), t = i / y.size % x.T, channel = i % y.size;

		to[(b * y.T + run->past + t) * y.pitch + channel] =
			from[(b * x.T + t) * x.pitch + channel];
	});
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, NULL };
}
KERNELS(cache, set)
