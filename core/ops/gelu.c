/*
 * gelu: y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
 * (D. Hendrycks, K. Gimpel, "Gaussian error linear units", 2016: the form of GPT-2.)
 *
 * (1 + tanh(u)) / 2 = sigmoid(2u), so y = x s, s = 1 / (1 + 2^t), t = x (LINEAR + CUBIC x^2).
 */
#include "core/ops/pointwise.h"

#define GELU_LINEAR ((real)-2.302208198144325) /* -2 sqrt(2/pi) / ln 2 */
#define GELU_CUBIC ((real)-0.1029432395800235) /* -2 sqrt(2/pi) 0.044715 / ln 2 */
#define GELU_LN_2 ((real)0.6931471805599453)

FORMULA real gelu_denominator(real x)
{
	return one_plus_exp2(x * (GELU_LINEAR + GELU_CUBIC * (x * x)));
}

FORMULA real gelu_sigmoid(real x)
{
	return fast_divide(1, gelu_denominator(x));
}

/* y = x s, so dy/dx = s - ln 2 s (1 - s) x dt/dx */
FORMULA real gelu_slope(real x)
{
	const real linear = GELU_LN_2 * GELU_LINEAR, cubic = 3 * GELU_LN_2 * GELU_CUBIC;
	const real s = gelu_sigmoid(x), steep = x * (linear + cubic * (x * x));

	return s - s * (1 - s) * steep;
}

FORMULA real gelu_forward(const real *in, const real *k)
{
	(void)k;
	return fast_divide(in[0], gelu_denominator(in[0]));
}

FORMULA void gelu_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)k, (void)y;
	d[0] = dy * gelu_slope(in[0]);
}

POINTWISE(gelu, 1, 0, SAVES_INPUTS, ANY, 0)
