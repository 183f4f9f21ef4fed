/*
 * tanh: y = tanh(x), dx = dy (1 - y^2).
 */
#include "core/ops/pointwise.h"

FORMULA real tanh_forward(const real *in, const real *k)
{
	(void)k;
	return fast_tanh(in[0]);
}

FORMULA void tanh_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)in, (void)k;
	d[0] = dy * (1 - y * y);
}

POINTWISE(tanh, 1, 0, SAVES_OUTPUT, ANY, 0)
