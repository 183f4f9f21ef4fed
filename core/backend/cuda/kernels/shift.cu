/*
 * shift: y_t = x_(t-s).  A thread takes one channel of every s-th token, so it reads each place of
 * the kept tokens before it writes there.  Memory bandwidth bounds it.
 */
#include "core/backend/cuda/primitives/tokens.cuh"

template <typename P> static void forward(const struct call *c)
{
	typedef typename P::real real;
	const struct shift_attr attr = *(const struct shift_attr *)c->node->attr;
	const struct tokens xs = tokens_of(c->node->in[0]);
	const int64_t s = attr.distance, threads = s < xs.T ? s : xs.T;
	const auto x = input<P>(c, 0);
	const auto y = output<P>(c, 0),
		   kept = c->node->n_out > 1 ? output<P>(c, 1) : output_view<P>{};
	const struct run *run = run_of(c);

	each(c, xs.B * threads * xs.size, [=] __device__(int64_t i) {
		const int64_t channel = i % xs.size, first = i / xs.size % threads,
			      b = i / (xs.size * threads);
		const int64_t position = kept ? run->past + first : first;
		const int64_t place = (b * s + position % s) * xs.size + channel;
		real value = position >= s ? (real)kept[place] : (real)attr.fill;

		for (int64_t t = first; t < xs.T; t += s) {
			y[(b * xs.T + t) * xs.size + channel] = value;
			value = x[(b * xs.T + t) * xs.pitch + channel];
		}
		if (kept)
			kept[place] = value;
	});
}

/* y_(t+s) = x_t */
template <typename P> static void backward(const struct call *c)
{
	const int64_t s = ((const struct shift_attr *)c->node->attr)->distance;
	const struct tokens xs = tokens_of(c->node->in[0]);
	const auto dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0);

	each(c, xs.B * xs.T * xs.size, [=] __device__(int64_t i) {
		const int64_t row = i / xs.size, channel = i % xs.size;

		dx.put(row * xs.pitch + channel,
		       row % xs.T + s < xs.T ? dy[(row + s) * xs.size + channel] : 0);
	});
}

KERNELS(shift, forward<P>, backward<P>)
