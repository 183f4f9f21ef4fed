#include "core/backend/cpu/w2.h"

static void forward(const struct call *c)
{
	const struct w2_attr *attr = c->node->attr;
	const int64_t heads = c->node->in[0]->dim[2], width = c->node->in[0]->dim[3];
	const int64_t rows = tensor_count(c->node->out[0]);
	const real *y = c->in[0], *second = c->in[1];
	real *bias = c->out[0];

#pragma omp parallel for schedule(static) if (rows * width > GRAIN)
	for (int64_t r = 0; r < rows; r++) {
		const real square = dot(y + r * width, y + r * width, width);

		if (attr->score == W2_WASSERSTEIN)
			bias[r] = -square * inverse_temperature(second[r % heads], (real)attr->eps);
		else
			bias[r] = (real)-0.5 * (square + second[r]);
	}
}

/* bias = -|y|^2 i, i = 1 / (|tau| + eps), so d bias / d tau = |y|^2 i^2 sign = -bias i sign */
static void tau_gradient(const struct call *c, int64_t rows, int64_t heads, real eps)
{
	const real *tau = c->in[1], *bias = c->out[0], *dbias = c->dout[0];
	real *dtau = c->din[1];
	double *products = c->work;

	for (int64_t r = 0; r < rows; r++)
		products[r] = -(double)(bias[r] * dbias[r]);
	for (int64_t h = 0; h < heads; h++)
		put(dtau + h, call_adds(c, 1),
		    (real)head_sum(products, rows, heads, h) * inverse_temperature(tau[h], eps) *
			    sign(tau[h]));
}

static void backward(const struct call *c)
{
	const struct w2_attr *attr = c->node->attr;
	const int64_t heads = c->node->in[0]->dim[2], width = c->node->in[0]->dim[3];
	const int64_t rows = tensor_count(c->node->out[0]);
	const bool wasserstein = attr->score == W2_WASSERSTEIN;
	const real eps = (real)attr->eps;
	const real *y = c->in[0], *second = c->in[1], *dbias = c->dout[0];
	real *dy = c->din[0];

#pragma omp parallel for schedule(static) if (dy && rows * width > GRAIN)
	for (int64_t r = 0; r < (dy ? rows : 0); r++) {
		/* bias = -f |y|^2 + .. */
		const real f = wasserstein ? inverse_temperature(second[r % heads], eps)
					   : (real)0.5;

		put_scaled(dy + r * width, call_adds(c, 0), -2 * f * dbias[r], y + r * width,
			   width);
	}
	if (c->din[1] && wasserstein)
		tau_gradient(c, rows, heads, eps);
	else if (c->din[1])
		put_scaled(c->din[1], call_adds(c, 1), (real)-0.5, dbias, rows);
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	(void)threads;
	return pass == PASS_BACKWARD ? (size_t)tensor_count(n->out[0]) * sizeof(double) : 0;
}

KERNELS(w2_key_bias) = { .forward = forward, .backward = backward, .workspace = workspace };
