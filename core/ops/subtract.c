/*
 * subtract: y = a - b.
 */
#include "core/ops/pointwise.h"

FORMULA real subtract_forward(const real *in, const real *k)
{
	(void)k;
	return in[0] - in[1];
}

FORMULA void subtract_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)in, (void)k, (void)y;
	d[0] = dy;
	d[1] = -dy;
}

POINTWISE(subtract, 2, 0, SAVES_NOTHING, ANY, 1)
