/*
 * scalar_pool: the way back of scalar_expand.  Latent channel i of L
 * receives the mean of the hidden channels that read it:
 *   y_i = s[iH/L] mean of x_c over floor(cL/F) = i, x [B,T,F], s [H], y [B,T,L], F >= L.
 */
#include "core/ops/scalar_rule.h"

struct tensor *op_scalar_pool(struct graph *g, const char *name, struct tensor *x, struct tensor *s,
			      int64_t width)
{
	return scalar_node(g, OP_scalar_pool, name, x, s, width);
}

static enum status infer(struct graph *g, struct node *n)
{
	return infer_scalar(g, n, false);
}

static void cost(const struct node *n, struct op_cost *c)
{
	cost_scalar(n, c, n->in[0], 2);
}

BUILD_CASE(case_even, scalar_alone(g, op_scalar_pool, case_param(g, "x", 2, 3, 16), 2, 4))
/* Neither L nor H divides F. */
BUILD_CASE(case_uneven, scalar_alone(g, op_scalar_pool, case_param(g, "x", 2, 3, 13), 3, 5))
BUILD_CASE(case_equal, scalar_alone(g, op_scalar_pool, case_param(g, "x", 1, 2, 6), 4, 6))
BUILD_CASE(case_one, scalar_alone(g, op_scalar_pool, case_param(g, "x", 1, 1, 3), 1, 1))
BUILD_CASE(case_threads, scalar_alone(g, op_scalar_pool, case_param(g, "x", 3, 157, 41), 3, 7))

BUILD_CASE(case_chain, scalar_chain(g, op_scalar_pool, 9, 5, 3))

OP_CASES(scalar_pool) = {
	OP_CASE("even blocks", case_even),
	OP_CASE("uneven blocks", case_uneven),
	OP_CASE("equal widths", case_equal),
	OP_CASE("one latent channel", case_one),
	OP_CASE("between others", case_chain),
	OP_CASE("threads", case_threads),
	OP_CASES_END,
};

const struct op op_desc_scalar_pool = {
	.name = "scalar_pool",
	.attr_size = sizeof(struct scalar_attr),
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer,
	.cost = cost,
	.saves_in = BIT(0) | BIT(1),
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = scalar_pool_cases,
};
