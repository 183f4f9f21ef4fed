/*
 * softplus: y = log(1 + exp(x)) + eps, dx = dy sigmoid(x).
 */
#include "core/ops/rule.h"

struct tensor *op_softplus(struct graph *g, const char *name, struct tensor *x, double eps)
{
	const struct softplus_attr attr = { eps };

	return node_out(graph_node(g, OP_softplus, name, &attr, 1, &x), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct softplus_attr *attr = n->attr;

	if (!(attr->eps >= 0))
		return graph_misfit(g, n, "eps %g is negative", attr->eps);
	return infer_elementwise(g, n);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_bytes = 2 * bytes;  /* x, y */
	c->backward_bytes = 3 * bytes; /* x, dy, dx */
}

static void case_odd(struct graph *g)
{
	graph_seeded_output(g, "y", op_softplus(g, "softplus", case_param(g, "x", 3, 5, 7), 0.25));
}

static void case_one(struct graph *g)
{
	graph_seeded_output(g, "y", op_softplus(g, "softplus", case_param(g, "x", 1), 0));
}

/* Arguments of several hundred, where exp(x) alone overflows a float. */
static void case_far(struct graph *g)
{
	struct tensor *x = op_scale(g, "scale", case_param(g, "x", 4, 3), 300, NULL);

	graph_seeded_output(g, "y", op_softplus(g, "softplus", x, 1e-4));
}

static void case_chain(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 4, 3));

	graph_seeded_output(g, "z", op_softplus(g, "other", x, 0));
	graph_seeded_output(g, "y", op_gelu(g, "gelu", op_softplus(g, "softplus", x, 0)));
}

static void case_threads(struct graph *g)
{
	graph_seeded_output(g, "y", op_softplus(g, "softplus", case_param(g, "x", 9, 2011), 0));
}

/* Activations whose count is a multiple of eight: a device may take so many at once. */
static void case_eights(struct graph *g)
{
	struct tensor *a = op_gelu(g, "left", case_param(g, "p", 3, 8));

	graph_seeded_output(g, "y", op_gelu(g, "after", op_softplus(g, "softplus", a, 0)));
}

OP_CASES(softplus) = {
	OP_CASE("odd shape", case_odd),
	OP_CASE("one element", case_one),
	OP_CASE("far from zero", case_far),
	OP_CASE("between others", case_chain),
	OP_CASE("threads", case_threads),
	OP_CASE("eights", case_eights),
	OP_CASES_END,
};

const struct op op_desc_softplus = {
	.name = "softplus",
	.attr_size = sizeof(struct softplus_attr),
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.saves_in = BIT(0),
	.grad_in_place = true,
	.recompute_rule = { .made = BIT(0), .in = BIT(0) },
	.narrow_in = BIT(0),
	.narrow_out = BIT(0),
	.cases = softplus_cases,
};
