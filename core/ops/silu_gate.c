/*
 * silu_gate: y = silu(gate) * x, silu(u) = u / (1 + exp(-u)).
 * (N. Shazeer, "GLU variants improve transformer", 2020: the gate of SwiGLU.)
 */
#include "core/ops/rule.h"

struct tensor *op_silu_gate(struct graph *g, const char *name, struct tensor *gate,
			    struct tensor *x)
{
	struct tensor *in[] = { gate, x };

	return node_out(graph_node(g, OP_silu_gate, name, NULL, 2, in), 0);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_bytes = 3 * bytes;  /* gate, x, y */
	c->backward_bytes = 5 * bytes; /* gate, x, dy, dgate, dx */
}

static void apply(struct graph *g, struct tensor *gate, struct tensor *x)
{
	graph_seeded_output(g, "y", op_silu_gate(g, "silu_gate", gate, x));
}

static void case_odd(struct graph *g)
{
	apply(g, case_param(g, "gate", 3, 5, 7), case_param(g, "x", 3, 5, 7));
}

static void case_one(struct graph *g)
{
	apply(g, case_param(g, "gate", 1), case_param(g, "x", 1));
}

static void case_same(struct graph *g)
{
	struct tensor *x = op_gelu(g, "gelu", case_param(g, "x", 4, 3));

	apply(g, x, x);
}

static void case_chain(struct graph *g)
{
	struct tensor *gate = op_gelu(g, "a", case_param(g, "gate", 4, 3));
	struct tensor *x = op_gelu(g, "b", case_param(g, "x", 4, 3));

	graph_seeded_output(g, "y", op_gelu(g, "gelu", op_silu_gate(g, "silu_gate", gate, x)));
}

static void case_fixed_gate(struct graph *g)
{
	apply(g, case_input(g, "gate", g->type, 3, 4), case_param(g, "x", 3, 4));
}

static void case_fixed_x(struct graph *g)
{
	apply(g, case_param(g, "gate", 3, 4), case_input(g, "x", g->type, 3, 4));
}

static void case_threads(struct graph *g)
{
	apply(g, case_param(g, "gate", 9, 2011), case_param(g, "x", 9, 2011));
}

/* Activations whose count is a multiple of eight: a device may take so many at once. */
static void case_eights(struct graph *g)
{
	struct tensor *a = op_gelu(g, "left", case_param(g, "p", 3, 8));
	struct tensor *b = op_gelu(g, "right", case_param(g, "q", 3, 8));

	graph_seeded_output(g, "y", op_gelu(g, "after", op_silu_gate(g, "silu_gate", a, b)));
}

OP_CASES(silu_gate) = {
	OP_CASE("odd shape", case_odd),
	OP_CASE("one element", case_one),
	OP_CASE("gate is x", case_same),
	OP_CASE("between others", case_chain),
	OP_CASE("gate without gradient", case_fixed_gate),
	OP_CASE("x without gradient", case_fixed_x),
	OP_CASE("threads", case_threads),
	OP_CASE("eights", case_eights),
	OP_CASES_END,
};

const struct op op_desc_silu_gate = {
	.name = "silu_gate",
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer_elementwise,
	.cost = cost,
	.saves_in = BIT(0) | BIT(1),
	.grad_in_place = true,
	.recompute_rule = { .made = BIT(0), .in = BIT(0) | BIT(1) },
	.narrow_in = BIT(0) | BIT(1),
	.narrow_out = BIT(0),
	.cases = silu_gate_cases,
};
