/*
 * linear_gelu_linear: y = gelu(x W + b) V + c, a whole feed-forward.
 *
 *   a = x W + b        h = gelu(a)        y = h V + c
 *
 * The same as linear, gelu and linear, for models in which nothing else reads h.
 * A device may apply gelu and its derivative where it makes the products.  a
 * and h are outputs that no node reads.  The backward pass wants both; h can be
 * recomputed from a.
 */
#include "core/ops/rule.h"

struct tensor *op_linear_gelu_linear(struct graph *g, const char *name, struct tensor *x,
				     struct tensor *w, struct tensor *b, struct tensor *v,
				     struct tensor *c)
{
	struct tensor *in[] = { x, w, b, v, c };

	return node_out(graph_node(g, OP_linear_gelu_linear, name, NULL, 5, in), 0);
}

static enum status check(struct graph *g, const struct node *n)
{
	const struct tensor *x = n->in[0], *w = n->in[1], *v = n->in[3];

	if (!all_real(n))
		return graph_misfit(g, n, "inputs must be real");
	if (w->ndim != 2 || v->ndim != 2)
		return graph_misfit(g, n, "the weights must have 2 dimensions, not %d and %d",
				    w->ndim, v->ndim);
	if (tensor_dim(x, -1) != w->dim[0])
		return graph_misfit(g, n, "x has %lld channels, the first weight takes %lld",
				    (long long)tensor_dim(x, -1), (long long)w->dim[0]);
	if (w->dim[1] != v->dim[0])
		return graph_misfit(g, n,
				    "the first weight gives %lld channels, the second takes %lld",
				    (long long)w->dim[1], (long long)v->dim[0]);
	if (!tensor_contiguous(x) && x->row != w->dim[0])
		return graph_misfit(g, n, "x is a slice whose rows hold more than its channels");
	if (!is_vector(n->in[2], w->dim[1]) || !is_vector(n->in[4], v->dim[1]))
		return graph_misfit(g, n, "the biases must be [%lld] and [%lld]",
				    (long long)w->dim[1], (long long)v->dim[1]);
	return OK;
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct tensor *x = n->in[0];
	int64_t dim[TENSOR_MAX_DIMS];

	if (check(g, n) != OK)
		return FAIL;
	for (int i = 0; i < x->ndim; i++)
		dim[i] = x->dim[i];
	dim[x->ndim - 1] = n->in[3]->dim[1];
	if (graph_out(g, n, NULL, x->type, x->ndim, dim) != OK)
		return FAIL;
	dim[x->ndim - 1] = n->in[1]->dim[1];
	if (graph_out_constant(g, n, "before_gelu", x->type, x->ndim, dim) != OK)
		return FAIL;
	return graph_out_constant(g, n, "hidden", x->type, x->ndim, dim);
}

static void cost(const struct node *n, struct op_cost *c)
{
	const struct tensor *x = n->in[0], *w = n->in[1], *v = n->in[3], *y = n->out[0];
	const double rows = (double)tensor_count(x) / (double)tensor_dim(x, -1);
	const double products = 2 * rows * (double)(tensor_count(w) + tensor_count(v));
	const double ends =
		(double)(tensor_bytes(x) + tensor_bytes(w) + tensor_bytes(v) + tensor_bytes(y));
	const double hidden = (double)tensor_bytes(n->out[1]);

	c->forward_flops = products;
	c->backward_flops = 2 * products;
	/* As of the three ops. */
	c->forward_bytes = ends + 4 * hidden;	   /* a, a, h, h */
	c->backward_bytes = 2 * ends + 7 * hidden; /* h, dh; a, dh, da; a, da */
}

/* -------------------------------------------------------------------- cases */

static void apply(struct graph *g, struct tensor *x, int64_t hidden, int64_t gives, bool bias)
{
	const int64_t takes = tensor_dim(x, -1);
	struct tensor *w = case_param(g, "w", takes, hidden),
		      *v = case_param(g, "v", hidden, gives);
	struct tensor *b = bias ? case_param(g, "b", hidden) : NULL;
	struct tensor *c = bias ? case_param(g, "c", gives) : NULL;

	graph_seeded_output(g, "y", op_linear_gelu_linear(g, "y", x, w, b, v, c));
}

BUILD_CASE(case_bias, apply(g, case_param(g, "x", 2, 5, 3), 7, 4, true))
BUILD_CASE(case_no_bias, apply(g, case_param(g, "x", 13, 3), 5, 6, false))
BUILD_CASE(case_one, apply(g, case_param(g, "x", 1), 1, 1, true))

/* As in decoding. */
BUILD_CASE(case_few, apply(g, case_param(g, "x", 2, 1, 16), 24, 8, true))

/* x comes from another op, and is read again. */
static void case_between(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "p", 6, 8));
	struct tensor *w = case_param(g, "w", 8, 16), *b = case_param(g, "b", 16);
	struct tensor *v = case_param(g, "v", 16, 8), *c = case_param(g, "c", 8);
	struct tensor *y = op_linear_gelu_linear(g, "y", x, w, b, v, c);

	graph_seeded_output(g, "sum", op_add(g, "sum", x, op_gelu(g, "after", y)));
}

/* Two that share their weights. */
static void case_shared(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 6, 4);
	struct tensor *w = case_param(g, "w", 4, 9), *v = case_param(g, "v", 9, 4);

	x = op_linear_gelu_linear(g, "first", x, w, NULL, v, NULL);
	graph_seeded_output(g, "y", op_linear_gelu_linear(g, "second", x, w, NULL, v, NULL));
}

BUILD_CASE(case_slice, apply(g, graph_slice(g, case_param(g, "x", 2, 3, 9), 4, 5), 6, 3, true))

/* x is data, not learned. */
BUILD_CASE(case_fixed, apply(g, case_input(g, "x", g->type, 7, 3), 4, 2, true))
BUILD_CASE(case_threads, apply(g, case_param(g, "x", 301, 8), 72, 16, true))

OP_CASES(linear_gelu_linear) = {
	OP_CASE("biases", case_bias),
	OP_CASE("no biases", case_no_bias),
	OP_CASE("one number", case_one),
	OP_CASE("few rows", case_few),
	OP_CASE("between others", case_between),
	OP_CASE("shared weights", case_shared),
	OP_CASE("slice", case_slice),
	OP_CASE("x without gradient", case_fixed),
	OP_CASE("threads", case_threads),
	OP_CASES_END,
};

const struct op op_desc_linear_gelu_linear = {
	.name = "linear_gelu_linear",
	.min_inputs = 4,
	.max_inputs = 5,
	.optional_in = BIT(2),
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(0),
	.saves_in = BIT(0) | BIT(1) | BIT(3),
	.saves_out = BIT(1) | BIT(2),
	.separate_gradient_in = BIT(0),
	.recompute_rule = { .made = BIT(2), .out = BIT(1) },
	.bf16_in = BIT(0),
	.bf16_out = BIT(0) | BIT(1) | BIT(2),
	.cases = linear_gelu_linear_cases,
};
