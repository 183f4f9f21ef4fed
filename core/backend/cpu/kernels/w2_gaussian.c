#include "core/backend/cpu/elementwise.h"

/* One head: y = (mean, sigma) */
static void pair_row(const real *x, int64_t width, real eps, real *y)
{
	put_scaled(y, false, 1, x, width);
	softplus_row(x + width, width, eps, y + width);
}

/* One head: y = mean / sqrt(sigma); returns sum log sigma. */
static real whitened_row(const real *x, int64_t width, real eps, real *y)
{
	real logdet = 0;

	softplus_row(x + width, width, eps, y);
#pragma omp simd reduction(+ : logdet)
	for (int64_t i = 0; i < width; i++) {
		logdet += fast_log(y[i]);
		y[i] = x[i] / root(y[i]);
	}
	return logdet;
}

/* A remake does not need out[1]. */
static void forward(const struct call *c)
{
	const struct w2_attr *attr = c->node->attr;
	const int64_t width = c->node->in[0]->dim[3] / 2;
	const int64_t rows = tensor_count(c->node->in[0]) / (2 * width);
	const real eps = (real)attr->eps;
	const real *x = c->in[0];
	real *y = c->out[0], *logdet = c->out[1];

#pragma omp parallel for schedule(static) if (rows * width > GRAIN)
	for (int64_t r = 0; r < rows; r++) {
		if (attr->score == W2_WASSERSTEIN) {
			pair_row(x + 2 * r * width, width, eps, y + 2 * r * width);
		} else {
			real sum_log = whitened_row(x + 2 * r * width, width, eps, y + r * width);

			if (logdet)
				logdet[r] = sum_log;
		}
	}
}

/* y = (mean, softplus(raw) + eps) */
static void pair_gradient(const real *x, const real *dy, int64_t width, real *d)
{
	put_scaled(d, false, 1, dy, width);
	map(fast_sigmoid, x + width, width, d + width);
	put_product(d + width, false, d + width, dy + width, width);
}

/* y = mean p, p = 1 / sqrt(sigma); logdet = sum log sigma */
static void whitened_gradient(const real *restrict x, const real *restrict dy, real dlogdet,
			      int64_t width, real eps, real *restrict d)
{
	softplus_row(x + width, width, eps, d);
	map(fast_sigmoid, x + width, width, d + width);
#pragma omp simd
	for (int64_t i = 0; i < width; i++) {
		real p = 1 / root(d[i]);

		d[i] = dy[i] * p;
		d[width + i] *= p * p * (dlogdet - (real)0.5 * d[i] * x[i]);
	}
}

static void backward(const struct call *c)
{
	const struct w2_attr *attr = c->node->attr;
	const int64_t width = c->node->in[0]->dim[3] / 2;
	const int64_t rows = tensor_count(c->node->in[0]) / (2 * width);
	const real *x = c->in[0], *dy = c->dout[0], *dlogdet = c->dout[1];
	real *dx = c->din[0], *work = c->work; /* zeros, then a row of gradients per thread */

	memset(work, 0, (size_t)width * sizeof(*work));
#pragma omp parallel for schedule(static) if (rows * width > GRAIN)
	for (int64_t r = 0; r < rows; r++) {
		real *d = work + (1 + 2 * omp_get_thread_num()) * width;
		const int64_t at = 2 * r * width;

		if (attr->score == W2_WASSERSTEIN)
			pair_gradient(x + at, dy + at, width, d);
		else
			whitened_gradient(x + at, dy ? dy + r * width : work,
					  dlogdet ? dlogdet[r] : 0, width, (real)attr->eps, d);
		put_scaled(dx + at, call_adds(c, 0), 1, d, 2 * width);
	}
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	const size_t width = (size_t)n->in[0]->dim[3] / 2;

	return pass == PASS_BACKWARD ? (1 + 2 * (size_t)threads) * width * sizeof(real) : 0;
}

KERNELS(w2_gaussian) = {
	.forward = forward,
	.backward = backward,
	.remake = forward,
	.workspace = workspace,
};
