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

#endif
