/*
 * scale: y = f x with a constant f.  With a learned f it is another op,
 * because only then does the backward pass read x (df = sum dy x).
 */
#include "core/ops/rule.h"

struct tensor *op_scale(struct graph *g, const char *name, struct tensor *x, double constant,
			struct tensor *learned)
{
	const struct factor_attr attr = { constant };
	struct tensor *in[] = { x, learned };

	if (learned)
		return node_out(graph_node(g, OP_scale_learned, name, &attr, 2, in), 0);
	return node_out(graph_node(g, OP_scale, name, &attr, 1, in), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	if (!all_real(n))
		return graph_misfit(g, n, "inputs must be real");
	if (!is_vector(n->in[1], 1))
		return graph_misfit(g, n, "a learned factor must have the shape [1]");
	return graph_out_like(g, n, NULL, n->in[0]);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_flops = (double)tensor_count(n->in[0]);
	c->backward_flops = (n->in[1] ? 3 : 1) * c->forward_flops;
	c->forward_bytes = 2 * bytes;			/* x, y */
	c->backward_bytes = (n->in[1] ? 3 : 2) * bytes; /* dy, dx, and x */
}

static void case_constant(struct graph *g)
{
	graph_seeded_output(g, "y", op_scale(g, "scale", case_param(g, "x", 3, 5, 7), -1.7, NULL));
}

static void case_zero(struct graph *g)
{
	struct tensor *x = op_gelu(g, "gelu", case_param(g, "x", 2, 3));

	graph_seeded_output(g, "y", op_scale(g, "scale", x, 0, NULL));
	graph_seeded_output(g, "z", op_scale(g, "other", x, 2, NULL));
}

/* Activations whose count is a multiple of eight: a device may take so many at once. */
static void case_eights(struct graph *g)
{
	struct tensor *a = op_gelu(g, "left", case_param(g, "p", 3, 8));

	graph_seeded_output(g, "y", op_gelu(g, "after", op_scale(g, "scale", a, 0.5, NULL)));
}

OP_CASES(scale) = {
	OP_CASE("constant", case_constant),
	OP_CASE("by zero", case_zero),
	OP_CASES_END,
};

static void case_learned(struct graph *g)
{
	graph_seeded_output(
		g, "y",
		op_scale(g, "scale", case_param(g, "x", 3, 5, 7), 0, case_param(g, "f", 1)));
}

static void case_one(struct graph *g)
{
	struct tensor *x = op_gelu(g, "gelu", case_param(g, "x", 1));

	graph_seeded_output(g, "y", op_scale(g, "scale", x, 0, case_param(g, "f", 1)));
}

static void case_shared(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 4, 3), *f = case_param(g, "f", 1);

	graph_seeded_output(g, "y", op_scale(g, "first", op_scale(g, "second", x, 0, f), 0, f));
}

static void case_threads(struct graph *g)
{
	graph_seeded_output(
		g, "y",
		op_scale(g, "scale", case_param(g, "x", 9, 2011), 0, case_param(g, "f", 1)));
}

OP_CASES(scale_learned) = {
	OP_CASE("learned", case_learned),	  OP_CASE("one element", case_one),
	OP_CASE("one factor twice", case_shared), OP_CASE("threads", case_threads),
	OP_CASE("eights", case_eights),		  OP_CASES_END,
};

const struct op op_desc_scale = {
	.name = "scale",
	.attr_size = sizeof(struct factor_attr),
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.grad_in_place = true,
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = scale_cases,
};

const struct op op_desc_scale_learned = {
	.name = "scale_learned",
	.attr_size = sizeof(struct factor_attr),
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer,
	.cost = cost,
	.saves_in = BIT(0) | BIT(1),
	.grad_in_place = true,
	.recompute_rule = { .made = BIT(0), .in = BIT(0) | BIT(1) },
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = scale_learned_cases,
};
