/*
 * head_linear: y_h = x_h W_h for every head h: a matrix per head, or the
 * blocks of a block-diagonal matrix.  x [B,T,H,I] holds a piece per head.
 * All heads read x [B,T,I]; its gradient is the sum over heads.
 */
#include "core/ops/rule.h"

struct tensor *op_head_linear(struct graph *g, const char *name, struct tensor *x, struct tensor *w)
{
	struct tensor *in[] = { x, w };

	return node_out(graph_node(g, OP_head_linear, name, NULL, 2, in), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct tensor *x = n->in[0], *w = n->in[1];
	int64_t heads, takes, row;

	if (!all_real(n))
		return graph_misfit(g, n, "inputs must be real");
	if (w->ndim != 3)
		return graph_misfit(g, n, "the weight must have 3 dimensions, not %d", w->ndim);
	if (x->ndim != 3 && x->ndim != 4)
		return graph_misfit(g, n, "x must be [B,T,I] or [B,T,H,I]");
	heads = w->dim[0];
	takes = w->dim[1];
	if (x->ndim == 4 && x->dim[2] != heads)
		return graph_misfit(g, n, "x has %lld heads, the weight %lld", (long long)x->dim[2],
				    (long long)heads);
	if (tensor_dim(x, -1) != takes)
		return graph_misfit(g, n, "x has %lld channels, the weight takes %lld",
				    (long long)tensor_dim(x, -1), (long long)takes);
	row = x->ndim == 4 ? heads * takes : takes;
	if (!tensor_contiguous(x) && x->row != takes && x->row != row)
		return graph_misfit(g, n, "x is a slice whose rows are neither heads nor tokens");
	return graph_out(g, n, NULL, x->type, 4, SHAPE(x->dim[0], x->dim[1], heads, w->dim[2]));
}

static void cost(const struct node *n, struct op_cost *c)
{
	double product = 2.0 * (double)tensor_count(n->out[0]) * (double)n->in[1]->dim[1];
	double bytes =
		(double)(tensor_bytes(n->in[0]) + tensor_bytes(n->in[1]) + tensor_bytes(n->out[0]));

	c->forward_flops = product;
	c->backward_flops = 2 * product;
	c->forward_bytes = bytes;
	c->backward_bytes = 2 * bytes;
}

static void apply(struct graph *g, struct tensor *x, struct tensor *w)
{
	graph_seeded_output(g, "y", op_head_linear(g, "head_linear", x, w));
}

BUILD_CASE(case_per_head, apply(g, case_param(g, "x", 2, 5, 3, 7), case_param(g, "w", 3, 7, 4)))
BUILD_CASE(case_shared, apply(g, case_param(g, "x", 2, 5, 7), case_param(g, "w", 3, 7, 4)))
BUILD_CASE(case_one, apply(g, case_param(g, "x", 1, 1, 1, 3), case_param(g, "w", 1, 3, 2)))
BUILD_CASE(case_one_shared, apply(g, case_param(g, "x", 1, 1, 3), case_param(g, "w", 1, 3, 2)))

/* Slices of an activation: channels outside them have no gradient. */
static struct tensor *wide(struct graph *g, struct tensor *x, int64_t width)
{
	return op_linear(g, "wide", x, case_param(g, "u", tensor_dim(x, -1), width), NULL);
}

/* Rows of one token: the heads of a slice of a wider projection. */
static void case_token_slice(struct graph *g)
{
	struct tensor *slice = graph_slice(g, wide(g, case_param(g, "x", 2, 3, 4), 13), 4, 6);

	apply(g, graph_reshape(g, slice, 4, SHAPE(2, 3, 2, 3)), case_param(g, "w", 2, 3, 5));
}

/* Rows of one head: some channels of every head. */
static void case_head_slice(struct graph *g)
{
	struct tensor *slice = graph_slice(g, wide(g, case_param(g, "x", 2, 3, 2, 3), 7), 1, 4);

	apply(g, slice, case_param(g, "w", 2, 4, 3));
}

static void case_shared_slice(struct graph *g)
{
	struct tensor *slice = graph_slice(g, wide(g, case_param(g, "x", 2, 3, 4), 9), 5, 4);

	apply(g, slice, case_param(g, "w", 2, 4, 3));
}

/* x and W are read three times: their gradients add up. */
static void case_reuse(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 1, 4, 3), *w = case_param(g, "w", 2, 3, 3);

	graph_seeded_output(g, "y", op_head_linear(g, "first", x, w));
	graph_seeded_output(g, "z", op_head_linear(g, "second", x, w));
	graph_seeded_output(g, "t",
			    op_head_linear(g, "fourth", op_head_linear(g, "third", x, w), w));
}

/* Large enough for several threads, which then share heads unevenly. */
BUILD_CASE(case_threads, apply(g, case_param(g, "x", 1, 70, 3, 9), case_param(g, "w", 3, 9, 11)))

OP_CASES(head_linear) = {
	OP_CASE("per head", case_per_head),
	OP_CASE("shared", case_shared),
	OP_CASE("one token, one head", case_one),
	OP_CASE("one token, one head, shared", case_one_shared),
	OP_CASE("slice of tokens", case_token_slice),
	OP_CASE("slice of heads", case_head_slice),
	OP_CASE("slice, shared", case_shared_slice),
	OP_CASE("used again", case_reuse),
	OP_CASE("threads", case_threads),
	OP_CASES_END,
};

const struct op op_desc_head_linear = {
	.name = "head_linear",
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(0),
	.strided_heads_in = BIT(0),
	.saves_in = BIT(0) | BIT(1),
	.separate_gradient_in = BIT(0),
	.bf16_in = BIT(0) | BIT(1),
	.bf16_out = BIT(0),
	.cases = head_linear_cases,
};
