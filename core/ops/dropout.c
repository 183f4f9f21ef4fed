/*
 * dropout: y = 0 with probability p, else y = x / (1 - p).
 * (N. Srivastava et al., "Dropout", JMLR 2014.)
 *
 * The mask is a function of (seed, name of the node, iteration, micro-batch,
 * element), so the backward pass draws it again and nothing is stored.
 */
#include "core/ops/rule.h"

struct tensor *op_dropout(struct graph *g, const char *name, struct tensor *x, double probability)
{
	const struct dropout_attr attr = { probability };

	if (!(probability >= 0 && probability < 1)) {
		graph_fail(g, "dropout '%s': probability %g is not in [0, 1)", name, probability);
		return NULL;
	}
	if (!g->training || probability == 0)
		return x;
	return node_out(graph_node(g, OP_dropout, name, &attr, 1, &x), 0);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_bytes = 2 * bytes;  /* x, y */
	c->backward_bytes = 2 * bytes; /* dy, dx */
}

BUILD_CASE(case_odd,
	   graph_seeded_output(g, "y", op_dropout(g, "dropout", case_param(g, "x", 3, 5, 7), 0.4)))
BUILD_CASE(case_one,
	   graph_seeded_output(g, "y", op_dropout(g, "dropout", case_param(g, "x", 1), 0.1)))

/* Two masks of one tensor differ; gradients add up. */
static void case_twice(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 5, 3));

	graph_seeded_output(g, "y", op_dropout(g, "first", x, 0.5));
	graph_seeded_output(g, "z", op_gelu(g, "gelu", op_dropout(g, "second", x, 0.5)));
}

/* Several chunks; the length of the last one is not a multiple of 4. */
BUILD_CASE(case_threads,
	   graph_seeded_output(g, "y", op_dropout(g, "dropout", case_param(g, "x", 9, 2011), 0.2)))

/* Activations whose count is a multiple of eight: a device may take so many at once. */
static void case_eights(struct graph *g)
{
	struct tensor *a = op_gelu(g, "left", case_param(g, "p", 3, 8));

	graph_seeded_output(g, "y", op_gelu(g, "after", op_dropout(g, "dropout", a, 0.2)));
}

OP_CASES(dropout) = {
	OP_CASE("odd shape", case_odd),	  OP_CASE("one element", case_one),
	OP_CASE("two masks", case_twice), OP_CASE("threads", case_threads),
	OP_CASE("eights", case_eights),	  OP_CASES_END,
};

const struct op op_desc_dropout = {
	.name = "dropout",
	.attr_size = sizeof(struct dropout_attr),
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer_elementwise,
	.cost = cost,
	.grad_in_place = true,
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = dropout_cases,
};
