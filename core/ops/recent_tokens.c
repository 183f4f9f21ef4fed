/*
 * recent_tokens: y [B,window+T,..] = the last `window` tokens before x [B,T,..], then
 * x; state: the last `window` tokens of y, which the next run will need.
 */
#include <string.h>

#include "core/ops/rule.h"

struct tensor *op_recent_tokens(struct graph *g, const char *name, struct tensor *x, int64_t window)
{
	const struct recent_tokens_attr attr = { window };

	if (!g->state || window == 0)
		return x;
	return node_out(graph_node(g, OP_recent_tokens, name, &attr, 1, &x), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct recent_tokens_attr *attr = n->attr;
	const struct tensor *x = n->in[0];
	int64_t dim[TENSOR_MAX_DIMS];

	if (!all_real(n) || x->ndim < 3 || !tokens_whole(x))
		return graph_misfit(g, n, "x must be real [B,T,..] with whole tokens");
	if (attr->window < 1)
		return graph_misfit(g, n, "a window of %lld tokens", (long long)attr->window);
	memcpy(dim, x->dim, sizeof(dim));
	dim[1] = attr->window + x->dim[1];
	if (graph_out_constant(g, n, NULL, x->type, x->ndim, dim) != OK)
		return FAIL;
	dim[1] = attr->window;
	return graph_out_state(g, n, "kept", x->ndim, dim);
}

static void cost(const struct node *n, struct op_cost *c)
{
	c->forward_bytes = (double)tensor_bytes(n->out[0]) + 2 * (double)tensor_bytes(n->out[1]);
}

/* No cases: a case is trained, and this op cannot be.  core/ops/state_test.c tests it. */
OP_CASES(recent_tokens) = {
	OP_CASES_END,
};

const struct op op_desc_recent_tokens = {
	.name = "recent_tokens",
	.attr_size = sizeof(struct recent_tokens_attr),
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.no_gradient = true,
	.strided_in = BIT(0),
	.strided_heads_in = BIT(0),
	.bf16_in = BIT(0),
	.bf16_out = BIT(0) | BIT(1),
	.cases = recent_tokens_cases,
};
