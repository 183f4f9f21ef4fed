#include "core/backend/cpu/elementwise.h"

static void forward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real *a = c->in[0], *b = c->in[1];
	real *y = c->out[0];

#pragma omp parallel for simd schedule(static) if (parallel : n > GRAIN)
	for (int64_t i = 0; i < n; i++)
		y[i] = a[i] * b[i];
}

static void backward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real *a = c->in[0], *b = c->in[1], *dy = c->dout[0];
	real *da = c->din[0], *db = c->din[1];

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK) {
		const int64_t m = chunk_length(i, n);
		real copy[CHUNK];
		const real *d = keep_chunk(dy + i, da ? da + i : NULL, m, copy);

		/* y = a b */
		if (da)
			put_product(da + i, call_adds(c, 0), d, b + i, m);
		if (db)
			put_product(db + i, call_adds(c, 1), d, a + i, m);
	}
}

KERNELS(multiply) = { .forward = forward, .backward = backward, .recompute = forward };
