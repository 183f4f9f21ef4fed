/*
 * w2_key_bias: the term that a key adds to every score of W2 attention, per head.
 * y [B,T,H,W] -> bias [B,T,H]
 *   wasserstein: -|y|^2 / (|tau| + eps), second = tau [H]
 *   overlap:     -(|y|^2 + logdet) / 2,  second = logdet [B,T,H]
 */
#include "core/ops/rule.h"

struct tensor *op_w2_key_bias(struct graph *g, const char *name, struct tensor *y,
			      struct tensor *second, enum w2_score score, double eps)
{
	const struct w2_attr attr = { score, eps };
	struct tensor *in[] = { y, second };

	return node_out(graph_node(g, OP_w2_key_bias, name, &attr, 2, in), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct w2_attr *attr = n->attr;
	const struct tensor *y = n->in[0], *second = n->in[1];

	if (!all_real(n) || y->ndim != 4)
		return graph_misfit(g, n, "y must be real and [B,T,H,W]");
	if (!(attr->eps > 0))
		return graph_misfit(g, n, "eps %g is not positive", attr->eps);
	switch (attr->score) {
	case W2_WASSERSTEIN:
		if (!is_vector(second, y->dim[2]))
			return graph_misfit(g, n, "tau must have the shape [H]");
		break;
	case W2_OVERLAP:
		if (second->ndim != 3 || second->dim[0] != y->dim[0] ||
		    second->dim[1] != y->dim[1] || second->dim[2] != y->dim[2])
			return graph_misfit(g, n, "the determinant must have the shape [B,T,H]");
		break;
	default:
		return graph_misfit(g, n, "no such score: %d", (int)attr->score);
	}
	return graph_out(g, n, NULL, y->type, 3, y->dim);
}

static void cost(const struct node *n, struct op_cost *c)
{
	c->forward_flops = 2 * (double)tensor_count(n->in[0]);
	c->backward_flops = c->forward_flops;
	c->forward_bytes = (double)tensor_bytes(n->in[0]);
	c->backward_bytes = 2 * c->forward_bytes; /* y, dy */
}

static void apply(struct graph *g, struct tensor *y, struct tensor *second, enum w2_score score)
{
	graph_seeded_output(g, "bias", op_w2_key_bias(g, "key_bias", y, second, score, 1e-4));
}

static void case_wasserstein(struct graph *g)
{
	apply(g, case_param(g, "y", 2, 5, 3, 7), case_param(g, "tau", 3), W2_WASSERSTEIN);
}

static void case_overlap(struct graph *g)
{
	apply(g, case_param(g, "y", 2, 5, 3, 7), case_param(g, "logdet", 2, 5, 3), W2_OVERLAP);
}

static void case_one(struct graph *g)
{
	apply(g, case_param(g, "y", 1, 1, 1, 1), case_param(g, "tau", 1), W2_WASSERSTEIN);
}

/* Two ops read y and tau, as in the model. */
static void case_shared(struct graph *g)
{
	struct tensor *y = op_gelu(g, "before", case_param(g, "y", 1, 4, 2, 3));
	struct tensor *tau = case_param(g, "tau", 2);

	apply(g, y, tau, W2_WASSERSTEIN);
	graph_seeded_output(g, "scaled", op_w2_scale(g, "scale", y, tau, 1e-4));
}

static void case_threads(struct graph *g)
{
	apply(g, case_param(g, "y", 3, 157, 4, 11), case_param(g, "tau", 4), W2_WASSERSTEIN);
}

/* Channels that a thread takes together. */
static void case_even(struct graph *g)
{
	struct tensor *y = op_gelu(g, "before", case_param(g, "y", 2, 37, 3, 40));

	apply(g, y, case_param(g, "tau", 3), W2_WASSERSTEIN);
}

OP_CASES(w2_key_bias) = {
	OP_CASE("wasserstein", case_wasserstein),
	OP_CASE("overlap", case_overlap),
	OP_CASE("one element", case_one),
	OP_CASE("shared inputs", case_shared),
	OP_CASE("threads", case_threads),
	OP_CASE("even width", case_even),
	OP_CASES_END,
};

const struct op op_desc_w2_key_bias = {
	.name = "w2_key_bias",
	.attr_size = sizeof(struct w2_attr),
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer,
	.cost = cost,
	.saves_in = BIT(0) | BIT(1),
	.saves_out = BIT(0),
	.narrow_in = BIT(0),
	.cases = w2_key_bias_cases,
};
