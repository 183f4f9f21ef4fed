/* scalar_expand: hidden channel c = s[cH/F] x[cL/F], from L latent to F hidden channels with H
 * scalars. */
#include "core/backend/cuda/primitives/coupling.cuh"

template <typename P> static void forward(const struct call *c)
{
	const struct coupling k = coupling_of(c->node, c->node->out[0], c->node->in[0]);
	const auto x = input<P>(c, 0), s = input<P>(c, 1);
	const auto y = output<P>(c, 0);

	each(c, k.tokens * k.hidden, [=] __device__(int64_t i) {
		const int64_t t = i / k.hidden, channel = i % k.hidden;

		y[i] = s[channel * k.scalars / k.hidden] *
		       x[t * k.latent + channel * k.latent / k.hidden];
	});
}

/* y_c = f_c x_i, so dx_i = sum dy_c f_c and df_c = dy_c x_i */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const struct coupling k = coupling_of(c->node, c->node->out[0], c->node->in[0]);
	const auto x = input<P>(c, 0), s = input<P>(c, 1), dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0), ds = input_gradient<P>(c, 1);
	struct scratch m = scratch_of(c);
	void *columns = m.alloc<real>(column_scratch(m.sms, k.tokens, k.hidden));
	real *df = m.alloc<real>(k.hidden);

	if (dx)
		each(c, k.tokens * k.latent, [=] __device__(int64_t i) {
			const int64_t t = i / k.latent, latent = i % k.latent;
			real sum = 0;

			for (int64_t j = k.first(latent); j < k.first(latent + 1); j++)
				sum += dy[t * k.hidden + j] * s[j * k.scalars / k.hidden];
			dx.put(i, sum);
		});
	if (!ds)
		return;
	sum_columns<real>(
		c, k.tokens, k.hidden,
		[=] __device__(int64_t t, int64_t channel) {
			return dy[t * k.hidden + channel] *
			       x[t * k.latent + channel * k.latent / k.hidden];
		},
		columns, [=] __device__(int64_t channel, real sum) { df[channel] = sum; });
	sum_scalars<P>(c, df, k.hidden, k.scalars, ds);
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int sms)
{
	return pass == PASS_BACKWARD
		       ? coupling_work<P>(sms, coupling_of(n, n->out[0], n->in[0]).tokens,
					  n->out[0])
		       : 0;
}

KERNELS(scalar_expand, forward<P>, backward<P>, forward<P>, NULL, workspace<P>)
