/*
 * softplus: y = log(1 + exp(x)) + eps = max(x, 0) + log(1 + exp(-|x|)) + eps; dx = dy sigmoid(x).
 */
#include "core/ops/pointwise.h"

FORMULA real softplus_forward(const real *in, const real *k)
{
	const real x = in[0], size = size_of(x);

	return (real)0.5 * (x + size) + fast_log1p(fast_exp(-size)) + k[0];
}

FORMULA void softplus_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)k, (void)y;
	d[0] = fast_sigmoid(in[0]) * dy;
}

POINTWISE(softplus, 1, 1, SAVES_INPUTS, ANY, 0)
