#include "core/backend/cpu/coupling.h"

static void forward(const struct call *c)
{
	const struct coupling k = coupling_of(c->node, c->node->in[0], c->node->out[0]);
	const real *x = c->in[0], *s = c->in[1];
	real *y = c->out[0];

#pragma omp parallel for schedule(static) if (k.tokens * k.hidden > GRAIN)
	for (int64_t t = 0; t < k.tokens; t++) {
		for (int64_t i = 0; i < k.latent; i++) {
			const int64_t from = first_channel(&k, i);
			const int64_t width = first_channel(&k, i + 1) - from;

			y[t * k.latent + i] = s[i * k.scalars / k.latent] *
					      sum(x + t * k.hidden + from, width) / (real)width;
		}
	}
}

/* One token: y_i = s_i mean_i, so dx_c = s_i dy_i / width and ds_i = mean_i dy_i. */
static void one_token_backward(const struct coupling *k, const real *x, const real *s,
			       const real *dy, real *dx, bool add, real *ds)
{
	for (int64_t i = 0; i < k->latent; i++) {
		const int64_t from = first_channel(k, i), width = first_channel(k, i + 1) - from;
		const real d = s[i * k->scalars / k->latent] * dy[i] / (real)width;

		ds[i] += sum(x + from, width) / (real)width * dy[i];
		for (int64_t j = from; dx && j < from + width; j++)
			put(dx + j, add, d);
	}
}

static void backward(const struct call *c)
{
	const struct coupling k = coupling_of(c->node, c->node->in[0], c->node->out[0]);

	coupling_backward(c, &k, c->in[1], one_token_backward, c->work);
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	return pass == PASS_BACKWARD ? (size_t)threads * (size_t)n->out[0]->dim[2] * sizeof(real)
				     : 0;
}

KERNELS(scalar_pool) = { .forward = forward, .backward = backward, .workspace = workspace };
