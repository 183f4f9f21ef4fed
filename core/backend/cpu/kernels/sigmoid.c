#include "core/backend/cpu/elementwise.h"

static void forward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real *x = c->in[0];
	real *y = c->out[0];

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK)
		map(fast_sigmoid, x + i, chunk_length(i, n), y + i);
}

/* y = sigmoid(x), so dx = dy y (1 - y) */
static void backward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const bool add = call_adds(c, 0);
	const real *y = c->out[0], *dy = c->dout[0];
	real *dx = c->din[0];

#pragma omp parallel for simd schedule(static) if (parallel : n > GRAIN)
	for (int64_t i = 0; i < n; i++)
		put(dx + i, add, dy[i] * (y[i] * (1 - y[i])));
}

KERNELS(sigmoid) = { .forward = forward, .backward = backward };
