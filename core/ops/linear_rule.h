/*
 * linear_rule - what ops with a linear map share: x [..,I] W.  W is [I,O], or [O,I] when
 * transposed.
 */
#ifndef OPS_LINEAR_RULE_H
#define OPS_LINEAR_RULE_H

#include "core/ops/rule.h"

static inline enum status check_linear(struct graph *g, const struct node *n,
				       const struct tensor *x, const struct tensor *w,
				       bool transposed)
{
	const int64_t takes = w->ndim == 2 ? w->dim[transposed] : 0;

	if (!all_real(n))
		return graph_misfit(g, n, "inputs must be real");
	if (w->ndim != 2)
		return graph_misfit(g, n, "the weight must have 2 dimensions, not %d", w->ndim);
	if (tensor_dim(x, -1) != takes)
		return graph_misfit(g, n, "x has %lld channels, the weight takes %lld",
				    (long long)tensor_dim(x, -1), (long long)takes);
	if (!tensor_contiguous(x) && x->row != takes)
		return graph_misfit(g, n, "x is a slice whose rows hold more than its channels");
	return OK;
}

/* Output 0 [..,O] of x [..,I] W + b. */
static inline enum status infer_linear(struct graph *g, struct node *n, bool transposed)
{
	const struct tensor *x = n->in[0], *w = n->in[1], *b = n->in[2];
	int64_t gives, dim[TENSOR_MAX_DIMS];

	if (check_linear(g, n, x, w, transposed) != OK)
		return FAIL;
	gives = w->dim[!transposed];
	if (!is_vector(b, gives))
		return graph_misfit(g, n, "the bias must be [%lld]", (long long)gives);
	for (int i = 0; i < x->ndim; i++)
		dim[i] = x->dim[i];
	dim[x->ndim - 1] = gives;
	return graph_out(g, n, NULL, x->type, x->ndim, dim);
}

static inline void cost_linear(const struct node *n, struct op_cost *c)
{
	double product = 2.0 * (double)tensor_count(n->in[0]) * (double)tensor_dim(n->out[0], -1);
	double bytes =
		(double)(tensor_bytes(n->in[0]) + tensor_bytes(n->in[1]) + tensor_bytes(n->out[0]));

	c->forward_flops = product;
	c->backward_flops = 2 * product;
	c->forward_bytes = bytes;
	c->backward_bytes = 2 * bytes;
}

#endif
