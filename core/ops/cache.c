/*
 * cache: state y [B,capacity,..], y[b, past + t] = x[b,t], x [B,T,..]; for one x or several.
 */
#include <string.h>

#include "core/ops/rule.h"

struct tensor *op_cache(struct graph *g, const char *name, struct tensor *x)
{
	return g->state ? node_out(graph_node(g, OP_cache, name, NULL, 1, &x), 0) : x;
}

void op_cache_all(struct graph *g, const char *name, struct tensor **const x[], int n)
{
	struct tensor *in[CACHE_MOST] = { NULL };
	struct node *node;
	int present = 0;

	if (!g->state)
		return;
	for (int i = 0; i < n; i++)
		if (*x[i])
			in[present++] = *x[i];
	node = graph_node(g, OP_cache, name, NULL, present, in);
	present = 0;
	for (int i = 0; i < n; i++)
		if (*x[i])
			*x[i] = node_out(node, present++);
}

static enum status keep(struct graph *g, struct node *n, const struct tensor *x, const char *suffix)
{
	int64_t dim[TENSOR_MAX_DIMS];

	if (x->ndim < 3 || !tokens_whole(x))
		return graph_misfit(g, n, "x must be real [B,T,..] with whole tokens");
	if (x->dim[1] > g->capacity)
		return graph_misfit(g, n, "%lld tokens are more than the %lld that are kept",
				    (long long)x->dim[1], (long long)g->capacity);
	memcpy(dim, x->dim, sizeof(dim));
	dim[1] = g->capacity;
	return graph_out_state(g, n, suffix, x->ndim, dim);
}

static enum status infer(struct graph *g, struct node *n)
{
	static const char *const suffixes[CACHE_MOST] = { "0", "1", "2" };

	if (!all_real(n))
		return graph_misfit(g, n, "x must be real [B,T,..] with whole tokens");
	for (int i = 0; i < n->n_in; i++)
		if (keep(g, n, n->in[i], n->n_in > 1 ? suffixes[i] : NULL) != OK)
			return FAIL;
	return OK;
}

static void cost(const struct node *n, struct op_cost *c)
{
	for (int i = 0; i < n->n_in; i++)
		c->forward_bytes += 2 * (double)tensor_bytes(n->in[i]);
}

/* No cases: a case is trained, and this op cannot be.  core/ops/state_test.c tests it. */
OP_CASES(cache) = {
	OP_CASES_END,
};

const struct op op_desc_cache = {
	.name = "cache",
	.min_inputs = 1,
	.max_inputs = CACHE_MOST,
	.infer = infer,
	.cost = cost,
	.no_gradient = true,
	.strided_in = BIT(0) | BIT(1) | BIT(2),
	.strided_heads_in = BIT(0) | BIT(1) | BIT(2),
	.bf16_in = BIT(0) | BIT(1) | BIT(2),
	.bf16_out = BIT(0) | BIT(1) | BIT(2),
	.cases = cache_cases,
};
