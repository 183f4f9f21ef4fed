/*
 * exp: y = exp(x), dx = dy y.
 */
#include "core/ops/pointwise.h"

FORMULA real exp_forward(const real *in, const real *k)
{
	(void)k;
	return fast_exp(in[0]);
}

FORMULA void exp_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)in, (void)k;
	d[0] = dy * y;
}

POINTWISE(exp, 1, 0, SAVES_OUTPUT, ANY, 0)
