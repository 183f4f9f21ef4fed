/*
 * cache: state y [B,capacity,..], y[b, past + t] = x[b,t], x [B,T,..].
 */
#include <string.h>

#include "core/ops/rule.h"

struct tensor *op_cache(struct graph *g, const char *name, struct tensor *x)
{
	return g->state ? node_out(graph_node(g, OP_cache, name, NULL, 1, &x), 0) : x;
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct tensor *x = n->in[0];
	int64_t dim[TENSOR_MAX_DIMS];

	if (!all_real(n) || x->ndim < 3 || !tokens_whole(x))
		return graph_misfit(g, n, "x must be real [B,T,..] with whole tokens");
	if (x->dim[1] > g->capacity)
		return graph_misfit(g, n, "%lld tokens are more than the %lld that are kept",
				    (long long)x->dim[1], (long long)g->capacity);
	memcpy(dim, x->dim, sizeof(dim));
	dim[1] = g->capacity;
	return graph_out_state(g, n, NULL, x->ndim, dim);
}

static void cost(const struct node *n, struct op_cost *c)
{
	c->forward_bytes = 2 * (double)tensor_bytes(n->in[0]);
}

/* No cases: a case is trained, and this op cannot be.  core/ops/state_test.c tests it. */
OP_CASES(cache) = {
	OP_CASES_END,
};

const struct op op_desc_cache = {
	.name = "cache",
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.no_gradient = true,
	.pitched_in = BIT(0),
	.narrow_in = BIT(0),
	.narrow_out = BIT(0),
	.cases = cache_cases,
};
