/*
 * sigmoid: y = 1 / (1 + exp(-x)), dx = dy y (1 - y).
 */
#include "core/ops/rule.h"

struct tensor *op_sigmoid(struct graph *g, const char *name, struct tensor *x)
{
	return node_out(graph_node(g, OP_sigmoid, name, NULL, 1, &x), 0);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_bytes = 2 * bytes;  /* x, y */
	c->backward_bytes = 3 * bytes; /* y, dy, dx */
}

static void case_odd(struct graph *g)
{
	graph_seeded_output(g, "y", op_sigmoid(g, "sigmoid", case_param(g, "x", 3, 5, 7)));
}

static void case_one(struct graph *g)
{
	graph_seeded_output(g, "y", op_sigmoid(g, "sigmoid", case_param(g, "x", 1)));
}

static void case_chain(struct graph *g)
{
	struct tensor *x = op_scale(g, "scale", case_param(g, "x", 4, 3), 10, NULL);

	graph_seeded_output(g, "z", op_sigmoid(g, "other", x));
	graph_seeded_output(g, "y", op_gelu(g, "gelu", op_sigmoid(g, "sigmoid", x)));
}

static void case_threads(struct graph *g)
{
	graph_seeded_output(g, "y", op_sigmoid(g, "sigmoid", case_param(g, "x", 9, 2011)));
}

/* Activations whose count is a multiple of eight: a device may take so many at once. */
static void case_eights(struct graph *g)
{
	struct tensor *a = op_gelu(g, "left", case_param(g, "p", 3, 8));

	graph_seeded_output(g, "y", op_gelu(g, "after", op_sigmoid(g, "sigmoid", a)));
}

OP_CASES(sigmoid) = {
	OP_CASE("odd shape", case_odd),	       OP_CASE("one element", case_one),
	OP_CASE("between others", case_chain), OP_CASE("threads", case_threads),
	OP_CASE("eights", case_eights),	       OP_CASES_END,
};

const struct op op_desc_sigmoid = {
	.name = "sigmoid",
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer_elementwise,
	.cost = cost,
	.saves_out = BIT(0),
	.grad_in_place = true,
	.narrow_in = BIT(0),
	.narrow_out = BIT(0),
	.cases = sigmoid_cases,
};
