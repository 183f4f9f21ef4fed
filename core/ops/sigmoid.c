/*
 * sigmoid: y = 1 / (1 + exp(-x)), dx = dy y (1 - y).
 */
#include "core/ops/pointwise.h"

FORMULA real sigmoid_forward(const real *in, const real *k)
{
	(void)k;
	return fast_sigmoid(in[0]);
}

FORMULA void sigmoid_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)in, (void)k;
	d[0] = dy * (y * (1 - y));
}

POINTWISE(sigmoid, 1, 0, SAVES_OUTPUT, ANY, 0)
