#include "core/backend/cpu/elementwise.h"

static void forward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real f = factor(c, 1);
	const real *x = c->in[0];
	real *y = c->out[0];

#pragma omp parallel for simd schedule(static) if (parallel : n > GRAIN)
	for (int64_t i = 0; i < n; i++)
		y[i] = f * x[i];
}

static void backward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real f = factor(c, 1);
	const real *x = c->in[0], *dy = c->dout[0];
	real *dx = c->din[0], *df = c->din[1];
	double *partial = c->work; /* one per chunk */

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK) {
		const int64_t m = chunk_length(i, n);

		/* y = f x; dx last, it may be written over dy */
		if (df)
			partial[i / CHUNK] = dot(dy + i, x + i, m);
		if (dx)
			put_scaled(dx + i, call_adds(c, 0), f, dy + i, m);
	}
	if (df)
		put(df, call_adds(c, 1), (real)sum_partial(partial, chunk_count(n)));
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	(void)threads;
	return pass == PASS_BACKWARD && n->in[1]
		       ? (size_t)chunk_count(tensor_count(n->in[0])) * sizeof(double)
		       : 0;
}

KERNELS(scale) = { .forward = forward, .backward = backward };
KERNELS(scale_learned) = {
	.forward = forward,
	.backward = backward,
	.recompute = forward,
	.workspace = workspace,
};
