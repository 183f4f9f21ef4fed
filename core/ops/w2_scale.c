/*
 * w2_scale: y 2 / (|tau| + eps) per head: y [B,T,H,W], tau [H].  It scales the
 * queries of the Wasserstein score, so that q.k is the cross term of the score.
 */
#include "core/ops/rule.h"

struct tensor *op_w2_scale(struct graph *g, const char *name, struct tensor *y,
			   struct tensor *tau, double eps)
{
	const struct w2_attr attr = { W2_WASSERSTEIN, eps };
	struct tensor *in[] = { y, tau };

	return node_out(graph_node(g, OP_w2_scale, name, &attr, 2, in), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct w2_attr *attr = n->attr;
	const struct tensor *y = n->in[0];

	if (!all_real(n) || y->ndim != 4)
		return graph_misfit(g, n, "y must be real and [B,T,H,W]");
	if (!is_vector(n->in[1], y->dim[2]))
		return graph_misfit(g, n, "tau must have the shape [H]");
	if (!(attr->eps > 0))
		return graph_misfit(g, n, "eps %g is not positive", attr->eps);
	return graph_out_like(g, n, NULL, y);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_flops = (double)tensor_count(n->in[0]);
	c->backward_flops = 3 * c->forward_flops;
	c->forward_bytes = 2 * bytes;
	c->backward_bytes = 3 * bytes; /* y and both gradients */
}

static void case_odd(struct graph *g)
{
	graph_seeded_output(g, "z", op_w2_scale(g, "scale", case_param(g, "y", 2, 5, 3, 7),
						case_param(g, "tau", 3), 1e-4));
}

static void case_one(struct graph *g)
{
	graph_seeded_output(g, "z", op_w2_scale(g, "scale", case_param(g, "y", 1, 1, 1, 1),
						case_param(g, "tau", 1), 1e-2));
}

static void case_chain(struct graph *g)
{
	struct tensor *y = op_gelu(g, "before", case_param(g, "y", 1, 4, 2, 3));
	struct tensor *tau = case_param(g, "tau", 2);
	struct tensor *z = op_w2_scale(g, "first", y, tau, 0.1);

	graph_seeded_output(g, "z", op_gelu(g, "after", op_w2_scale(g, "second", z, tau, 0.1)));
}

static void case_threads(struct graph *g)
{
	graph_seeded_output(g, "z", op_w2_scale(g, "scale", case_param(g, "y", 3, 157, 4, 11),
						case_param(g, "tau", 4), 1e-4));
}

/* Channels that a thread takes together. */
static void case_even(struct graph *g)
{
	struct tensor *y = op_gelu(g, "before", case_param(g, "y", 2, 37, 3, 40));

	graph_seeded_output(g, "z", op_w2_scale(g, "scale", y, case_param(g, "tau", 3), 1e-4));
}

OP_CASES(w2_scale) = {
	OP_CASE("odd shape", case_odd),
	OP_CASE("one element", case_one),
	OP_CASE("between others", case_chain),
	OP_CASE("threads", case_threads),
	OP_CASE("even width", case_even),
	OP_CASES_END,
};

const struct op op_desc_w2_scale = {
	.name = "w2_scale",
	.attr_size = sizeof(struct w2_attr),
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer,
	.cost = cost,
	.saves_in = BIT(0) | BIT(1),
	.grad_in_place = true,
	.remakes = true,
	.remade = 0,
	.remake_in = BIT(0) | BIT(1),
	.narrow_in = BIT(0),
	.narrow_out = BIT(0),
	.cases = w2_scale_cases,
};
