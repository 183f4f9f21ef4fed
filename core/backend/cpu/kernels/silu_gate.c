#include "core/backend/cpu/elementwise.h"

static const real LOG2_E = (real)1.4426950408889634;

static inline real sigmoid(real x)
{
	return 1 / one_plus_exp2(-LOG2_E * x);
}

/* y = gate s x, s = sigmoid(gate) */
static void forward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real *gate = c->in[0], *x = c->in[1];
	real *y = c->out[0];

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK) {
		const int64_t m = chunk_length(i, n);
		real s[CHUNK];

		map(sigmoid, gate + i, m, s);
		put_product(s, false, s, gate + i, m);
		put_product(y + i, false, s, x + i, m);
	}
}

/* With d = dy s: dx = d gate, dgate = d x (1 + gate (1 - s)); they replace s and d. */
static void gradients(const real *restrict gate, const real *restrict x, const real *restrict dy,
		      int64_t n, real *restrict s, real *restrict dx)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		real d = dy[i] * s[i];

		s[i] = d * x[i] * (1 + gate[i] * (1 - s[i]));
		dx[i] = d * gate[i];
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
		real s[CHUNK], d[CHUNK];

		/* dgate may be written over dy, and dx may add to dgate */
		map(sigmoid, gate + i, m, s);
		gradients(gate + i, x + i, dy + i, m, s, d);
		if (dgate)
			put_scaled(dgate + i, call_adds(c, 0), 1, s, m);
		if (dx)
			put_scaled(dx + i, call_adds(c, 1), 1, d, m);
	}
}

KERNELS(silu_gate) = { .forward = forward, .backward = backward, .recompute = forward };
