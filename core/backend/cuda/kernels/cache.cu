/*
 * cache: y[b, past + t] = x[b, t] for up to CACHE_MOST tensors in one launch.
 * The number of past tokens is read on the device, so a decoding step can be captured.
 */
#include "core/backend/cuda/primitives/tokens.cuh"

/* The tensors of a call, whose elements are numbered consecutively. */
template <typename P> struct cached_tensors {
	struct {
		int64_t before; /* elements of the tensors in front of this t */
		struct tokens x, y;
		input_view<P> from;
		output_view<P> to;
	} list[CACHE_MOST];
	int64_t total;
};

template <typename P> static cached_tensors<P> cached_tensors_of(const struct call *c)
{
	cached_tensors<P> k = {};

	for (int i = 0; i < CACHE_MOST; i++) {
		k.list[i].before = k.total;
		if (i >= c->node->n_in)
			continue;
		k.list[i].x = tokens_of(c->node->in[i]);
		k.list[i].y = tokens_of(c->node->out[i]);
		k.list[i].from = input<P>(c, i);
		k.list[i].to = output<P>(c, i);
		k.total += tensor_count(c->node->in[i]);
	}
	return k;
}

/* y[b, past + t] = x[b, t] */
template <typename P> static void forward(const struct call *c)
{
	const cached_tensors<P> k = cached_tensors_of<P>(c);
	const struct run *run = run_of(c);

	each(c, k.total, [=] __device__(int64_t at) {
		const auto &tensor = at >= k.list[2].before   ? k.list[2]
				     : at >= k.list[1].before ? k.list[1]
							      : k.list[0];
		const struct tokens &x = tensor.x, &y = tensor.y;
		const int64_t i = at - tensor.before, b = i / (x.T * y.size), t = i / y.size % x.T;

		tensor.to[(b * y.T + run->past + t) * y.pitch + i % y.size] =
			tensor.from[(b * x.T + t) * x.pitch + i % y.size];
	});
}

KERNELS(cache, forward<P>, NULL)
