#include "core/backend/cpu/elementwise.h"

static void forward(const struct call *c)
{
	const int64_t *dim = c->node->in[0]->dim, length = dim[1], channels = dim[2];
	const real *x = c->in[0];
	real *y = c->out[0];

#pragma omp parallel for schedule(static) if (dim[0] * length * channels > GRAIN)
	for (int64_t b = 0; b < dim[0]; b++) {
		for (int64_t t = 0; t < length; t++)
			put_scaled(y + b * channels, t > 0, 1, x + (b * length + t) * channels,
				   channels);
		put_scaled(y + b * channels, false, 1 / (real)length, y + b * channels, channels);
	}
}

static void backward(const struct call *c)
{
	const int64_t *dim = c->node->in[0]->dim, length = dim[1], channels = dim[2];
	const real *dy = c->dout[0];
	real *dx = c->din[0];

#pragma omp parallel for schedule(static) if (dim[0] * length * channels > GRAIN)
	for (int64_t row = 0; row < dim[0] * length; row++) /* y = sum_t x_t / T */
		put_scaled(dx + row * channels, call_adds(c, 0), 1 / (real)length,
			   dy + row / length * channels, channels);
}

KERNELS(sequence_mean) = { .forward = forward, .backward = backward };
