/*
 * ws_energy: L_Z of WsFFN, mean |z|^2 over tokens and heads of z [B,T,n,w].
 */
#include "core/ops/rule.h"

struct tensor *op_ws_energy(struct graph *g, const char *name, struct tensor *z)
{
	return node_out(graph_node(g, OP_ws_energy, name, NULL, 1, &z), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	if (!all_real(n) || n->in[0]->ndim != 4)
		return graph_misfit(g, n, "z must be real and [B,T,n,w]");
	return graph_out(g, n, NULL, n->in[0]->type, 1, SHAPE(1));
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_flops = 2 * (double)tensor_count(n->in[0]);
	c->backward_flops = (double)tensor_count(n->in[0]);
	c->forward_bytes = bytes;
	c->backward_bytes = 2 * bytes; /* z, dz */
}

BUILD_CASE(case_odd,
	   graph_loss(g, "loss", op_ws_energy(g, "energy", case_param(g, "z", 2, 5, 3, 7)), 0.7))
BUILD_CASE(case_one,
	   graph_loss(g, "loss", op_ws_energy(g, "energy", case_param(g, "z", 1, 1, 1, 1)), 1))

static void case_twice(struct graph *g)
{
	struct tensor *z = op_gelu(g, "before", case_param(g, "z", 1, 4, 2, 3));

	graph_loss(g, "loss", op_ws_energy(g, "first", z), 1);
	graph_loss(g, "other", op_ws_energy(g, "second", z), -0.2);
}

BUILD_CASE(case_threads,
	   graph_loss(g, "loss", op_ws_energy(g, "energy", case_param(g, "z", 3, 157, 4, 11)), 100))

OP_CASES(ws_energy) = {
	OP_CASE("odd shape", case_odd),
	OP_CASE("one element", case_one),
	OP_CASE("two losses", case_twice),
	OP_CASE("threads", case_threads),
	OP_CASES_END,
};

const struct op op_desc_ws_energy = {
	.name = "ws_energy",
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.saves_in = BIT(0),
	.loss = true,
	.bf16_in = BIT(0),
	.cases = ws_energy_cases,
};
