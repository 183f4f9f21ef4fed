/*
 * permute: y has the dimensions of x in another order; dx = dy in the old order.
 */
#include "core/ops/rule.h"

struct tensor *op_permute(struct graph *g, const char *name, struct tensor *x, const int *order)
{
	struct permute_attr attr = { { 0 } };

	for (int i = 0; x && i < x->ndim; i++)
		attr.order[i] = order[i];
	return node_out(graph_node(g, OP_permute, name, &attr, 1, &x), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct permute_attr *attr = n->attr;
	const struct tensor *x = n->in[0];
	int64_t dim[TENSOR_MAX_DIMS];
	unsigned seen = 0;

	if (!all_real(n))
		return graph_misfit(g, n, "x must be real");
	for (int i = 0; i < x->ndim; i++) {
		const int from = attr->order[i];

		if (from < 0 || from >= x->ndim || seen & BIT(from))
			return graph_misfit(g, n,
					    "dimension %d of the new order is missing in x "
					    "or named twice",
					    from);
		seen |= BIT(from);
		dim[i] = x->dim[from];
	}
	return graph_out(g, n, NULL, x->type, x->ndim, dim);
}

static void cost(const struct node *n, struct op_cost *c)
{
	c->forward_bytes = 2 * (double)tensor_bytes(n->in[0]);
	c->backward_bytes = c->forward_bytes;
}

/* An activation with two readers. */
static void apply(struct graph *g, struct tensor *x, const int *order)
{
	graph_seeded_output(g, "y", op_gelu(g, "after", op_permute(g, "permute", x, order)));
	graph_seeded_output(g, "z", op_permute(g, "again", x, order));
}

#define ORDER(...) ((const int[]){ __VA_ARGS__ })

BUILD_CASE(case_heads, apply(g, op_gelu(g, "x", case_param(g, "p", 2, 5, 3, 8)), ORDER(0, 2, 1, 3)))
BUILD_CASE(case_odd, apply(g, op_gelu(g, "x", case_param(g, "p", 2, 5, 3, 7)), ORDER(0, 2, 1, 3)))
BUILD_CASE(case_transposed, apply(g, op_gelu(g, "x", case_param(g, "p", 37, 21)), ORDER(1, 0)))
BUILD_CASE(case_rotated, apply(g, op_gelu(g, "x", case_param(g, "p", 3, 5, 7)), ORDER(2, 0, 1)))
BUILD_CASE(case_reversed, apply(g, case_param(g, "p", 2, 3, 4, 5), ORDER(3, 2, 1, 0)))
BUILD_CASE(case_same, apply(g, case_param(g, "p", 1), ORDER(0)))
BUILD_CASE(case_threads, apply(g, case_param(g, "p", 130, 141), ORDER(1, 0)))

static struct tensor *wide(struct graph *g, int64_t width)
{
	return op_linear(g, "wide", case_param(g, "x", 2, 3, 4), case_param(g, "w", 4, width),
			 NULL);
}

/* The heads of some channels of a projection: rows are tokens. */
static void case_token_slice(struct graph *g)
{
	struct tensor *slice = graph_slice(g, wide(g, 13), 4, 6);

	apply(g, graph_reshape(g, slice, 4, SHAPE(2, 3, 2, 3)), ORDER(0, 2, 1, 3));
}

/* Some channels of every head: rows are heads. */
static void case_head_slice(struct graph *g)
{
	struct tensor *heads = graph_reshape(g, wide(g, 16), 4, SHAPE(2, 3, 2, 8));

	apply(g, graph_slice(g, heads, 5, 3), ORDER(0, 2, 3, 1));
}

OP_CASES(permute) = {
	OP_CASE("heads", case_heads),
	OP_CASE("heads of odd width", case_odd),
	OP_CASE("transposed", case_transposed),
	OP_CASE("rotated", case_rotated),
	OP_CASE("reversed", case_reversed),
	OP_CASE("one dimension", case_same),
	OP_CASE("threads", case_threads),
	OP_CASE("slice of tokens", case_token_slice),
	OP_CASE("slice of heads", case_head_slice),
	OP_CASES_END,
};

const struct op op_desc_permute = {
	.name = "permute",
	.attr_size = sizeof(struct permute_attr),
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(0),
	.strided_heads_in = BIT(0),
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = permute_cases,
};
