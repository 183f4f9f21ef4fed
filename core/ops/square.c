/*
 * square: y = x^2, dx = 2 dy x.
 */
#include "core/ops/pointwise.h"

FORMULA real square_forward(const real *in, const real *k)
{
	(void)k;
	return in[0] * in[0];
}

FORMULA void square_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)k, (void)y;
	d[0] = 2 * dy * in[0];
}

POINTWISE(square, 1, 0, SAVES_INPUTS, ANY, 1)
