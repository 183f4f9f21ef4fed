/*
 * sum: y = f sum of x over one dimension, which keeps size 1; dx = f dy.  The mean has f = 1/n.
 */
#include "core/ops/rule.h"

static struct tensor *sum(struct graph *g, const char *name, struct tensor *x, int dim, bool mean)
{
	struct sum_attr attr = { .factor = 1, .dim = dim };

	if (x && dim < 0)
		attr.dim += x->ndim;
	if (x && mean && attr.dim >= 0 && attr.dim < x->ndim)
		attr.factor = 1 / (double)x->dim[attr.dim];
	return node_out(graph_node(g, OP_sum, name, &attr, 1, &x), 0);
}

struct tensor *op_sum(struct graph *g, const char *name, struct tensor *x, int dim)
{
	return sum(g, name, x, dim, false);
}

struct tensor *op_mean(struct graph *g, const char *name, struct tensor *x, int dim)
{
	return sum(g, name, x, dim, true);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct sum_attr *attr = n->attr;
	int64_t dim[TENSOR_MAX_DIMS];

	if (!all_real(n))
		return graph_misfit(g, n, "x must be real");
	if (attr->dim < 0 || attr->dim >= n->in[0]->ndim)
		return graph_misfit(g, n, "x has no dimension %d", (int)attr->dim);
	memcpy(dim, n->in[0]->dim, sizeof(dim));
	dim[attr->dim] = 1;
	return graph_out(g, n, NULL, n->in[0]->type, n->in[0]->ndim, dim);
}

static void cost(const struct node *n, struct op_cost *c)
{
	c->forward_flops = (double)tensor_count(n->in[0]);
	c->forward_bytes = (double)(tensor_bytes(n->in[0]) + tensor_bytes(n->out[0]));
	c->backward_bytes = c->forward_bytes;
}

/* An activation with two readers. */
static void apply(struct graph *g, struct tensor *x, int dim)
{
	x = op_gelu(g, "before", x);
	graph_seeded_output(g, "y", op_sum(g, "sum", x, dim));
	graph_seeded_output(g, "z", op_mean(g, "mean", x, dim));
}

BUILD_CASE(case_last, apply(g, case_param(g, "x", 3, 5, 7), -1))
BUILD_CASE(case_first, apply(g, case_param(g, "x", 5, 3), 0))
BUILD_CASE(case_middle, apply(g, case_param(g, "x", 2, 67, 24), 1))
BUILD_CASE(case_one, apply(g, case_param(g, "x", 1), 0))
BUILD_CASE(case_all, apply(g, case_param(g, "x", 18099), -1))
BUILD_CASE(case_threads, apply(g, case_param(g, "x", 1400, 2, 8), 0))
BUILD_CASE(case_wide, graph_seeded_output(g, "y", op_sum(g, "sum", case_param(g, "x", 2, 9000), 0)))

OP_CASES(sum) = {
	OP_CASE("last", case_last),	OP_CASE("first", case_first),
	OP_CASE("middle", case_middle), OP_CASE("one element", case_one),
	OP_CASE("all", case_all),	OP_CASE("threads", case_threads),
	OP_CASE("few rows", case_wide), OP_CASES_END,
};

const struct op op_desc_sum = {
	.name = "sum",
	.attr_size = sizeof(struct sum_attr),
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = sum_cases,
};
