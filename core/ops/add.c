/*
 * add: y = a + b.  Both gradients are dy itself.
 */
#include "core/ops/rule.h"

struct tensor *op_add(struct graph *g, const char *name, struct tensor *a, struct tensor *b)
{
	struct tensor *in[] = { a, b };

	op_broadcast(g, name, &in[0], &in[1]);
	return node_out(graph_node(g, OP_add, name, NULL, 2, in), 0);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_flops = (double)tensor_count(n->in[0]);
	c->forward_bytes = 3 * bytes;
}

static void case_odd(struct graph *g)
{
	graph_seeded_output(
		g, "y", op_add(g, "add", case_param(g, "a", 3, 5, 7), case_param(g, "b", 3, 5, 7)));
}

static void case_one(struct graph *g)
{
	graph_seeded_output(g, "y", op_add(g, "add", case_param(g, "a", 1), case_param(g, "b", 1)));
}

/* Both inputs are one tensor, which other nodes read, too. */
static void case_same(struct graph *g)
{
	struct tensor *a = op_gelu(g, "gelu", case_param(g, "x", 4, 3));

	graph_seeded_output(g, "y", op_add(g, "add", a, a));
	graph_seeded_output(g, "z", op_gelu(g, "again", a));
}

static void case_threads(struct graph *g)
{
	graph_seeded_output(
		g, "y", op_add(g, "add", case_param(g, "a", 9, 2011), case_param(g, "b", 9, 2011)));
}

/* Activations whose count is a multiple of eight: a device may take so many at once. */
static void case_eights(struct graph *g)
{
	struct tensor *a = op_gelu(g, "left", case_param(g, "p", 3, 8));
	struct tensor *b = op_gelu(g, "right", case_param(g, "q", 3, 8));

	graph_seeded_output(g, "y", op_gelu(g, "after", op_add(g, "add", a, b)));
}

OP_CASES(add) = {
	OP_CASE("odd shape", case_odd),		OP_CASE("one element", case_one),
	OP_CASE("one tensor twice", case_same), OP_CASE("threads", case_threads),
	OP_CASE("eights", case_eights),		OP_CASES_END,
};

const struct op op_desc_add = {
	.name = "add",
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer_elementwise,
	.cost = cost,
	.passes_gradient = true,
	.bf16_in = BIT(0) | BIT(1),
	.bf16_out = BIT(0),
	.cases = add_cases,
};
