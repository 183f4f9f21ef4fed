/*
 * multiply: y = a b, element by element; da = dy b, db = dy a.
 */
#include "core/ops/pointwise.h"

FORMULA real multiply_forward(const real *in, const real *k)
{
	(void)k;
	return in[0] * in[1];
}

FORMULA void multiply_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)k, (void)y;
	d[0] = dy * in[1];
	d[1] = dy * in[0];
}

POINTWISE(multiply, 2, 0, SAVES_INPUTS, ANY, 1)
