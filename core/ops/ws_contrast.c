/*
 * ws_contrast: L_C of WsFFN, InfoNCE over the means of z [B,T,n,w] over
 * positions, M = B n vectors m_i with u_i = m_i / max(|m_i|, 1e-8):
 *   loss = mean_i (logsumexp_j(u_i.u_j / tau) - u_i.u_i / tau), 0 when M < 2
 *   similarity = mean of u_i.u_j over heads i != j of one example, 0 when n < 2 (no gradient)
 * (A. van den Oord et al., "Representation learning with contrastive predictive coding", 2018.)
 * The means are a third output, so the backward pass does not read z.
 */
#include "core/ops/rule.h"

struct tensor *op_ws_contrast(struct graph *g, const char *name, struct tensor *z, double tau,
			      struct tensor **similarity)
{
	const struct ws_attr attr = { tau };
	struct node *n = graph_node(g, OP_ws_contrast, name, &attr, 1, &z);

	if (similarity)
		*similarity = node_out(n, 1);
	return node_out(n, 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct ws_attr *attr = n->attr;
	const struct tensor *z = n->in[0];

	if (!all_real(n) || z->ndim != 4)
		return graph_misfit(g, n, "z must be real and [B,T,n,w]");
	if (!(attr->tau > 0))
		return graph_misfit(g, n, "tau %g is not positive", attr->tau);
	if (graph_out(g, n, NULL, z->type, 1, SHAPE(1)) != OK ||
	    graph_out_constant(g, n, "similarity", z->type, 1, SHAPE(1)) != OK)
		return FAIL;
	return graph_out_constant(g, n, "means", z->type, 3,
				  SHAPE(z->dim[0], z->dim[2], z->dim[3]));
}

static void cost(const struct node *n, struct op_cost *c)
{
	double vectors = (double)(n->in[0]->dim[0] * n->in[0]->dim[2]);
	double product = 2 * vectors * vectors * (double)n->in[0]->dim[3];
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_flops = product + (double)tensor_count(n->in[0]);
	c->backward_flops = 2 * product;
	c->forward_bytes = bytes;
	c->backward_bytes = bytes; /* dz */
}

static void apply(struct graph *g, struct tensor *z, double tau)
{
	struct tensor *similarity;

	graph_loss(g, "loss", op_ws_contrast(g, "contrast", z, tau, &similarity), 0.7);
	graph_output(g, "similarity", similarity);
}

BUILD_CASE(case_odd, apply(g, case_param(g, "z", 2, 5, 3, 7), 0.3))
BUILD_CASE(case_sharp, apply(g, case_param(g, "z", 3, 2, 2, 5), 0.07))
BUILD_CASE(case_one_head, apply(g, case_param(g, "z", 3, 4, 1, 5), 0.5))
BUILD_CASE(case_one_example, apply(g, case_param(g, "z", 1, 1, 4, 5), 0.5))

/* A single vector has nothing to be compared with: 0, and no gradient. */
BUILD_CASE(case_alone, apply(g, case_param(g, "z", 1, 4, 1, 5), 0.5))

static void case_both(struct graph *g)
{
	struct tensor *z = op_gelu(g, "before", case_param(g, "z", 2, 3, 2, 4));

	apply(g, z, 0.2);
	graph_loss(g, "energy", op_ws_energy(g, "other", z), 0.3);
}

BUILD_CASE(case_threads, apply(g, case_param(g, "z", 3, 61, 4, 37), 0.2))

/* Channels that a thread takes together. */
BUILD_CASE(case_even, apply(g, op_gelu(g, "before", case_param(g, "z", 2, 35, 3, 8)), 0.3))

OP_CASES(ws_contrast) = {
	OP_CASE("odd shape", case_odd),
	OP_CASE("small temperature", case_sharp),
	OP_CASE("one head", case_one_head),
	OP_CASE("one example", case_one_example),
	OP_CASE("one vector", case_alone),
	OP_CASE("with the energy", case_both),
	OP_CASE("threads", case_threads),
	OP_CASE("even width", case_even),
	OP_CASES_END,
};

const struct op op_desc_ws_contrast = {
	.name = "ws_contrast",
	.attr_size = sizeof(struct ws_attr),
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.saves_out = BIT(2),
	.loss = true,
	.bf16_in = BIT(0),
	.cases = ws_contrast_cases,
};
