/*
 * logsumexp: y = m + log(sum_j exp(x_j - m)); dx = dy exp(x - y).
 */
#include "core/ops/rowwise.h"

FORMULA real logsumexp_term(real x, real m)
{
	return fast_exp(x - m);
}

FORMULA real logsumexp_forward(real x, real e, real m, real s)
{
	(void)x, (void)e;
	return m + fast_log(s);
}

FORMULA real logsumexp_back_term(real x, real y, real dy)
{
	(void)x, (void)y, (void)dy;
	return 0;
}

FORMULA real logsumexp_backward(real x, real y, real dy, real t)
{
	(void)t;
	return dy * fast_exp(x - y);
}

#ifndef POINTWISE_DEVICE
struct tensor *op_logsumexp(struct graph *g, const char *name, struct tensor *x,
			    struct row_mask mask)
{
	return rowwise_node(g, OP_logsumexp, name, x, mask);
}
ROWWISE_CASES(logsumexp, op_logsumexp, false)
#endif
ROWWISE(logsumexp, PER_ROW, ROW_MAX | ROW_SUM, SAVES_INPUTS | SAVES_OUTPUT, 2)
