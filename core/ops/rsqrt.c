/*
 * rsqrt: y = 1 / sqrt(x) for x > 0, dx = -dy y^3 / 2.
 */
#include "core/ops/pointwise.h"

FORMULA real rsqrt_forward(const real *in, const real *k)
{
	(void)k;
	return reciprocal_root(in[0]);
}

FORMULA void rsqrt_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)in, (void)k;
	d[0] = (real)-0.5 * dy * (y * y * y);
}

POINTWISE(rsqrt, 1, 0, SAVES_OUTPUT, POSITIVE, 0)
