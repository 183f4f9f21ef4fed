/*
 * softmax: y_j = exp(x_j - m) / sum_i exp(x_i - m); dx = y (dy - sum_i y_i dy_i).
 */
#include "core/ops/rowwise.h"

FORMULA real softmax_term(real x, real m)
{
	return fast_exp(x - m);
}

FORMULA real softmax_forward(real x, real e, real m, real s)
{
	(void)x, (void)m;
	return e * (1 / s);
}

FORMULA real softmax_back_term(real x, real y, real dy)
{
	(void)x;
	return y * dy;
}

FORMULA real softmax_backward(real x, real y, real dy, real t)
{
	(void)x;
	return y * (dy - t);
}

#ifndef POINTWISE_DEVICE
struct tensor *op_softmax(struct graph *g, const char *name, struct tensor *x, struct row_mask mask)
{
	return rowwise_node(g, OP_softmax, name, x, mask);
}
ROWWISE_CASES(softmax, op_softmax, false)
#endif
ROWWISE(softmax, PER_ELEMENT, ROW_MAX | ROW_SUM | GRADIENT_SUM, SAVES_OUTPUT, 3)
