/*
 * maximum: y = max(a, b); the gradient goes to the larger one, and to a if they are equal.
 */
#include "core/ops/pointwise.h"

FORMULA real maximum_forward(const real *in, const real *k)
{
	(void)k;
	return larger(in[0], in[1]);
}

FORMULA void maximum_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)k, (void)y;
	d[0] = in[0] >= in[1] ? dy : 0;
	d[1] = in[0] >= in[1] ? 0 : dy;
}

POINTWISE(maximum, 2, 0, SAVES_INPUTS, CHOICE, 0)
