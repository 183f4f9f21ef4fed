#include "core/backend/cpu/elementwise.h"
#include "core/backend/cpu/tokens.h"

#define COLUMNS 64 /* handled together: 4 cache lines of floats per position */

/*
 * y_t = y_(t-1) + (x_t - y_(t-1)) / (t + 1), columns [0, width) of rows that are `pitch` apart in x
 * and `stride` in y; t counts from `past`, whose mean is kept in so_far (or NULL).
 */
static void running_mean(const real *x, int64_t pitch, int64_t past, int64_t length, int64_t stride,
			 int64_t width, real *y, real *so_far)
{
	real mean[COLUMNS] = { 0 };

	if (past > 0)
		memcpy(mean, so_far, (size_t)width * sizeof(real));

	for (int64_t t = 0; t < length; t++) {
		const real weight = 1 / (real)(past + t + 1);

#pragma omp simd
		for (int64_t i = 0; i < width; i++) {
			mean[i] += (x[t * pitch + i] - mean[i]) * weight;
			y[t * stride + i] = mean[i];
		}
	}
	if (so_far)
		memcpy(so_far, mean, (size_t)width * sizeof(real));
}

/*
 * y_t = sum_(s<=t) x_s / (t + 1), so dx_s = sum_(t>=s) dy_t / (t + 1).  Rows are `stride` apart in
 * dy, and `pitch` in dx.
 */
static void running_gradient(const real *dy, int64_t length, int64_t stride, int64_t width,
			     real *dx, int64_t pitch, bool add)
{
	real later[COLUMNS] = { 0 };

	for (int64_t t = length - 1; t >= 0; t--) {
		put_scaled(later, true, 1 / (real)(t + 1), dy + t * stride, width);
		put_scaled(dx + t * pitch, add, 1, later, width);
	}
}

static void forward(const struct call *c)
{
	const int64_t *dim = c->node->in[0]->dim, length = dim[1], channels = dim[2];
	const int64_t pitch = tokens_of(c->node->in[0]).pitch;
	const real *x = c->in[0];
	real *y = c->out[0], *so_far = c->out[1];

#pragma omp parallel for collapse(2) schedule(static) if (dim[0] * length * channels > GRAIN)
	for (int64_t b = 0; b < dim[0]; b++) {
		for (int64_t i = 0; i < channels; i += COLUMNS) {
			const int64_t at = b * length * channels + i,
				      place = b * length * pitch + i;
			const int64_t width = channels - i < COLUMNS ? channels - i : COLUMNS;

			running_mean(x + place, pitch, c->run->past, length, channels, width,
				     y + at, so_far ? so_far + b * channels + i : NULL);
		}
	}
}

static void backward(const struct call *c)
{
	const int64_t *dim = c->node->in[0]->dim, length = dim[1], channels = dim[2];
	const int64_t pitch = tokens_of(c->node->in[0]).pitch;
	const real *dy = c->dout[0];
	real *dx = c->din[0];

#pragma omp parallel for collapse(2) schedule(static) if (dim[0] * length * channels > GRAIN)
	for (int64_t b = 0; b < dim[0]; b++) {
		for (int64_t i = 0; i < channels; i += COLUMNS) {
			const int64_t at = b * length * channels + i,
				      place = b * length * pitch + i;
			const int64_t width = channels - i < COLUMNS ? channels - i : COLUMNS;

			running_gradient(dy + at, length, channels, width, dx + place, pitch,
					 call_adds(c, 0));
		}
	}
}

KERNELS(running_mean) = { .forward = forward, .backward = backward };
