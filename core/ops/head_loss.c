/*
 * head_loss: the output head and its cross-entropy.
 *   logits = x W', lse = log(sum(exp(logits))) per token
 *   main = weights[0] * sum of nll, nll = lse - logits[target] where target >= 0, else 0
 *   z    = weights[1] * sum of lse^2 over all tokens
 *   dlogits = (a m + b 2 lse) softmax(logits) - a m onehot(target),
 *             a = dmain weights[0], b = dz weights[1], m = 1 where target >= 0, else 0
 *   dx = dlogits W, dW = dlogits' x
 */
#include "core/ops/op_case.h"

struct head_loss_outputs op_head_loss(struct graph *g, const char *name, struct tensor *x,
				      struct tensor *w, struct tensor *targets,
				      struct tensor *weights)
{
	struct tensor *in[] = { x, w, targets, weights };
	const struct node *n = graph_node(g, OP_head_loss, name, NULL, 4, in);

	return (struct head_loss_outputs){ node_out(n, 0), node_out(n, 1), node_out(n, 2),
					   node_out(n, 3) };
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct tensor *x = n->in[0], *w = n->in[1], *targets = n->in[2], *weights = n->in[3];

	if (x->type == I32 || x->ndim != 3)
		return graph_misfit(g, n, "x must be real [B,T,E]");
	if (w->type == I32 || w->ndim != 2 || w->dim[1] != x->dim[2])
		return graph_misfit(g, n, "the weight must be real [V,%lld]", (long long)x->dim[2]);
	if (targets->type != I32 || targets->ndim != 2 || targets->dim[0] != x->dim[0] ||
	    targets->dim[1] != x->dim[1])
		return graph_misfit(g, n, "targets must be i32 [%lld,%lld]", (long long)x->dim[0],
				    (long long)x->dim[1]);
	if (weights->type == I32 || weights->ndim != 1 || weights->dim[0] != 2)
		return graph_misfit(g, n, "the weights must be real [2]");
	if (graph_out(g, n, "main", x->type, 1, SHAPE(1)) != OK ||
	    graph_out(g, n, "z", x->type, 1, SHAPE(1)) != OK ||
	    graph_out_constant(g, n, "nll", x->type, 2, targets->dim) != OK)
		return FAIL;
	return graph_out_constant(g, n, "hit", x->type, 2, targets->dim);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double product = 2.0 * (double)tensor_count(n->in[0]) * (double)n->in[1]->dim[0];
	double bytes = (double)(tensor_bytes(n->in[0]) + tensor_bytes(n->in[1]));

	c->forward_flops = product;
	c->backward_flops = 2 * product;
	c->forward_bytes = bytes;
	c->backward_bytes = 2 * bytes;
}

static struct head_loss_outputs apply(struct graph *g, int64_t batch, int64_t length, int64_t width,
				      int64_t vocabulary)
{
	struct tensor *x = case_param(g, "x", batch, length, width);
	struct tensor *w = case_param(g, "w", vocabulary, width);

	return op_head_loss(g, "head", x, w, case_input(g, "targets", I32, batch, length),
			    case_input(g, "weights", g->type, 2));
}

BUILD_CASE(case_main, graph_loss(g, "main", apply(g, 2, 5, 3, 7).main, 1.0))
BUILD_CASE(case_z, graph_loss(g, "z", apply(g, 2, 5, 3, 7).z, 0.3))

static void case_both(struct graph *g)
{
	struct head_loss_outputs out = apply(g, 1, 9, 5, 11);

	graph_loss(g, "main", out.main, 0.7);
	graph_loss(g, "z", out.z, 0.2);
	graph_output(g, "nll", out.nll);
	graph_output(g, "hit", out.hit);
}

BUILD_CASE(case_one, graph_loss(g, "main", apply(g, 1, 1, 1, 2).main, 1.0))

/* The table is also the embedding: both contribute to its gradient. */
static void case_tied(struct graph *g)
{
	struct tensor *w = case_param(g, "w", 7, 3), *targets = case_input(g, "targets", I32, 2, 4);
	struct tensor *x = op_embedding(g, "embedding", w, NULL, targets);
	struct tensor *weights = case_input(g, "weights", g->type, 2);

	graph_loss(g, "main", op_head_loss(g, "head", x, w, targets, weights).main, 1.0);
}

/* More tokens than one chunk holds at most, and not a multiple of it. */
static void case_chunks(struct graph *g)
{
	struct head_loss_outputs out = apply(g, 1, 517, 1, 2);

	graph_loss(g, "main", out.main, 0.5);
	graph_loss(g, "z", out.z, 0.1);
}

/* More logits than a GPU's block reads at once, and not a multiple of any piece. */
BUILD_CASE(case_vocabulary, graph_loss(g, "main", apply(g, 1, 2, 1, 1203).main, 1.0))

/* The same, and more tokens than a GPU has processors: blocks take several, and read one's logits
 * ahead. */
static void case_many_rows(struct graph *g)
{
	struct head_loss_outputs out = apply(g, 1, 140, 1, 4103);

	graph_loss(g, "main", out.main, 1.0);
	graph_output(g, "nll", out.nll);
}

/* Of equal logits the first one is chosen. */
static void case_equal(struct graph *g)
{
	struct tensor *x = op_scale(g, "zero", case_param(g, "x", 2, 9, 3), 0);
	struct head_loss_outputs out = op_head_loss(g, "head", x, case_param(g, "w", 19, 3),
						    case_input(g, "targets", I32, 2, 9),
						    case_input(g, "weights", g->type, 2));

	graph_loss(g, "main", out.main, 1.0);
	graph_output(g, "hit", out.hit);
}

OP_CASES(head_loss) = {
	OP_CASE("cross-entropy", case_main, .int_limit = 7),
	OP_CASE("cross-entropy, some ignored", case_main, .int_limit = 7, .int_ignore = true),
	OP_CASE("z alone", case_z, .int_limit = 7, .int_ignore = true),
	OP_CASE("both", case_both, .int_limit = 11, .int_ignore = true),
	OP_CASE("one token", case_one, .int_limit = 2),
	OP_CASE("tied", case_tied, .int_limit = 7),
	OP_CASE("chunks", case_chunks, .int_limit = 2, .int_ignore = true),
	OP_CASE("large vocabulary", case_vocabulary, .int_limit = 1203),
	OP_CASE("many rows", case_many_rows, .int_limit = 4103),
	OP_CASE("equal logits", case_equal, .int_limit = 3),
	OP_CASES_END,
};

const struct op op_desc_head_loss = {
	.name = "head_loss",
	.min_inputs = 4,
	.max_inputs = 4,
	.infer = infer,
	.cost = cost,
	.constant_in = BIT(2) | BIT(3),
	.loss = true,
	.bf16_in = BIT(0),
	.cases = head_loss_cases,
};
