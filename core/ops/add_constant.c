/*
 * add_constant: y = x + k.
 */
#include "core/ops/pointwise.h"

FORMULA real add_constant_forward(const real *in, const real *k)
{
	return in[0] + k[0];
}

FORMULA void add_constant_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)in, (void)k, (void)y;
	d[0] = dy;
}

POINTWISE(add_constant, 1, 1, PASSES_GRADIENT, ANY, 1)
