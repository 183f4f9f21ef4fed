/*
 * shift: y_t = x_(t - s) for x [B,T,..], a constant for t < s; dx_t = dy_(t + s), or 0.  If runs
 * continue each other, t counts from the first run on, and the op keeps the last s tokens: token p
 * in place p mod s, where y_p finds token p - s.
 */
#include <math.h>
#include <string.h>

#include "core/ops/rule.h"

struct tensor *op_shift(struct graph *g, const char *name, struct tensor *x, int64_t distance,
			double fill)
{
	const struct shift_attr attr = { distance, fill };

	if (distance == 0)
		return x;
	return node_out(graph_node(g, OP_shift, name, &attr, 1, &x), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct shift_attr *attr = n->attr;
	const struct tensor *x = n->in[0];
	int64_t dim[TENSOR_MAX_DIMS];

	if (!is_tokens(x))
		return graph_misfit(g, n, "x must be real [B,T,..] with whole tokens");
	if (attr->distance < 0)
		return graph_misfit(g, n, "a shift by %lld tokens would show later ones",
				    (long long)attr->distance);
	if (!isfinite(attr->fill))
		return graph_misfit(g, n, "the fill %g is not finite", attr->fill);
	if (graph_out_like(g, n, NULL, x) != OK)
		return FAIL;
	memcpy(dim, x->dim, sizeof(dim));
	dim[1] = attr->distance;
	return g->state ? graph_out_state(g, n, "kept", x->ndim, dim) : OK;
}

static void cost(const struct node *n, struct op_cost *c)
{
	c->forward_bytes = c->backward_bytes = 2 * (double)tensor_bytes(n->in[0]);
}

static void shifted(struct graph *g, struct tensor *x, int64_t distance, double fill)
{
	graph_seeded_output(g, "y", op_shift(g, "shift", x, distance, fill));
}

BUILD_CASE(case_odd, shifted(g, case_param(g, "x", 3, 5, 7), 2, 0))

/* All of x is shifted out. */
BUILD_CASE(case_all, shifted(g, case_param(g, "x", 2, 3, 4), 3, 0.5))

/* Heads; x is read three times, at one place undelayed. */
static void case_chain(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 2, 9, 3, 8));

	shifted(g, x, 1, -2);
	graph_seeded_output(g, "z", op_gelu(g, "after", op_shift(g, "far", x, 4, 0)));
	graph_seeded_output(g, "now", op_gelu(g, "same", op_shift(g, "none", x, 0, 0)));
}

BUILD_CASE(case_threads, shifted(g, op_gelu(g, "before", case_param(g, "x", 3, 701, 9)), 5, 0))

static void case_slice(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 2, 6, 13));

	shifted(g, graph_slice(g, x, 4, 9), 2, 1);
	case_add_to(g, "front", graph_slice(g, x, 0, 4), NULL);
}

OP_CASES(shift) = {
	OP_CASE("odd shape", case_odd),	       OP_CASE("further than the sequence", case_all),
	OP_CASE("between others", case_chain), OP_CASE("threads", case_threads),
	OP_CASE("slice", case_slice),	       OP_CASES_END,
};

const struct op op_desc_shift = {
	.name = "shift",
	.attr_size = sizeof(struct shift_attr),
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(0),
	.strided_heads_in = BIT(0),
	.bf16_in = BIT(0),
	.bf16_out = BIT(0) | BIT(1),
	.cases = shift_cases,
};
