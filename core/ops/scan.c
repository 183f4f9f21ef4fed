/*
 * scan: y_t = a_t y_(t-1) + b_t per channel, inputs b, a [B,T,..]; cumsum: the same with a = 1.
 * cumsum is another op, because only scan's backward pass reads a and y.  If runs continue each
 * other, the ops keep the last y.  With h_t = dy_t + a_(t+1) h_(t+1): db_t = h_t, da_t = h_t
 * y_(t-1).
 */
#include "core/ops/rule.h"

struct tensor *op_cumsum(struct graph *g, const char *name, struct tensor *x)
{
	return node_out(graph_node(g, OP_cumsum, name, NULL, 1, &x), 0);
}

struct tensor *op_scan(struct graph *g, const char *name, struct tensor *a, struct tensor *b)
{
	struct tensor *in[] = { b, a };

	return node_out(graph_node(g, OP_scan, name, NULL, 2, in), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct tensor *x = n->in[0];

	for (int i = 0; i < n->n_in; i++)
		if (!is_tokens(n->in[i]))
			return graph_misfit(g, n, "inputs must be real [B,T,..] with whole tokens");
	if (n->n_in > 1 && !tensor_same_shape(x, n->in[1]))
		return graph_misfit(g, n, "shapes differ");
	if (graph_out_like(g, n, NULL, x) != OK)
		return FAIL;
	return g->state ? graph_out_state(
				  g, n, "last", 2,
				  SHAPE(x->dim[0], tensor_count(x) / (x->dim[0] * x->dim[1])))
			: OK;
}

static void cost(const struct node *n, struct op_cost *c)
{
	const double count = (double)tensor_count(n->in[0]), bytes = (double)tensor_bytes(n->in[0]);

	c->forward_flops = n->n_in * count;
	c->backward_flops = (n->n_in > 1 ? 3 : 1) * count;
	c->forward_bytes = (n->n_in + 1) * bytes;	   /* b, a, y */
	c->backward_bytes = (n->n_in > 1 ? 5 : 2) * bytes; /* dy, db; a, y, da */
}

/* -------------------------------------------------------------------- cases */

static void sum_alone(struct graph *g, struct tensor *x)
{
	graph_seeded_output(g, "y", op_cumsum(g, "sum", x));
}

BUILD_CASE(case_sum_odd, sum_alone(g, case_param(g, "x", 3, 5, 7)))
BUILD_CASE(case_sum_one, sum_alone(g, case_param(g, "x", 1, 1, 1)))

/* Heads, more channels than one block of columns; x is read twice. */
static void case_sum_wide(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 2, 37, 3, 43));

	graph_seeded_output(g, "y", op_cumsum(g, "first", x));
	graph_seeded_output(g, "z", op_gelu(g, "after", op_cumsum(g, "second", x)));
}

BUILD_CASE(case_sum_threads, sum_alone(g, op_gelu(g, "before", case_param(g, "x", 3, 701, 9))))

static void case_sum_slice(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 2, 35, 13));

	sum_alone(g, graph_slice(g, x, 4, 9));
	case_add_to(g, "front", graph_slice(g, x, 0, 4), NULL);
}

OP_CASES(cumsum) = {
	OP_CASE("odd shape", case_sum_odd),	 OP_CASE("one element", case_sum_one),
	OP_CASE("many channels", case_sum_wide), OP_CASE("threads", case_sum_threads),
	OP_CASE("slice", case_sum_slice),	 OP_CASES_END,
};

static void scan_of(struct graph *g, struct tensor *a, struct tensor *b)
{
	graph_seeded_output(g, "y", op_scan(g, "scan", a, b));
}

BUILD_CASE(case_odd, scan_of(g, case_param(g, "a", 3, 5, 7), case_param(g, "b", 3, 5, 7)))
BUILD_CASE(case_one, scan_of(g, case_param(g, "a", 1, 1, 1), case_param(g, "b", 1, 1, 1)))

static void case_wide(struct graph *g)
{
	struct tensor *a = op_sigmoid(g, "gate", case_param(g, "a", 2, 37, 3, 43));
	struct tensor *b = op_gelu(g, "before", case_param(g, "b", 2, 37, 3, 43));

	graph_seeded_output(g, "y", op_gelu(g, "after", op_scan(g, "first", a, b)));
	graph_seeded_output(g, "z", op_scan(g, "second", a, b));
}

BUILD_CASE(case_threads, scan_of(g, op_sigmoid(g, "gate", case_param(g, "a", 3, 701, 9)),
				 op_gelu(g, "before", case_param(g, "b", 3, 701, 9))))

/* Both are one tensor, and both are slices of one. */
static void case_same(struct graph *g)
{
	struct tensor *x = op_tanh(g, "before", case_param(g, "x", 2, 35, 6));

	scan_of(g, x, x);
	graph_seeded_output(
		g, "slices",
		op_scan(g, "of slices", graph_slice(g, x, 0, 3), graph_slice(g, x, 3, 3)));
}

BUILD_CASE(case_fixed_gate,
	   scan_of(g, case_input(g, "a", g->type, 2, 40, 3), case_param(g, "b", 2, 40, 3)))
BUILD_CASE(case_fixed_input, scan_of(g, op_sigmoid(g, "gate", case_param(g, "a", 2, 40, 3)),
				     case_input(g, "b", g->type, 2, 40, 3)))

OP_CASES(scan) = {
	OP_CASE("odd shape", case_odd),
	OP_CASE("one element", case_one),
	OP_CASE("many channels", case_wide),
	OP_CASE("threads", case_threads),
	OP_CASE("one tensor twice", case_same),
	OP_CASE("a without gradient", case_fixed_gate),
	OP_CASE("b without gradient", case_fixed_input),
	OP_CASES_END,
};

#define BOTH (BIT(0) | BIT(1))

const struct op op_desc_cumsum = {
	.name = "cumsum",
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(0),
	.strided_heads_in = BIT(0),
	.grad_in_place = true,
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = cumsum_cases,
};

const struct op op_desc_scan = {
	.name = "scan",
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer,
	.cost = cost,
	.strided_in = BOTH,
	.strided_heads_in = BOTH,
	.saves_in = BIT(1),
	.saves_out = BIT(0),
	.grad_in_place = true,
	.bf16_in = BOTH,
	.bf16_out = BIT(0),
	.cases = scan_cases,
};
