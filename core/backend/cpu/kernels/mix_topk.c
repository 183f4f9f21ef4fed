#include "core/backend/cpu/real.h"

enum { X, INDEX, WEIGHT };

/* y_t = sum_n weight_tn x[index_tn] */
static void forward(const struct call *c)
{
	const int64_t *dim = c->node->out[0]->dim, B = dim[0], T = dim[1], F = dim[2];
	const int64_t S = c->node->in[X]->dim[1], k = c->node->in[INDEX]->dim[2];
	const int64_t pitch = c->node->in[X]->pitch;

#pragma omp parallel for schedule(static) if (B * T * F > GRAIN)
	for (int64_t t = 0; t < B * T; t++) {
		const int32_t *index = (const int32_t *)c->in[INDEX] + t * k;
		const real *weight = (const real *)c->in[WEIGHT] + t * k;
		real *restrict y = (real *)c->out[0] + t * F;

		memset(y, 0, (size_t)F * sizeof(real));
		for (int64_t n = 0; n < k; n++) {
			const real w = weight[n];
			const real *restrict x;

			if (index[n] < 0)
				continue;
			x = (const real *)c->in[X] + (t / T * S + index[n]) * pitch;
			for (int64_t f = 0; f < F; f++)
				y[f] += w * x[f];
		}
	}
}

#define SLICE 16 /* channels that threads take together: a cache line of floats */

/*
 * y_t = sum_n weight_tn x[index_tn]: dx[index_tn] += weight_tn dy_t, every
 * thread in channels of its own.
 */
static void backward(const struct call *c)
{
	const struct tensor *x_tensor = c->node->in[X];
	const int64_t B = x_tensor->dim[0], T = x_tensor->dim[1], F = x_tensor->dim[2];
	const int64_t pitch = x_tensor->pitch, k = c->node->in[INDEX]->dim[2];
	const bool add = call_adds(c, X);

#pragma omp parallel if (B * T * F > GRAIN)
	{
		int64_t first, last, width;

		thread_share((F + SLICE - 1) / SLICE, &first, &last);
		first *= SLICE;
		last = last * SLICE < F ? last * SLICE : F;
		width = last > first ? last - first : 0;
		for (int64_t t = 0; t < B * T && !add; t++)
			memset((real *)c->din[X] + t * pitch + first, 0,
			       (size_t)width * sizeof(real));
		for (int64_t t = 0; t < B * T; t++) {
			const int32_t *index = (const int32_t *)c->in[INDEX] + t * k;
			const real *weight = (const real *)c->in[WEIGHT] + t * k;
			const real *restrict dy = (const real *)c->dout[0] + t * F + first;

			for (int64_t n = 0; n < k; n++) {
				const real w = weight[n];
				real *restrict dx;

				if (index[n] < 0)
					continue;
				dx = (real *)c->din[X] + (t / T * T + index[n]) * pitch + first;
				for (int64_t f = 0; f < width; f++)
					dx[f] += w * dy[f];
			}
		}
	}
}

KERNELS(mix_topk) = { .forward = forward, .backward = backward };
