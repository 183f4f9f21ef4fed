#include "core/backend/cpu/coupling.h"

/* f_c = s[cH/F] */
static void spread(const struct coupling *k, const real *s, real *f)
{
	for (int64_t i = 0; i < k->hidden; i++)
		f[i] = s[i * k->scalars / k->hidden];
}

static void forward(const struct call *c)
{
	const struct coupling k = coupling_of(c->node, c->node->out[0], c->node->in[0]);
	const real *x = c->in[0];
	real *y = c->out[0], *f = c->work;

	spread(&k, c->in[1], f);
#pragma omp parallel for schedule(static) if (k.tokens * k.hidden > GRAIN)
	for (int64_t t = 0; t < k.tokens; t++) {
		for (int64_t i = 0; i < k.latent; i++) {
			const int64_t from = first_channel(&k, i), to = first_channel(&k, i + 1);

			put_scaled(y + t * k.hidden + from, false, x[t * k.latent + i], f + from,
				   to - from);
		}
	}
}

/* One token: y_c = f_c x_i, so dx_i = sum dy_c f_c and df_c = dy_c x_i. */
static void one_token_backward(const struct coupling *k, const real *x, const real *f,
			       const real *dy, real *dx, bool add, real *df)
{
	for (int64_t i = 0; i < k->latent; i++) {
		const int64_t from = first_channel(k, i), width = first_channel(k, i + 1) - from;

		if (dx)
			put(dx + i, add, dot(dy + from, f + from, width));
		put_scaled(df + from, true, x[i], dy + from, width);
	}
}

static void backward(const struct call *c)
{
	const struct coupling k = coupling_of(c->node, c->node->out[0], c->node->in[0]);
	real *f = c->work;

	spread(&k, c->in[1], f);
	coupling_backward(c, &k, f, one_token_backward, f + k.hidden);
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	const size_t parts = pass == PASS_BACKWARD ? 1 + (size_t)threads : 1;

	return parts * (size_t)n->out[0]->dim[2] * sizeof(real);
}

KERNELS(scalar_expand) = {
	.forward = forward,
	.backward = backward,
	.recompute = forward,
	.workspace = workspace,
};
