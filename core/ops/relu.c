/*
 * relu: y = max(x, 0), dx = dy where x > 0.
 */
#include "core/ops/pointwise.h"

FORMULA real relu_forward(const real *in, const real *k)
{
	(void)k;
	return larger(in[0], 0);
}

FORMULA void relu_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)k, (void)y;
	d[0] = in[0] > 0 ? dy : 0;
}

POINTWISE(relu, 1, 0, SAVES_INPUTS, ANY, 0)
