/*
 * add: y = a + b.
 */
#include "core/ops/pointwise.h"

FORMULA real add_forward(const real *in, const real *k)
{
	(void)k;
	return in[0] + in[1];
}

FORMULA void add_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)in, (void)k, (void)y;
	d[0] = dy;
	d[1] = dy;
}

POINTWISE(add, 2, 0, PASSES_GRADIENT, ANY, 1)
