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

static void mix_rows_of(struct graph *g, const char *name, struct tensor *x, int64_t k)
{
	const int64_t B = x->dim[0], T = x->dim[1];
	struct tensor *index, *weight;

	graph_scope(g, "%s.", name);
	index = case_input(g, "index", I32, B, T, k);
	weight = case_input(g, "weight", g->type, B, T, k);
	graph_seeded_output(g, name, op_mix_topk(g, "mix", x, index, weight));
	graph_scope_end(g);
}

static void mix(struct graph *g, int64_t B, int64_t T, int64_t F, int64_t k)
{
	mix_rows_of(g, "y", case_param(g, "x", B, T, F), k);
}

BUILD_CASE(case_odd, mix(g, 2, 7, 35, 3))
BUILD_CASE(case_one, mix(g, 1, 1, 1, 1))
BUILD_CASE(case_threads, mix(g, 3, 67, 85, 4))

/* Few sources, which many tokens choose, and channels that a thread takes together. */
BUILD_CASE(case_popular, mix(g, 2, 67, 264, 4))

/* More entries than one block of a GPU sorts. */
BUILD_CASE(case_many, mix(g, 2, 350, 1, 12))

/* Of two slices that cover x, the other is read by another op. */
static void mix_slice(struct graph *g, struct tensor *x, int64_t first)
{
	mix_rows_of(g, "back", graph_slice(g, x, first, tensor_dim(x, -1) - first), 3);
	case_add_to(g, "front", graph_slice(g, x, 0, first), NULL);
}

BUILD_CASE(case_slices, mix_slice(g, case_param(g, "x", 2, 7, 11), 4))
BUILD_CASE(case_slice_eights, mix_slice(g, op_gelu(g, "gelu", case_param(g, "x", 2, 7, 40)), 16))

/* Eights that begin where no eight does, and eights that are not eights apart. */
static void case_slice_between(struct graph *g)
{
	struct tensor *x = op_gelu(g, "gelu", case_param(g, "x", 1, 7, 32));

	mix_rows_of(g, "between", graph_slice(g, x, 3, 16), 3);
	mix_rows_of(g, "again", graph_slice(g, x, 8, 16), 2);
	x = op_gelu(g, "odd", case_param(g, "z", 2, 7, 13));
	mix_rows_of(g, "pitch", graph_slice(g, x, 0, 8), 3);
}

/* Sources that so many tokens choose that the warps of a block share them. */
static void case_slice_popular(struct graph *g)
{
	struct tensor *x = op_gelu(g, "gelu", case_param(g, "x", 2, 67, 32));

	mix_rows_of(g, "front", graph_slice(g, x, 0, 8), 4);
	mix_rows_of(g, "back", graph_slice(g, x, 13, 19), 4);
}

/* Some channels of what was heads: a row is still a token. */
static void case_slice_heads(struct graph *g)
{
	struct tensor *x = op_gelu(g, "gelu", case_param(g, "x", 2, 7, 9));

	x = graph_reshape(g, graph_slice(g, x, 2, 6), 4, SHAPE(2, 7, 2, 3));
	mix_rows_of(g, "y", graph_reshape(g, x, 3, SHAPE(2, 7, 6)), 3);
}

OP_CASES(mix_topk) = {
	OP_CASE("odd shape", case_odd, .int_limit = 7),
	OP_CASE("empty entries", case_odd, .int_limit = 7, .int_ignore = true),
	OP_CASE("one", case_one, .int_limit = 1),
	OP_CASE("worth two threads", case_threads, .int_limit = 67),
	OP_CASE("popular sources", case_popular, .int_limit = 3, .int_ignore = true),
	OP_CASE("many entries", case_many, .int_limit = 350),
	OP_CASE("slices", case_slices, .int_limit = 7),
	OP_CASE("slices of eights", case_slice_eights, .int_limit = 7, .int_ignore = true),
	OP_CASE("slices between eights", case_slice_between, .int_limit = 7),
	OP_CASE("slices, popular sources", case_slice_popular, .int_limit = 3),
	OP_CASE("slice of heads", case_slice_heads, .int_limit = 7),
	OP_CASES_END,
};

const struct op op_desc_mix_topk = {
	.name = "mix_topk",
	.min_inputs = 3,
	.max_inputs = 3,
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(X),
	.constant_in = BIT(INDEX) | BIT(WEIGHT),
	.saves_in = BIT(INDEX) | BIT(WEIGHT),
	.bf16_in = BIT(X),
	.bf16_out = BIT(0),
	.cases = mix_topk_cases,
};
