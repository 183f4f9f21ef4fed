#include "core/backend/cpu/elementwise.h"
#include "core/backend/cpu/tokens.h"

static void fill_row(real *y, int64_t n, real value)
{
	for (int64_t i = 0; i < n; i++)
		y[i] = value;
}

/* y_t of one example. */
static void delay(const struct shift_attr *attr, const struct tokens *xs, const real *x, int64_t t,
		  int64_t past, const real *kept, real *y)
{
	const int64_t from = t - attr->distance;
	const size_t bytes = (size_t)xs->size * sizeof(real);

	if (from >= 0)
		memcpy(y, x + from * xs->pitch, bytes);
	else if (past + from >= 0)
		memcpy(y, kept + (past + t) % attr->distance * xs->size, bytes);
	else
		fill_row(y, xs->size, (real)attr->fill);
}

static void forward(const struct call *c)
{
	const struct shift_attr *attr = c->node->attr;
	const struct tokens xs = tokens_of(c->node->in[0]);
	const int64_t B = c->node->in[0]->dim[0], past = c->run->past, s = attr->distance;
	const int64_t first = xs.T > s ? xs.T - s : 0;
	real *kept = c->node->n_out > 1 ? c->out[1] : NULL;

#pragma omp parallel for schedule(static) if (B * xs.T * xs.size > GRAIN)
	for (int64_t b = 0; b < B; b++) {
		const real *x = (const real *)c->in[0] + b * xs.T * xs.pitch;
		real *own = kept ? kept + b * s * xs.size : NULL;

		for (int64_t t = 0; t < xs.T; t++)
			delay(attr, &xs, x, t, past, own,
			      (real *)c->out[0] + (b * xs.T + t) * xs.size);
		for (int64_t t = first; own && t < xs.T; t++)
			memcpy(own + (past + t) % s * xs.size, x + t * xs.pitch,
			       (size_t)xs.size * sizeof(real));
	}
}

/* y_(t+s) = x_t */
static void backward(const struct call *c)
{
	const struct shift_attr *attr = c->node->attr;
	const struct tokens xs = tokens_of(c->node->in[0]);
	const int64_t rows = c->node->in[0]->dim[0] * xs.T, s = attr->distance;
	const real *dy = c->dout[0];
	real *dx = c->din[0];

#pragma omp parallel for schedule(static) if (rows * xs.size > GRAIN)
	for (int64_t row = 0; row < rows; row++) {
		if (row % xs.T + s < xs.T)
			put_scaled(dx + row * xs.pitch, call_adds(c, 0), 1,
				   dy + (row + s) * xs.size, xs.size);
		else if (!call_adds(c, 0))
			fill_row(dx + row * xs.pitch, xs.size, 0);
	}
}

KERNELS(shift) = { .forward = forward, .backward = backward };
