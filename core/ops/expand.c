/*
 * expand: y = x, repeated along adjacent dimensions in which x has size 1; dx sums dy over them.
 * Dimensions that are not adjacent need a node each, the innermost first.
 */
#include "core/ops/repeat.h"
#include "core/ops/rule.h"

/* [first, last) are the innermost dimensions in which x must be repeated; none: last is 0. */
static void find_run(const struct tensor *x, const int64_t *dim, int *first, int *last)
{
	*last = x->ndim;
	while (*last > 0 && x->dim[*last - 1] == dim[*last - 1])
		--*last;
	*first = *last;
	while (*first > 0 && x->dim[*first - 1] == 1)
		--*first;
}

/* x with leading dimensions of size 1. */
static struct tensor *with_dims(struct graph *g, struct tensor *x, int ndim)
{
	int64_t dim[TENSOR_MAX_DIMS];

	if (x->ndim >= ndim)
		return x;
	for (int i = 0; i < ndim; i++)
		dim[i] = i < ndim - x->ndim ? 1 : x->dim[i - (ndim - x->ndim)];
	return graph_reshape(g, x, ndim, dim);
}

static struct tensor *expand_run(struct graph *g, const char *name, struct tensor *x, int ndim,
				 const int64_t *dim)
{
	struct expand_attr attr = { .ndim = ndim };

	for (int i = 0; i < ndim; i++)
		attr.dim[i] = dim[i];
	return node_out(graph_node(g, OP_expand, name, &attr, 1, &x), 0);
}

struct tensor *op_expand(struct graph *g, const char *name, struct tensor *x, int ndim,
			 const int64_t *dim)
{
	int64_t inner[TENSOR_MAX_DIMS];
	char inner_name[96];
	int first, last;

	if (ndim > TENSOR_MAX_DIMS)
		graph_fail(g, "'%s' cannot be expanded to %d dimensions, only to %d",
			   x ? x->name : name, ndim, TENSOR_MAX_DIMS);
	x = x && !g->failed ? with_dims(g, x, ndim) : NULL;
	if (!x)
		return NULL;
	if (x->ndim != ndim)
		return expand_run(g, name, x, ndim, dim);
	find_run(x, dim, &first, &last);
	if (last == 0)
		return x;
	for (int i = 0; i < ndim; i++)
		inner[i] = i < first ? x->dim[i] : dim[i];
	if (first == last || memcmp(inner, dim, (size_t)ndim * sizeof(*dim)) == 0)
		return expand_run(g, name, x, ndim, dim);
	snprintf(inner_name, sizeof(inner_name), "%s.inner", name);
	return op_expand(g, name, expand_run(g, inner_name, x, ndim, inner), ndim, dim);
}

/* The shape that both broadcast to; false: there is none. */
static bool common_shape(const struct tensor *a, const struct tensor *b, int ndim, int64_t *dim)
{
	for (int i = 1; i <= ndim; i++) {
		const int64_t x = i > a->ndim ? 1 : tensor_dim(a, -i);
		const int64_t y = i > b->ndim ? 1 : tensor_dim(b, -i);

		if (x != y && x != 1 && y != 1)
			return false;
		dim[ndim - i] = x == 1 ? y : x;
	}
	return true;
}

void op_broadcast(struct graph *g, const char *name, struct tensor **a, struct tensor **b)
{
	int64_t dim[TENSOR_MAX_DIMS];
	char left[96], right[96];
	int ndim;

	if (g->failed || !*a || !*b || tensor_same_shape(*a, *b) || (*a)->type == I32 ||
	    (*b)->type == I32)
		return;
	ndim = (*a)->ndim > (*b)->ndim ? (*a)->ndim : (*b)->ndim;
	if (!common_shape(*a, *b, ndim, dim))
		return;
	snprintf(left, sizeof(left), "%s.left", name);
	snprintf(right, sizeof(right), "%s.right", name);
	*a = op_expand(g, left, *a, ndim, dim);
	*b = op_expand(g, right, *b, ndim, dim);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct expand_attr *attr = n->attr;
	const struct tensor *x = n->in[0];
	struct tensor to = { .type = x->type, .ndim = attr->ndim };
	char shape[TENSOR_SHAPE_TEXT];
	bool fits = attr->ndim == x->ndim;

	memcpy(to.dim, attr->dim, sizeof(to.dim));
	for (int i = 0; fits && i < x->ndim; i++)
		fits = x->dim[i] == attr->dim[i] || x->dim[i] == 1;
	if (!all_real(n) || !fits)
		return graph_misfit(g, n, "x cannot be expanded to %s",
				    tensor_shape_text(&to, shape));
	return graph_out(g, n, NULL, x->type, attr->ndim, attr->dim);
}

static void cost(const struct node *n, struct op_cost *c)
{
	c->backward_flops = (double)tensor_count(n->out[0]);
	c->forward_bytes = (double)(tensor_bytes(n->in[0]) + tensor_bytes(n->out[0]));
	c->backward_bytes = c->forward_bytes;
}

/* An activation expanded, and read by an op that saves it. */
static void apply(struct graph *g, struct tensor *x, int ndim, const int64_t *dim)
{
	x = op_gelu(g, "before", x);
	graph_seeded_output(g, "y", op_gelu(g, "after", op_expand(g, "expand", x, ndim, dim)));
	graph_seeded_output(g, "z", op_scale(g, "other", x, 2));
}

BUILD_CASE(case_last, apply(g, case_param(g, "x", 3, 5, 1), 3, SHAPE(3, 5, 7)))
BUILD_CASE(case_first, apply(g, case_param(g, "x", 7), 4, SHAPE(2, 3, 1, 7)))
BUILD_CASE(case_middle, apply(g, case_param(g, "x", 2, 1, 8), 3, SHAPE(2, 37, 8)))
BUILD_CASE(case_apart, apply(g, case_param(g, "x", 3, 1), 4, SHAPE(2, 2, 3, 5)))
BUILD_CASE(case_scalar, apply(g, case_param(g, "x", 1), 2, SHAPE(9, 2011)))
BUILD_CASE(case_threads, graph_seeded_output(g, "y",
					     op_expand(g, "expand", case_param(g, "x", 64), 3,
						       SHAPE(3, 701, 64))))

/* Pointwise ops expand what they need. */
static void case_pointwise(struct graph *g)
{
	struct tensor *a = case_param(g, "a", 3, 1, 5), *b = case_param(g, "b", 4, 1);
	struct tensor *c = op_maximum(g, "larger", a, b);

	graph_seeded_output(g, "y", op_multiply(g, "by", c, case_param(g, "c", 5)));
	graph_seeded_output(g, "z", op_add(g, "plus", case_param(g, "d", 1), c));
	graph_seeded_output(g, "w", op_add_scaled(g, "scaled", c, b, 0.3, NULL));
}

OP_CASES(expand) = {
	OP_CASE("last", case_last),
	OP_CASE("first", case_first),
	OP_CASE("middle", case_middle),
	OP_CASE("dimensions that are not adjacent", case_apart),
	OP_CASE("one element", case_scalar),
	OP_CASE("threads", case_threads),
	OP_CASE("pointwise", case_pointwise, .chooses = true),
	OP_CASES_END,
};

const struct op op_desc_expand = {
	.name = "expand",
	.attr_size = sizeof(struct expand_attr),
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.recompute_rule = { .made = BIT(0), .in = BIT(0) },
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = expand_cases,
};
