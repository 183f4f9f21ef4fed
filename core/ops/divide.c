/*
 * divide: y = a / b; da = dy / b, db = -dy a / b^2.
 */
#include "core/ops/pointwise.h"

FORMULA real divide_forward(const real *in, const real *k)
{
	(void)k;
	return fast_divide(in[0], in[1]);
}

FORMULA void divide_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)k, (void)y;
	d[0] = fast_divide(dy, in[1]);
	d[1] = -fast_divide(in[0] * d[0], in[1]);
}

POINTWISE(divide, 2, 0, SAVES_INPUTS, POSITIVE, 1)
