#include "core/backend/cpu/elementwise.h"

/* (1 + tanh(u)) / 2 = sigmoid(2u), so y = x s, s = 1 / (1 + 2^t), t = x (LINEAR + CUBIC x^2). */
static const real LINEAR = (real)-2.302208198144325; /* -2 sqrt(2/pi) / ln 2 */
static const real CUBIC = (real)-0.1029432395800235; /* -2 sqrt(2/pi) 0.044715 / ln 2 */
static const real LN_2 = (real)0.6931471805599453;

static inline real gelu(real x)
{
	return x / one_plus_exp2(x * (LINEAR + CUBIC * (x * x)));
}

static inline real sigmoid(real x)
{
	return 1 / one_plus_exp2(x * (LINEAR + CUBIC * (x * x)));
}

static void forward(const struct call *c)
{
	const int64_t n = tensor_count(c->node->in[0]);
	const real *x = c->in[0];
	real *y = c->out[0];

#pragma omp parallel for schedule(static) if (n > GRAIN)
	for (int64_t i = 0; i < n; i += CHUNK)
		map(gelu, x + i, chunk_length(i, n), y + i);
}

/* y = x s, so dy/dx = s - ln 2 s (1 - s) x dt/dx */
static void gradient(const real *x, const real *restrict s, const real *dy, int64_t n, real *dx,
		     bool add)
{
	const real linear = LN_2 * LINEAR, cubic = 3 * LN_2 * CUBIC;

#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		real steep = x[i] * (linear + cubic * (x[i] * x[i]));

		put(dx + i, add, dy[i] * (s[i] - s[i] * (1 - s[i]) * steep));
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
		real s[CHUNK];

		map(sigmoid, x + i, m, s);
		gradient(x + i, s, dy + i, m, dx + i, call_adds(c, 0));
	}
}

KERNELS(gelu) = { .forward = forward, .backward = backward, .recompute = forward };
