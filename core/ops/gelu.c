/*
 * gelu: y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
 * (D. Hendrycks, K. Gimpel, "Gaussian error linear units", 2016: the form of GPT-2.)
 */
#include "core/ops/rule.h"

struct tensor *op_gelu(struct graph *g, const char *name, struct tensor *x)
{
	return node_out(graph_node(g, OP_gelu, name, NULL, 1, &x), 0);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_bytes = 2 * bytes;  /* x, y */
	c->backward_bytes = 3 * bytes; /* x, dy, dx */
}

static void case_odd(struct graph *g)
{
	graph_seeded_output(g, "y", op_gelu(g, "gelu", case_param(g, "x", 3, 5, 7)));
}

static void case_one(struct graph *g)
{
	graph_seeded_output(g, "y", op_gelu(g, "gelu", case_param(g, "x", 1)));
}

static void case_chain(struct graph *g)
{
	struct tensor *x = op_gelu(g, "first", case_param(g, "x", 4, 3));

	graph_seeded_output(g, "y", op_gelu(g, "second", x));
	graph_seeded_output(g, "z", op_gelu(g, "third", x));
}

static void case_threads(struct graph *g)
{
	graph_seeded_output(g, "y", op_gelu(g, "gelu", case_param(g, "x", 9, 2011)));
}

/* Activations whose count is a multiple of eight: a device may take so many at once. */
static void case_eights(struct graph *g)
{
	struct tensor *a = op_gelu(g, "left", case_param(g, "p", 3, 8));

	graph_seeded_output(g, "y", op_gelu(g, "after", op_gelu(g, "gelu", a)));
}

OP_CASES(gelu) = {
	OP_CASE("odd shape", case_odd),		  OP_CASE("one element", case_one),
	OP_CASE("one after another", case_chain), OP_CASE("threads", case_threads),
	OP_CASE("eights", case_eights),		  OP_CASES_END,
};

const struct op op_desc_gelu = {
	.name = "gelu",
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer_elementwise,
	.cost = cost,
	.saves_in = BIT(0),
	.grad_in_place = true,
	.recompute_rule = { .made = BIT(0), .in = BIT(0) },
	.narrow_in = BIT(0),
	.narrow_out = BIT(0),
	.cases = gelu_cases,
};
