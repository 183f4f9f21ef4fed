/*
 * head_gate: y = o (1 - a + a gate): o [B,T,H,D], gate [B,T,H] or one for the
 * whole sequence [B,1,H], a constant or learned [1].
 */
#include "core/ops/rule.h"

struct tensor *op_head_gate(struct graph *g, const char *name, struct tensor *o,
			    struct tensor *gate, double constant, struct tensor *learned)
{
	const struct factor_attr attr = { constant };
	struct tensor *in[] = { o, gate, learned };

	return node_out(graph_node(g, OP_head_gate, name, &attr, 3, in), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct tensor *o = n->in[0], *gate = n->in[1];

	if (!all_real(n))
		return graph_misfit(g, n, "inputs must be real");
	if (o->ndim != 4 || gate->ndim != 3)
		return graph_misfit(g, n, "o must be [B,T,H,D] and the gate [B,T,H] or [B,1,H]");
	if (gate->dim[0] != o->dim[0] || gate->dim[2] != o->dim[2] ||
	    (gate->dim[1] != o->dim[1] && gate->dim[1] != 1))
		return graph_misfit(g, n, "the gate does not fit the heads");
	if (!is_vector(n->in[2], 1))
		return graph_misfit(g, n, "a learned factor must have the shape [1]");
	return graph_out_like(g, n, NULL, o);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_flops = (double)tensor_count(n->in[0]);
	c->backward_flops = 3 * c->forward_flops;
	c->forward_bytes = 2 * bytes;  /* o, y */
	c->backward_bytes = 3 * bytes; /* o, dy, do */
}

static void apply(struct graph *g, struct tensor *o, struct tensor *gate, double constant,
		  struct tensor *learned)
{
	graph_seeded_output(g, "y", op_head_gate(g, "head_gate", o, gate, constant, learned));
}

BUILD_CASE(case_token,
	   apply(g, case_param(g, "o", 2, 5, 3, 7), case_param(g, "gate", 2, 5, 3), 0.1, NULL))
BUILD_CASE(case_sequence,
	   apply(g, case_param(g, "o", 2, 5, 3, 7), case_param(g, "gate", 2, 1, 3), 0.1, NULL))
BUILD_CASE(case_learned, apply(g, case_param(g, "o", 2, 5, 3, 7), case_param(g, "gate", 2, 5, 3), 0,
			       case_param(g, "a", 1)))
BUILD_CASE(case_learned_sequence, apply(g, case_param(g, "o", 2, 5, 3, 7),
					case_param(g, "gate", 2, 1, 3), 0, case_param(g, "a", 1)))
BUILD_CASE(case_one,
	   apply(g, case_param(g, "o", 1, 1, 1, 1), case_param(g, "gate", 1, 1, 1), 0.7, NULL))

static void case_chain(struct graph *g)
{
	struct tensor *o = op_gelu(g, "before", case_param(g, "o", 1, 4, 2, 3));
	struct tensor *gate = op_sigmoid(g, "sigmoid", case_param(g, "gate", 1, 4, 2));
	struct tensor *y = op_head_gate(g, "first", o, gate, 0.3, NULL);

	y = op_head_gate(g, "second", y, gate, 1, NULL);
	graph_seeded_output(g, "y", op_gelu(g, "after", y));
}

BUILD_CASE(case_fixed_gate, apply(g, case_param(g, "o", 2, 3, 2, 5),
				  case_input(g, "gate", g->type, 2, 3, 2), 0.5, NULL))
BUILD_CASE(case_threads, apply(g, case_param(g, "o", 3, 157, 4, 11), case_param(g, "gate", 3, 1, 4),
			       0, case_param(g, "a", 1)))

/* Channels that a thread takes together. */
static void case_even(struct graph *g)
{
	struct tensor *o = op_gelu(g, "before", case_param(g, "o", 2, 5, 3, 24));

	apply(g, o, case_param(g, "gate", 2, 1, 3), 0, case_param(g, "a", 1));
}

OP_CASES(head_gate) = {
	OP_CASE("per token", case_token),
	OP_CASE("per sequence", case_sequence),
	OP_CASE("per token, learned", case_learned),
	OP_CASE("per sequence, learned", case_learned_sequence),
	OP_CASE("one element", case_one),
	OP_CASE("between others", case_chain),
	OP_CASE("gate without gradient", case_fixed_gate),
	OP_CASE("threads", case_threads),
	OP_CASE("even width", case_even),
	OP_CASES_END,
};

const struct op op_desc_head_gate = {
	.name = "head_gate",
	.attr_size = sizeof(struct factor_attr),
	.min_inputs = 2,
	.max_inputs = 3,
	.infer = infer,
	.cost = cost,
	.saves_in = BIT(0) | BIT(1) | BIT(2),
	.grad_in_place = true,
	.recompute_rule = { .made = BIT(0), .in = BIT(0) | BIT(1) | BIT(2) },
	.bf16_in = BIT(0) | BIT(1),
	.bf16_out = BIT(0),
	.cases = head_gate_cases,
};
