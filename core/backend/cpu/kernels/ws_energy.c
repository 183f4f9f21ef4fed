#include "core/backend/cpu/elementwise.h"

/* Tokens times heads. */
static real vectors(const struct node *n)
{
	return (real)(tensor_count(n->in[0]) / n->in[0]->dim[3]);
}

static void forward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real *z = c->in[0];
	real *energy = c->out[0];
	double *partial = c->work; /* one per chunk */

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK)
		partial[i / CHUNK] = dot(z + i, z + i, chunk_length(i, n));
	*energy = (real)sum_partial(partial, chunk_count(n)) / vectors(c->node);
}

static void backward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real *z = c->in[0], *weight = c->dout[0];
	const real f = 2 * *weight / vectors(c->node); /* energy = sum z^2 / vectors */
	real *dz = c->din[0];

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK)
		put_scaled(dz + i, call_adds(c, 0), f, z + i, chunk_length(i, n));
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	(void)threads;
	return pass == PASS_FORWARD ? (size_t)chunk_count(tensor_count(n->in[0])) * sizeof(double)
				    : 0;
}

KERNELS(ws_energy) = { .forward = forward, .backward = backward, .workspace = workspace };
