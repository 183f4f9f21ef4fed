/*
 * scale: y = k x.
 */
#include "core/ops/pointwise.h"

FORMULA real scale_forward(const real *in, const real *k)
{
	return k[0] * in[0];
}

FORMULA void scale_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)in, (void)y;
	d[0] = k[0] * dy;
}

POINTWISE(scale, 1, 1, SAVES_NOTHING, ANY, 1)
