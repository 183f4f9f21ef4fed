#include "core/backend/cpu/elementwise.h"

/* The columns of y that an input has begin here. */
static int64_t first_column(const struct node *n, int input)
{
	const struct join_attr *attr = n->attr;
	int64_t first = 0;

	for (int i = 0; i < input; i++)
		first += attr->width[i];
	return first;
}

static void forward(const struct call *c)
{
	const struct join_attr *attr = c->node->attr;
	const int64_t pitch = tensor_dim(c->node->out[0], -1);
	const int64_t rows = tensor_count(c->node->out[0]) / pitch;

	for (int i = 0; i < c->node->n_in; i++) {
		const int64_t width = attr->width[i];
		const int64_t x_pitch = c->node->in[i] ? c->node->in[i]->pitch : 0;
		const real *x = c->in[i];
		real *y = (real *)c->out[0] + first_column(c->node, i);

#pragma omp parallel for schedule(static) if (rows * width > GRAIN)
		for (int64_t r = 0; r < rows; r++)
			if (x)
				memcpy(y + r * pitch, x + r * x_pitch, (size_t)width * sizeof(real));
			else
				memset(y + r * pitch, 0, (size_t)width * sizeof(real));
	}
}

static void backward(const struct call *c)
{
	const struct join_attr *attr = c->node->attr;
	const int64_t pitch = tensor_dim(c->node->out[0], -1);
	const int64_t rows = tensor_count(c->node->out[0]) / pitch;

	for (int i = 0; i < c->node->n_in; i++) {
		const int64_t width = attr->width[i];
		const int64_t x_pitch = c->node->in[i] ? c->node->in[i]->pitch : 0;
		const real *dy = (const real *)c->dout[0] + first_column(c->node, i);
		real *dx = c->din[i];

#pragma omp parallel for schedule(static) if (rows * width > GRAIN)
		for (int64_t r = 0; r < rows; r++)
			if (dx)
				put_scaled(dx + r * x_pitch, call_adds(c, i), 1, dy + r * pitch, width);
	}
}

KERNELS(join) = { .forward = forward, .backward = backward, .remake = forward };
