/*
 * multiply: y = a * b, element by element.
 */
#include "core/ops/rule.h"

struct tensor *op_multiply(struct graph *g, const char *name, struct tensor *a, struct tensor *b)
{
	struct tensor *in[] = { a, b };

	return node_out(graph_node(g, OP_multiply, name, NULL, 2, in), 0);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_flops = (double)tensor_count(n->in[0]);
	c->backward_flops = 2 * c->forward_flops;
	c->forward_bytes = 3 * bytes;  /* a, b, y */
	c->backward_bytes = 5 * bytes; /* a, b, dy, da, db */
}

static void case_odd(struct graph *g)
{
	graph_seeded_output(g, "y",
			    op_multiply(g, "multiply", case_param(g, "a", 3, 5, 7),
					case_param(g, "b", 3, 5, 7)));
}

static void case_one(struct graph *g)
{
	graph_seeded_output(
		g, "y", op_multiply(g, "multiply", case_param(g, "a", 1), case_param(g, "b", 1)));
}

/* y = a^2 of an activation: both gradients go to one tensor. */
static void case_square(struct graph *g)
{
	struct tensor *a = op_gelu(g, "gelu", case_param(g, "x", 4, 3));

	graph_seeded_output(g, "y", op_multiply(g, "multiply", a, a));
}

static void case_chain(struct graph *g)
{
	struct tensor *a = op_gelu(g, "a", case_param(g, "x", 4, 3));
	struct tensor *b = op_gelu(g, "b", case_param(g, "z", 4, 3));

	graph_seeded_output(g, "y", op_gelu(g, "gelu", op_multiply(g, "multiply", a, b)));
}

static void case_constant(struct graph *g)
{
	graph_seeded_output(g, "y",
			    op_multiply(g, "multiply", case_input(g, "a", g->type, 3, 4),
					case_param(g, "b", 3, 4)));
}

static void case_threads(struct graph *g)
{
	graph_seeded_output(g, "y",
			    op_multiply(g, "multiply", case_param(g, "a", 9, 2011),
					case_param(g, "b", 9, 2011)));
}

/* Activations whose count is a multiple of eight: a device may take so many at once. */
static void case_eights(struct graph *g)
{
	struct tensor *a = op_gelu(g, "left", case_param(g, "p", 3, 8));
	struct tensor *b = op_gelu(g, "right", case_param(g, "q", 3, 8));

	graph_seeded_output(g, "y", op_gelu(g, "after", op_multiply(g, "multiply", a, b)));
}

OP_CASES(multiply) = {
	OP_CASE("odd shape", case_odd),
	OP_CASE("one element", case_one),
	OP_CASE("square", case_square),
	OP_CASE("between others", case_chain),
	OP_CASE("constant factor", case_constant),
	OP_CASE("threads", case_threads),
	OP_CASE("eights", case_eights),
	OP_CASES_END,
};

const struct op op_desc_multiply = {
	.name = "multiply",
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer_elementwise,
	.cost = cost,
	.saves_in = BIT(0) | BIT(1),
	.grad_in_place = true,
	.recompute_rule = { .made = BIT(0), .in = BIT(0) | BIT(1) },
	.narrow_in = BIT(0) | BIT(1),
	.narrow_out = BIT(0),
	.cases = multiply_cases,
};
