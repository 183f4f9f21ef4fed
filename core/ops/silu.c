/*
 * silu: y = x sigmoid(x), dx = dy s (1 + x (1 - s)).
 */
#include "core/ops/pointwise.h"

FORMULA real silu_forward(const real *in, const real *k)
{
	(void)k;
	return in[0] * fast_sigmoid(in[0]);
}

FORMULA void silu_backward(const real *in, const real *k, real y, real dy, real *d)
{
	const real x = in[0], s = fast_sigmoid(x);

	(void)k, (void)y;
	d[0] = dy * s * (1 + x * (1 - s));
}

POINTWISE(silu, 1, 0, SAVES_INPUTS, ANY, 0)
