/*
 * rope: rotary positions.  Position past + t rotates the pair of channels
 * (i, i + width/2) of x [B,T,H,n] by the angle (past + t) theta^(-2i/width),
 * i < width/2;
 * channels from `width` on pass unchanged.  The gradient is rotated back.
 * (J. Su et al., "RoFormer", 2021, with the pairs split in halves.)
 */
#include "core/ops/rule.h"

struct tensor *op_rope(struct graph *g, const char *name, struct tensor *x, double theta,
		       int64_t width)
{
	const struct rope_attr attr = { theta, width };

	return node_out(graph_node(g, OP_rope, name, &attr, 1, &x), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct rope_attr *attr = n->attr;
	const struct tensor *x = n->in[0];

	if (!all_real(n) || x->ndim != 4)
		return graph_misfit(g, n, "x must be real and [B,T,H,n]");
	if (attr->width < 2 || attr->width % 2 || attr->width > x->dim[3])
		return graph_misfit(g, n, "width %lld is not an even number from 2 to %lld",
				    (long long)attr->width, (long long)x->dim[3]);
	if (!(attr->theta > 0))
		return graph_misfit(g, n, "theta %g is not positive", attr->theta);
	if (x->row % x->dim[3])
		return graph_misfit(g, n, "x is a slice whose rows are not whole heads");
	return graph_out_like(g, n, NULL, x);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_flops = 3 * (double)tensor_count(n->in[0]);
	c->backward_flops = c->forward_flops;
	c->forward_bytes = 2 * bytes;  /* x, y */
	c->backward_bytes = 2 * bytes; /* dy, dx */
}

static void apply(struct graph *g, struct tensor *x, int64_t width)
{
	graph_seeded_output(g, "y", op_rope(g, "rope", x, 10000, width));
}

BUILD_CASE(case_whole, apply(g, case_param(g, "x", 2, 5, 3, 6), 6))
BUILD_CASE(case_part, apply(g, case_param(g, "x", 2, 5, 3, 7), 4))
BUILD_CASE(case_one, apply(g, case_param(g, "x", 1, 1, 1, 2), 2))

/* The heads of some channels of a projection: rows are tokens. */
static void case_slice(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 2, 3, 4);
	struct tensor *wide = op_linear(g, "wide", x, case_param(g, "w", 4, 17), NULL);
	struct tensor *slice = graph_slice(g, wide, 3, 12);

	apply(g, graph_reshape(g, slice, 4, SHAPE(2, 3, 3, 4)), 4);
}

/* Some channels of every head: rows are heads. */
static void case_head_slice(struct graph *g)
{
	struct tensor *x = op_gelu(g, "gelu", case_param(g, "x", 2, 3, 2, 9));

	apply(g, graph_slice(g, x, 2, 6), 6);
}

/* Read twice, rotated twice, and kept by later nodes. */
static void case_chain(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 1, 7, 2, 4));
	struct tensor *y = op_rope(g, "first", op_rope(g, "second", x, 100, 2), 10, 4);

	graph_seeded_output(g, "y", op_gelu(g, "after", y));
	graph_seeded_output(g, "z", op_rope(g, "third", x, 10, 4));
}

/* More positions than the coarse table of angles has entries, and several threads. */
BUILD_CASE(case_long, apply(g, case_param(g, "x", 1, 157, 11, 10), 10))

/* So many pairs that a GPU makes tables, and channels that a thread takes together; some pass. */
static void case_tables(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 2, 131, 7, 48));

	apply(g, graph_slice(g, x, 8, 40), 32);
	graph_seeded_output(g, "odd", op_rope(g, "other", graph_slice(g, x, 3, 42), 100, 42));
}

OP_CASES(rope) = {
	OP_CASE("all channels", case_whole),
	OP_CASE("some channels", case_part),
	OP_CASE("one token", case_one),
	OP_CASE("slice of tokens", case_slice),
	OP_CASE("slice of heads", case_head_slice),
	OP_CASE("between others", case_chain),
	OP_CASE("many positions", case_long),
	OP_CASE("tables", case_tables),
	OP_CASES_END,
};

const struct op op_desc_rope = {
	.name = "rope",
	.attr_size = sizeof(struct rope_attr),
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(0),
	.strided_heads_in = BIT(0),
	.grad_in_place = true,
	.recompute_rule = { .made = BIT(0), .in = BIT(0) },
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = rope_cases,
};
