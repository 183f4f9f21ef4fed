/*
 * sequence_mean: y [B,1,C] = mean over all positions of x [B,T,C].
 * Every position sees every other: this op is not causal.
 */
#include "core/ops/rule.h"

struct tensor *op_sequence_mean(struct graph *g, const char *name, struct tensor *x)
{
	return node_out(graph_node(g, OP_sequence_mean, name, NULL, 1, &x), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct tensor *x = n->in[0];

	if (!all_real(n) || x->ndim != 3)
		return graph_misfit(g, n, "x must be real and [B,T,C]");
	return graph_out(g, n, NULL, x->type, 3, SHAPE(x->dim[0], 1, x->dim[2]));
}

static void cost(const struct node *n, struct op_cost *c)
{
	c->forward_flops = (double)tensor_count(n->in[0]);
	c->forward_bytes = (double)tensor_bytes(n->in[0]);
	c->backward_bytes = c->forward_bytes;
}

static void case_odd(struct graph *g)
{
	graph_seeded_output(g, "y", op_sequence_mean(g, "mean", case_param(g, "x", 3, 5, 7)));
}

static void case_one(struct graph *g)
{
	graph_seeded_output(g, "y", op_sequence_mean(g, "mean", case_param(g, "x", 1, 1, 1)));
}

static void case_twice(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 2, 3, 5));

	graph_seeded_output(g, "y", op_sequence_mean(g, "first", x));
	graph_seeded_output(g, "z", op_sequence_mean(g, "second", x));
}

static void case_threads(struct graph *g)
{
	graph_seeded_output(g, "y", op_sequence_mean(g, "mean", case_param(g, "x", 3, 701, 9)));
}

/* Channels that a thread takes together. */
static void case_even(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 2, 67, 24));

	graph_seeded_output(g, "y", op_sequence_mean(g, "mean", x));
}

OP_CASES(sequence_mean) = {
	OP_CASE("odd shape", case_odd),	   OP_CASE("one element", case_one),
	OP_CASE("read twice", case_twice), OP_CASE("threads", case_threads),
	OP_CASE("even width", case_even),  OP_CASES_END,
};

const struct op op_desc_sequence_mean = {
	.name = "sequence_mean",
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = sequence_mean_cases,
};
