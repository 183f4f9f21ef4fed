/*
 * mix_topk: y_t = sum_n weight_tn x[index_tn], with the sparse routing matrix
 * that op_attention() gives; entries with a negative index are empty.
 */
#include "core/ops/op_case.h"

enum { X, INDEX, WEIGHT };

struct tensor *op_mix_topk(struct graph *g, const char *name, struct tensor *x,
			   struct tensor *route_index, struct tensor *route_weight)
{
	struct tensor *const in[] = { x, route_index, route_weight };

	return node_out(graph_node(g, OP_mix_topk, name, NULL, 3, in), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct tensor *x = n->in[X], *index = n->in[INDEX], *weight = n->in[WEIGHT];

	if (x->type == I32 || x->ndim != 3)
		return graph_misfit(g, n, "x must be real [B,S,F]");
	if (index->type != I32 || index->ndim != 3 || index->dim[0] != x->dim[0] ||
	    (!g->state && index->dim[1] != x->dim[1]))
		return graph_misfit(g, n, "the routing index must be i32 [%lld,%lld,k]",
				    (long long)x->dim[0], (long long)x->dim[1]);
	if (weight->type != x->type || !tensor_same_shape(weight, index))
		return graph_misfit(g, n, "the routing weight must be real, shaped as the index");
	return graph_out(g, n, NULL, x->type, 3, SHAPE(x->dim[0], index->dim[1], x->dim[2]));
}

static void cost(const struct node *n, struct op_cost *c)
{
	double y = (double)tensor_bytes(n->out[0]), x = (double)tensor_bytes(n->in[X]);
	double rows = y * (double)n->in[INDEX]->dim[2];

	c->forward_flops = 2 * (double)tensor_count(n->out[0]) * (double)n->in[INDEX]->dim[2];
	c->backward_flops = c->forward_flops;
	c->forward_bytes = y + (rows < x ? rows : x); /* rows read again are in the cache */
	c->backward_bytes = 2 * x;
}

static void mix(struct graph *g, int64_t B, int64_t T, int64_t F, int64_t k)
{
	struct tensor *y = op_mix_topk(g, "mix", case_param(g, "x", B, T, F),
				       case_input(g, "index", I32, B, T, k),
				       case_input(g, "weight", g->type, B, T, k));

	graph_seeded_output(g, "y", y);
}

static void case_odd(struct graph *g)
{
	mix(g, 2, 7, 35, 3);
}

static void case_one(struct graph *g)
{
	mix(g, 1, 1, 1, 1);
}

static void case_threads(struct graph *g)
{
	mix(g, 3, 67, 85, 4);
}

/* Few sources, which many tokens choose, and channels that a thread takes together. */
static void case_popular(struct graph *g)
{
	mix(g, 2, 67, 264, 4);
}

/* More entries than one block of a GPU sorts. */
static void case_many(struct graph *g)
{
	mix(g, 2, 350, 1, 12);
}

OP_CASES(mix_topk) = {
	OP_CASE("odd shape", case_odd, .int_limit = 7),
	OP_CASE("empty entries", case_odd, .int_limit = 7, .int_ignore = true),
	OP_CASE("one", case_one, .int_limit = 1),
	OP_CASE("worth two threads", case_threads, .int_limit = 67),
	OP_CASE("popular sources", case_popular, .int_limit = 3, .int_ignore = true),
	OP_CASE("many entries", case_many, .int_limit = 350),
	OP_CASES_END,
};

const struct op op_desc_mix_topk = {
	.name = "mix_topk",
	.min_inputs = 3,
	.max_inputs = 3,
	.infer = infer,
	.cost = cost,
	.constant_in = BIT(INDEX) | BIT(WEIGHT),
	.saves_in = BIT(INDEX) | BIT(WEIGHT),
	.narrow_in = BIT(X),
	.narrow_out = BIT(0),
	.cases = mix_topk_cases,
};
