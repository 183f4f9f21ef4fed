/*
 * abs: y = |x|, dx = dy sign(x).
 */
#include "core/ops/pointwise.h"

FORMULA real abs_forward(const real *in, const real *k)
{
	(void)k;
	return size_of(in[0]);
}

FORMULA void abs_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)k, (void)y;
	d[0] = in[0] < 0 ? -dy : dy;
}

POINTWISE(abs, 1, 0, SAVES_INPUTS, ANY, 0)
