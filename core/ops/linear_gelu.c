/*
 * linear_gelu: y = gelu(x W + b), for a y that several nodes read.
 *
 *   s = x W + b        y = gelu(s)
 *   ds = dy gelu'(s)        dx = ds W'        dW = x' ds        db = sum of the rows of ds
 *
 * The same as linear and gelu.  A device may apply gelu where it makes the
 * product.  s is an output that no node reads.  The backward pass wants s, and
 * y can be recomputed from it.
 */
#include "core/ops/linear_rule.h"

struct tensor *op_linear_gelu(struct graph *g, const char *name, struct tensor *x, struct tensor *w,
			      struct tensor *b)
{
	struct tensor *in[] = { x, w, b };

	return node_out(graph_node(g, OP_linear_gelu, name, NULL, 3, in), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	if (infer_linear(g, n, false) != OK)
		return FAIL;
	return graph_out_constant(g, n, "before_gelu", n->out[0]->type, n->out[0]->ndim,
				  n->out[0]->dim);
}

/* As of the two ops. */
static void cost(const struct node *n, struct op_cost *c)
{
	const double hidden = (double)tensor_bytes(n->out[1]);

	cost_linear(n, c);
	c->forward_bytes += 2 * hidden;	 /* s, y */
	c->backward_bytes += 3 * hidden; /* s, dy, ds */
}

/* -------------------------------------------------------------------- cases */

static void apply(struct graph *g, struct tensor *x, int64_t gives, bool bias)
{
	struct tensor *w = case_param(g, "w", tensor_dim(x, -1), gives);
	struct tensor *b = bias ? case_param(g, "b", gives) : NULL;

	graph_seeded_output(g, "y", op_linear_gelu(g, "y", x, w, b));
}

BUILD_CASE(case_bias, apply(g, case_param(g, "x", 2, 5, 3), 7, true))
BUILD_CASE(case_no_bias, apply(g, case_param(g, "x", 13, 3), 5, false))
BUILD_CASE(case_one, apply(g, case_param(g, "x", 1), 1, true))

/* As in decoding. */
BUILD_CASE(case_few, apply(g, case_param(g, "x", 2, 1, 16), 24, true))

/* x comes from another op, and is read again; two ops read y. */
static void case_between(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "p", 6, 8));
	struct tensor *y =
		op_linear_gelu(g, "y", x, case_param(g, "w", 8, 8), case_param(g, "b", 8));
	struct tensor *z = op_linear(g, "z", y, case_param(g, "v", 8, 8), NULL);

	y = op_add(g, "both", y, z);
	graph_seeded_output(g, "sum", op_add(g, "sum", x, y));
}

/* y and z have one gradient, which z reads later. */
static void case_one_gradient(struct graph *g)
{
	struct tensor *x = op_gelu(g, "x", case_param(g, "p", 5, 8));
	struct tensor *z = op_gelu(g, "z", case_param(g, "q", 5, 8));
	struct tensor *y =
		op_linear_gelu(g, "y", x, case_param(g, "w", 8, 8), case_param(g, "b", 8));

	graph_seeded_output(g, "sum", op_gelu(g, "after", op_add(g, "added", z, y)));
}

/* Two that share their weight, one after the other. */
static void case_shared(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 6, 4), *w = case_param(g, "w", 4, 4);

	x = op_linear_gelu(g, "first", x, w, NULL);
	graph_seeded_output(g, "y", op_linear_gelu(g, "second", x, w, NULL));
}

/* The weight is made by another op. */
static void case_made_weight(struct graph *g)
{
	struct tensor *w =
		op_linear(g, "w", case_param(g, "u", 8, 3), case_param(g, "v", 3, 16), NULL);
	struct tensor *x = op_gelu(g, "before", case_param(g, "p", 6, 8));

	graph_seeded_output(g, "y", op_linear_gelu(g, "y", x, w, case_param(g, "b", 16)));
}

BUILD_CASE(case_slice, apply(g, graph_slice(g, case_param(g, "x", 2, 3, 9), 4, 5), 6, true))

/* x is data, not learned. */
BUILD_CASE(case_fixed, apply(g, case_input(g, "x", g->type, 7, 3), 4, true))
BUILD_CASE(case_threads, apply(g, case_param(g, "x", 301, 2), 72, true))

OP_CASES(linear_gelu) = {
	OP_CASE("bias", case_bias),
	OP_CASE("no bias", case_no_bias),
	OP_CASE("one number", case_one),
	OP_CASE("few rows", case_few),
	OP_CASE("between others", case_between),
	OP_CASE("one gradient for two", case_one_gradient),
	OP_CASE("shared weight", case_shared),
	OP_CASE("weight from an op", case_made_weight),
	OP_CASE("slice", case_slice),
	OP_CASE("x without gradient", case_fixed),
	OP_CASE("threads", case_threads),
	OP_CASES_END,
};

const struct op op_desc_linear_gelu = {
	.name = "linear_gelu",
	.min_inputs = 2,
	.max_inputs = 3,
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(0),
	.saves_in = BIT(0) | BIT(1),
	.saves_out = BIT(1),
	.inner_out = 1,
	.separate_gradient_in = BIT(0),
	.recompute_rule = { .made = BIT(0), .out = BIT(1) },
	.bf16_in = BIT(0) | BIT(1),
	.bf16_out = BIT(0) | BIT(1),
	.cases = linear_gelu_cases,
};
