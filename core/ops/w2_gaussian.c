/*
 * w2_gaussian: every head of every token becomes a diagonal Gaussian.
 * x [B,T,H,2D] holds D means and D raw sigmas per head, sigma = softplus(raw) + eps.
 *   wasserstein: y [B,T,H,2D] = (mean, sigma)
 *   overlap:     y [B,T,H,D] = mean / sqrt(sigma), logdet [B,T,H] = sum log sigma
 */
#include "core/ops/rule.h"

struct tensor *op_w2_gaussian(struct graph *g, const char *name, struct tensor *x,
			      enum w2_score score, double eps, struct tensor **logdet)
{
	const struct w2_attr attr = { score, eps };
	struct node *n = graph_node(g, OP_w2_gaussian, name, &attr, 1, &x);

	if (logdet)
		*logdet = node_out(n, 1);
	return node_out(n, 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct w2_attr *attr = n->attr;
	const struct tensor *x = n->in[0];
	const int64_t *dim = x->dim;

	if (!all_real(n) || x->ndim != 4 || dim[3] % 2)
		return graph_misfit(g, n, "x must be real and [B,T,H,2D]");
	if (!(attr->eps > 0))
		return graph_misfit(g, n, "eps %g is not positive", attr->eps);
	if (attr->score == W2_WASSERSTEIN)
		return graph_out_like(g, n, NULL, x);
	if (attr->score != W2_OVERLAP)
		return graph_misfit(g, n, "no such score: %d", (int)attr->score);
	if (graph_out(g, n, NULL, x->type, 4, SHAPE(dim[0], dim[1], dim[2], dim[3] / 2)) != OK)
		return FAIL;
	return graph_out(g, n, "logdet", x->type, 3, dim);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double x = (double)tensor_bytes(n->in[0]), y = (double)tensor_bytes(n->out[0]);

	c->forward_bytes = x + y;
	c->backward_bytes = 2 * x + y; /* x, dx, dy */
}

static void case_wasserstein(struct graph *g)
{
	graph_seeded_output(g, "y", op_w2_gaussian(g, "w2", case_param(g, "x", 2, 5, 3, 14),
						   W2_WASSERSTEIN, 1e-4, NULL));
}

static void overlap(struct graph *g, struct tensor *x, bool use_y, bool use_logdet)
{
	struct tensor *logdet, *y = op_w2_gaussian(g, "w2", x, W2_OVERLAP, 1e-4, &logdet);

	if (use_y)
		graph_seeded_output(g, "y", y);
	if (use_logdet)
		graph_seeded_output(g, "logdet", logdet);
}

static void case_overlap(struct graph *g)
{
	overlap(g, case_param(g, "x", 2, 5, 3, 14), true, true);
}

/* Queries: nothing reads the determinant. */
static void case_overlap_y(struct graph *g)
{
	overlap(g, case_param(g, "x", 1, 3, 2, 6), true, false);
}

static void case_overlap_logdet(struct graph *g)
{
	overlap(g, case_param(g, "x", 1, 3, 2, 6), false, true);
}

static void case_one(struct graph *g)
{
	overlap(g, case_param(g, "x", 1, 1, 1, 2), true, true);
}

static void case_chain(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 1, 3, 2, 6)), *y, *logdet;

	y = op_w2_gaussian(g, "first", x, W2_OVERLAP, 1e-4, &logdet);
	graph_seeded_output(g, "y", op_gelu(g, "after", y));
	graph_seeded_output(g, "logdet", op_gelu(g, "other", logdet));
	y = op_w2_gaussian(g, "second", x, W2_WASSERSTEIN, 1e-4, NULL);
	graph_seeded_output(g, "z", op_gelu(g, "last", y));
}

static void case_threads(struct graph *g)
{
	overlap(g, case_param(g, "x", 1, 157, 5, 22), true, true);
}

/* Channels that a thread takes together. */
static void case_even(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 1, 5, 3, 48));

	overlap(g, x, true, true);
	graph_seeded_output(g, "z", op_w2_gaussian(g, "other", x, W2_WASSERSTEIN, 1e-4, NULL));
}

OP_CASES(w2_gaussian) = {
	OP_CASE("wasserstein", case_wasserstein),
	OP_CASE("overlap", case_overlap),
	OP_CASE("overlap, y alone", case_overlap_y),
	OP_CASE("overlap, determinant alone", case_overlap_logdet),
	OP_CASE("one element", case_one),
	OP_CASE("between others", case_chain),
	OP_CASE("threads", case_threads),
	OP_CASE("even width", case_even),
	OP_CASES_END,
};

const struct op op_desc_w2_gaussian = {
	.name = "w2_gaussian",
	.attr_size = sizeof(struct w2_attr),
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.saves_in = BIT(0),
	.remakes = true,
	.remade = 0,
	.remake_in = BIT(0),
	.narrow_in = BIT(0),
	.narrow_out = BIT(0),
	.cases = w2_gaussian_cases,
};
