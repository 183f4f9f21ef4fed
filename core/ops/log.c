/*
 * log: y = log(x) for x > 0, dx = dy / x.
 */
#include "core/ops/pointwise.h"

FORMULA real log_forward(const real *in, const real *k)
{
	(void)k;
	return fast_log(in[0]);
}

FORMULA void log_backward(const real *in, const real *k, real y, real dy, real *d)
{
	(void)k, (void)y;
	d[0] = fast_divide(dy, in[0]);
}

POINTWISE(log, 1, 0, SAVES_INPUTS, POSITIVE, 0)
