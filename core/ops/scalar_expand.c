/*
 * scalar_expand: coupling without a matrix.  Hidden channel c of F reads
 * latent channel floor(cL/F), scaled by the scalar floor(cH/F):
 *   y_c = s[cH/F] x[cL/F], x [B,T,L], s [H], y [B,T,F], F >= L.
 */
#include "core/ops/scalar_rule.h"

struct tensor *op_scalar_expand(struct graph *g, const char *name, struct tensor *x,
				struct tensor *s, int64_t width)
{
	return scalar_node(g, OP_scalar_expand, name, x, s, width);
}

static enum status infer(struct graph *g, struct node *n)
{
	return infer_scalar(g, n, true);
}

static void cost(const struct node *n, struct op_cost *c)
{
	cost_scalar(n, c, n->out[0], 4);
}

BUILD_CASE(case_even, scalar_alone(g, op_scalar_expand, case_param(g, "x", 2, 3, 4), 2, 16))
/* Neither L nor H divides F. */
BUILD_CASE(case_uneven, scalar_alone(g, op_scalar_expand, case_param(g, "x", 2, 3, 5), 3, 13))
BUILD_CASE(case_equal, scalar_alone(g, op_scalar_expand, case_param(g, "x", 1, 2, 6), 4, 6))
BUILD_CASE(case_one, scalar_alone(g, op_scalar_expand, case_param(g, "x", 1, 1, 1), 1, 1))
BUILD_CASE(case_threads, scalar_alone(g, op_scalar_expand, case_param(g, "x", 3, 157, 7), 3, 41))

BUILD_CASE(case_chain, scalar_chain(g, op_scalar_expand, 3, 5, 8))

OP_CASES(scalar_expand) = {
	OP_CASE("even blocks", case_even),
	OP_CASE("uneven blocks", case_uneven),
	OP_CASE("equal widths", case_equal),
	OP_CASE("one element", case_one),
	OP_CASE("between others", case_chain),
	OP_CASE("threads", case_threads),
	OP_CASES_END,
};

const struct op op_desc_scalar_expand = {
	.name = "scalar_expand",
	.attr_size = sizeof(struct scalar_attr),
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer,
	.cost = cost,
	.saves_in = BIT(0) | BIT(1),
	.recompute_rule = { .made = BIT(0), .in = BIT(0) | BIT(1) },
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = scalar_expand_cases,
};
