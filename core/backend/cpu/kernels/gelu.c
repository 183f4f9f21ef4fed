#include "core/backend/cpu/vector.h"

/* (1 + tanh(u)) / 2 = sigmoid(2u), so y = x s, s = sigmoid(v), v = x (LINEAR + CUBIC x^2). */
static const real LINEAR = (real)1.5957691216057307117; /* 2 sqrt(2/pi) */
static const real CUBIC = (real)0.071354816272600245775; /* 2 sqrt(2/pi) 0.044715 */

static void forward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real *x = c->in[0];
	real *y = c->out[0];

#pragma omp parallel for simd schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i++)
		y[i] = x[i] / (1 + fast_exp(-x[i] * (LINEAR + CUBIC * x[i] * x[i])));
}

/* y = x s, so dy/dx = s + x s (1 - s) dv/dx */
static void slopes(const real *restrict x, int64_t n, real *restrict slope)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		real square = x[i] * x[i];
		real s = fast_sigmoid(x[i] * (LINEAR + CUBIC * square));

		slope[i] = s + s * (1 - s) * x[i] * (LINEAR + 3 * CUBIC * square);
	}
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

		slopes(x + i, m, slope);
		put_product(dx + i, call_adds(c, 0), slope, dy + i, m);
	}
}

KERNELS(gelu) = { .forward = forward, .backward = backward, .remake = forward };
