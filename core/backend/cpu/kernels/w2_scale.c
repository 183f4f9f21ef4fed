#include "core/backend/cpu/w2.h"

static void forward(const struct call *c)
{
	const struct w2_attr *attr = c->node->attr;
	const int64_t heads = c->node->in[0]->dim[2], width = c->node->in[0]->dim[3];
	const int64_t rows = tensor_count(c->node->in[0]) / width;
	const real *y = c->in[0], *tau = c->in[1];
	real *z = c->out[0];

#pragma omp parallel for schedule(static) if (rows * width > GRAIN)
	for (int64_t r = 0; r < rows; r++)
		put_scaled(z + r * width, false,
			   2 * inverse_temperature(tau[r % heads], (real)attr->eps), y + r * width,
			   width);
}

/* z = 2 y i, i = 1 / (|tau| + eps), so dz / dtau = -2 y i^2 sign */
static void backward(const struct call *c)
{
	const struct w2_attr *attr = c->node->attr;
	const int64_t heads = c->node->in[0]->dim[2], width = c->node->in[0]->dim[3];
	const int64_t rows = tensor_count(c->node->in[0]) / width;
	const real eps = (real)attr->eps;
	const real *y = c->in[0], *tau = c->in[1], *dz = c->dout[0];
	real *dy = c->din[0], *dtau = c->din[1];
	double *dots = c->work; /* dz . y per row */

#pragma omp parallel for schedule(static) if (rows * width > GRAIN)
	for (int64_t r = 0; r < rows; r++) {
		const int64_t at = r * width;

		dots[r] = dot(dz + at, y + at, width);
		if (dy)
			put_scaled(dy + at, call_adds(c, 0),
				   2 * inverse_temperature(tau[r % heads], eps), dz + at, width);
	}
	for (int64_t h = 0; h < (dtau ? heads : 0); h++) {
		const real inverse = inverse_temperature(tau[h], eps);

		put(dtau + h, call_adds(c, 1),
		    (real)head_sum(dots, rows, heads, h) * -2 * inverse * inverse * sign(tau[h]));
	}
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	(void)threads;
	return pass == PASS_BACKWARD
		       ? (size_t)(tensor_count(n->in[0]) / n->in[0]->dim[3]) * sizeof(double)
		       : 0;
}

KERNELS(w2_scale) = {
	.forward = forward,
	.backward = backward,
	.remake = forward,
	.workspace = workspace,
};
