#include "core/backend/cpu/elementwise.h"

/* The columns that an input has: where they begin in y, and how far rows are apart there and in the
 * input. */
struct columns {
	int64_t first, width, rows, pitch, x_pitch;
};

static struct columns columns_of(const struct node *n, int input)
{
	const struct concat_attr *attr = n->attr;
	struct columns s = { .width = attr->width[input], .pitch = tensor_dim(n->out[0], -1) };

	for (int i = 0; i < input; i++)
		s.first += attr->width[i];
	s.rows = tensor_count(n->out[0]) / s.pitch;
	s.x_pitch = n->in[input] ? n->in[input]->pitch : 0;
	return s;
}

static void forward(const struct call *c)
{
	for (int i = 0; i < c->node->n_in; i++) {
		const struct columns s = columns_of(c->node, i);
		const real *x = c->in[i];
		real *y = (real *)c->out[0] + s.first;

#pragma omp parallel for schedule(static) if (s.rows * s.width > GRAIN)
		for (int64_t r = 0; r < s.rows; r++)
			if (x)
				memcpy(y + r * s.pitch, x + r * s.x_pitch,
				       (size_t)s.width * sizeof(real));
			else
				memset(y + r * s.pitch, 0, (size_t)s.width * sizeof(real));
	}
}

static void backward(const struct call *c)
{
	for (int i = 0; i < c->node->n_in; i++) {
		const struct columns s = columns_of(c->node, i);
		const real *dy = (const real *)c->dout[0] + s.first;
		real *dx = c->din[i];

#pragma omp parallel for schedule(static) if (s.rows * s.width > GRAIN)
		for (int64_t r = 0; r < s.rows; r++)
			if (dx)
				put_scaled(dx + r * s.x_pitch, call_adds(c, i), 1, dy + r * s.pitch,
					   s.width);
	}
}

KERNELS(concat) = { .forward = forward, .backward = backward, .recompute = forward };
