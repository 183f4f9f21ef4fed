#include "core/backend/cpu/elementwise.h"

static void forward(const struct call *c)
{
	const struct softplus_attr *attr = c->node->attr;
	const int64_t n = tensor_count(c->node->in[0]);
	const real eps = (real)attr->eps;
	const real *x = c->in[0];
	real *y = c->out[0];

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK)
		softplus_row(x + i, chunk_length(i, n), eps, y + i);
}

static void backward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real *x = c->in[0], *dy = c->dout[0];
	real *dx = c->din[0];

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK) {
		const int64_t m = chunk_length(i, n);
		real slope[CHUNK];

		/* y = log(1 + exp(x)) + eps */
		map(fast_sigmoid, x + i, m, slope);
		put_product(dx + i, call_adds(c, 0), slope, dy + i, m);
	}
}

KERNELS(softplus) = { .forward = forward, .backward = backward, .recompute = forward };
