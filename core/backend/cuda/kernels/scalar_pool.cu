/* scalar_pool: y_i = s_i mean of the hidden channels of latent channel i (primitives/coupling.cuh).
 */
#include "core/backend/cuda/primitives/coupling.cuh"

/* The mean of the hidden channels of latent channel i, at token t. */
template <typename P>
static __device__ typename P::real mean(const struct coupling &k, const input_view<P> &x, int64_t t,
					int64_t i)
{
	typedef typename P::real R;
	R sum = 0;

	for (int64_t j = k.first(i); j < k.first(i + 1); j++)
		sum += x[t * k.hidden + j];
	return sum / (R)(k.first(i + 1) - k.first(i));
}

template <typename P> static void forward(const struct call *c)
{
	const struct coupling k = coupling_of(c->node, c->node->in[0], c->node->out[0]);
	const auto x = input<P>(c, 0), s = input<P>(c, 1);
	const auto y = output<P>(c, 0);

	each(c, k.tokens * k.latent, [=] __device__(int64_t item) {
		const int64_t i = item % k.latent;

		y[item] = s[i * k.scalars / k.latent] * mean(k, x, item / k.latent, i);
	});
}

/* y_i = s_i mean_i, so dx_c = s_i dy_i / width and ds_i = mean_i dy_i */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const struct coupling k = coupling_of(c->node, c->node->in[0], c->node->out[0]);
	const auto x = input<P>(c, 0), s = input<P>(c, 1), dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0), ds = input_gradient<P>(c, 1);
	struct scratch m = scratch_of(c);
	void *columns = m.alloc<real>(column_scratch(m.sms, k.tokens, k.latent));
	real *total = m.alloc<real>(k.latent);

	if (dx)
		each(c, k.tokens * k.hidden, [=] __device__(int64_t item) {
			const int64_t t = item / k.hidden;
			const int64_t i = item % k.hidden * k.latent / k.hidden;
			const real width = (real)(k.first(i + 1) - k.first(i));

			dx.put(item, s[i * k.scalars / k.latent] * dy[t * k.latent + i] / width);
		});
	if (!ds)
		return;
	sum_columns<real>(
		c, k.tokens, k.latent,
		[=] __device__(int64_t t, int64_t i) {
			return mean(k, x, t, i) * dy[t * k.latent + i];
		},
		columns, [=] __device__(int64_t i, real sum) { total[i] = sum; });
	sum_scalars<P>(c, total, k.latent, k.scalars, ds);
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int sms)
{
	return pass == PASS_BACKWARD
		       ? coupling_work<P>(sms, coupling_of(n, n->in[0], n->out[0]).tokens,
					  n->out[0])
		       : 0;
}

KERNELS(scalar_pool, forward<P>, backward<P>, NULL, NULL, workspace<P>)
