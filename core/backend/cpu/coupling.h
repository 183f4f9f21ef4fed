/*
 * coupling - which hidden channels belong to a latent channel, for the
 * kernels that couple by scalars.
 *
 * Latent channel i of `latent` owns the hidden channels c of `hidden` with
 * floor(c latent / hidden) = i, which are neighbours.
 */
#ifndef CPU_COUPLING_H
#define CPU_COUPLING_H

#include "core/backend/cpu/elementwise.h"

struct coupling {
	int64_t tokens, hidden, latent, scalars;
};

static inline struct coupling coupling_of(const struct node *n, const struct tensor *hidden,
					  const struct tensor *latent)
{
	return (struct coupling){
		.tokens = hidden->dim[0] * hidden->dim[1],
		.hidden = hidden->dim[2],
		.latent = latent->dim[2],
		.scalars = n->in[1]->dim[0],
	};
}

/* The first hidden channel of latent channel i; its last one is before that of i + 1. */
static inline int64_t first_channel(const struct coupling *k, int64_t i)
{
	return (i * k->hidden + k->latent - 1) / k->latent;
}

/*
 * ds[iS/n] = sum over threads and over i of partial [threads,n]: the gradient
 * of S scalars, each of which serves a stretch of n channels.
 */
static inline void sum_scalars(const real *partial, int threads, int64_t n, int64_t scalars,
			       real *ds, bool add)
{
	for (int64_t h = 0; h < scalars; h++) {
		const int64_t first = (h * n + scalars - 1) / scalars;
		const int64_t last = ((h + 1) * n + scalars - 1) / scalars;
		real total = 0;

		for (int t = 0; t < threads; t++)
			total += sum(partial + t * n + first, last - first);
		put(ds + h, add, total);
	}
}

/*
 * One token: writes dx (unless it is NULL), and adds this token's share to the gradients of the
 * scalars, one for every channel of dy.
 */
typedef void (*token_gradient)(const struct coupling *k, const real *x, const real *s,
			       const real *dy, real *dx, bool add, real *ds);

/* All tokens; `partial` has room for [threads, channels of dy]. */
static inline void coupling_backward(const struct call *c, const struct coupling *k, const real *s,
				     token_gradient gradient, real *partial)
{
	const int64_t in = c->node->in[0]->dim[2], out = c->node->out[0]->dim[2];
	const int threads = omp_get_max_threads();
	const real *x = c->in[0], *dy = c->dout[0];
	real *dx = c->din[0], *ds = c->din[1];

	memset(partial, 0, (size_t)threads * (size_t)out * sizeof(*partial));
#pragma omp parallel for schedule(static) if (k->tokens * k->hidden > GRAIN)
	for (int64_t t = 0; t < k->tokens; t++)
		gradient(k, x + t * in, s, dy + t * out, dx ? dx + t * in : NULL, call_adds(c, 0),
			 partial + omp_get_thread_num() * out);
	if (ds)
		sum_scalars(partial, threads, out, k->scalars, ds, call_adds(c, 1));
}

#endif
