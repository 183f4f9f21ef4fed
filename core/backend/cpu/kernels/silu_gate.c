#include "core/backend/cpu/vector.h"

static void forward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real *gate = c->in[0], *x = c->in[1];
	real *y = c->out[0];

#pragma omp parallel for simd schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i++)
		y[i] = gate[i] * x[i] / (1 + fast_exp(-gate[i]));
}

/* silu(gate) and its derivative: u s and s (1 + u (1 - s)), s = sigmoid(u) */
static void silu(const real *restrict gate, int64_t n, real *restrict value, real *restrict slope)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		real s = fast_sigmoid(gate[i]);

		value[i] = gate[i] * s;
		slope[i] = s * (1 + gate[i] * (1 - s));
	}
}

static void backward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real *gate = c->in[0], *x = c->in[1], *dy = c->dout[0];
	real *dgate = c->din[0], *dx = c->din[1];

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK) {
		const int64_t m = chunk_length(i, n);
		real value[CHUNK], slope[CHUNK];

		/* y = silu(gate) x; dgate may be written over dy, and dx may add to dgate */
		silu(gate + i, m, value, slope);
		put_product(value, false, value, dy + i, m);
		put_product(slope, false, slope, dy + i, m);
		if (dgate)
			put_product(dgate + i, call_adds(c, 0), slope, x + i, m);
		if (dx)
			put_scaled(dx + i, call_adds(c, 1), 1, value, m);
	}
}

KERNELS(silu_gate) = { .forward = forward, .backward = backward, .remake = forward };
