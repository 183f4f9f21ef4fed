/*
 * gather: y[r] = x[index[r]], and scatter: y[i] = sum of x[r] over all r with index[r] = i, of rows
 * of one table or of a table per example.  Each is the other's backward pass.  Numbers outside the
 * table pick nothing.  Sums have a fixed order.
 */
#include <string.h>

#include "core/ops/rule.h"

struct tensor *op_gather(struct graph *g, const char *name, struct tensor *x, struct tensor *index)
{
	struct tensor *in[] = { x, index };

	return node_out(graph_node(g, OP_gather, name, NULL, 2, in), 0);
}

struct tensor *op_scatter(struct graph *g, const char *name, struct tensor *x, struct tensor *index,
			  int64_t rows, bool per_example)
{
	const struct scatter_attr attr = { rows, per_example };
	struct tensor *in[] = { x, index };

	return node_out(graph_node(g, OP_scatter, name, &attr, 2, in), 0);
}

/* Of both: x is real and has rows, index is i32. */
static bool have_types(const struct node *n)
{
	return n->in[0]->type != I32 && n->in[0]->ndim >= 2 && n->in[1]->type == I32;
}

static enum status infer_gather(struct graph *g, struct node *n)
{
	const struct tensor *x = n->in[0], *index = n->in[1];
	int64_t dim[TENSOR_MAX_DIMS];

	if (!have_types(n) || x->ndim > 3)
		return graph_misfit(g, n, "x must be real [N,C] or [B,N,C], and the index i32");
	if (x->ndim == 3 && (index->ndim != 2 || index->dim[0] != x->dim[0]))
		return graph_misfit(g, n, "the index of x [B,N,C] must be [B,M]");
	if (index->ndim == TENSOR_MAX_DIMS)
		return graph_misfit(g, n, "the index has too many dimensions");
	memcpy(dim, index->dim, sizeof(dim));
	dim[index->ndim] = tensor_dim(x, -1);
	return graph_out(g, n, NULL, x->type, index->ndim + 1, dim);
}

static enum status infer_scatter(struct graph *g, struct node *n)
{
	const struct scatter_attr *attr = n->attr;
	const struct tensor *x = n->in[0], *index = n->in[1];
	const int64_t dim[] = { x->dim[0], attr->rows, tensor_dim(x, -1) };

	if (!have_types(n) || index->ndim != x->ndim - 1 ||
	    memcmp(index->dim, x->dim, (size_t)index->ndim * sizeof(*index->dim)) != 0)
		return graph_misfit(g, n, "x must be real [..,C], and the index i32 [..]");
	if (attr->per_example && x->ndim != 3)
		return graph_misfit(g, n, "rows per example need x [B,M,C]");
	if (attr->rows < 1)
		return graph_misfit(g, n, "a result of %lld rows", (long long)attr->rows);
	return attr->per_example ? graph_out(g, n, NULL, x->type, 3, dim)
				 : graph_out(g, n, NULL, x->type, 2, dim + 1);
}

/* The picked rows move; sums are not counted. */
static void cost(const struct node *n, struct op_cost *c)
{
	const double x = (double)tensor_bytes(n->in[0]), y = (double)tensor_bytes(n->out[0]);
	const double index = (double)tensor_bytes(n->in[1]);

	c->forward_bytes = n->id == OP_gather ? 2 * y + index : x + y + index;
	c->backward_bytes = n->id == OP_gather ? x + y + index : 2 * x + index;
}

/* -------------------------------------------------------------------- cases */

BUILD_CASE(case_gather, graph_seeded_output(g, "y",
					    op_gather(g, "gather", case_param(g, "x", 5, 7),
						      case_input(g, "index", I32, 3, 4))))

/* More rows than numbers; x is read by another op. */
static void case_gather_examples(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 3, 9, 8));
	struct tensor *y = op_gather(g, "gather", x, case_input(g, "index", I32, 3, 4));

	graph_seeded_output(g, "y", op_gelu(g, "after", y));
	case_add_to(g, "x", x, NULL);
}

/* Many numbers of few rows: a row's gradient is a long sum. */
static void case_gather_many(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 2, 3, 300));

	graph_seeded_output(g, "y", op_gather(g, "gather", x, case_input(g, "index", I32, 2, 70)));
}

BUILD_CASE(case_gather_vector, graph_seeded_output(g, "y",
						   op_gather(g, "gather", case_param(g, "x", 4, 1),
							     case_input(g, "index", I32, 600))))

OP_CASES(gather) = {
	OP_CASE("one table", case_gather, .int_limit = 5),
	OP_CASE("table per example", case_gather_examples, .int_limit = 9),
	OP_CASE("long sums", case_gather_many, .int_limit = 3, .int_ignore = true),
	OP_CASE("one channel, numbers beyond the table", case_gather_vector, .int_limit = 6),
	OP_CASES_END,
};

BUILD_CASE(case_scatter,
	   graph_seeded_output(g, "y",
			       op_scatter(g, "scatter", case_param(g, "x", 3, 4, 7),
					  case_input(g, "index", I32, 3, 4), 5, false)))

static void case_scatter_examples(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 3, 4, 8));
	struct tensor *index = case_input(g, "index", I32, 3, 4);

	graph_seeded_output(g, "y",
			    op_gelu(g, "after", op_scatter(g, "scatter", x, index, 9, true)));
	case_add_to(g, "x", x, NULL);
}

static void case_scatter_many(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 2, 70, 300));

	graph_seeded_output(
		g, "y", op_scatter(g, "scatter", x, case_input(g, "index", I32, 2, 70), 3, true));
}

BUILD_CASE(case_scatter_vector,
	   graph_seeded_output(g, "y",
			       op_scatter(g, "scatter", case_param(g, "x", 600, 1),
					  case_input(g, "index", I32, 600), 4, false)))

OP_CASES(scatter) = {
	OP_CASE("one table", case_scatter, .int_limit = 5),
	OP_CASE("table per example", case_scatter_examples, .int_limit = 9),
	OP_CASE("long sums", case_scatter_many, .int_limit = 3, .int_ignore = true),
	OP_CASE("one channel, numbers beyond the table", case_scatter_vector, .int_limit = 6),
	OP_CASES_END,
};

const struct op op_desc_gather = {
	.name = "gather",
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer_gather,
	.cost = cost,
	.constant_in = BIT(1),
	.saves_in = BIT(1),
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = gather_cases,
};

const struct op op_desc_scatter = {
	.name = "scatter",
	.attr_size = sizeof(struct scatter_attr),
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer_scatter,
	.cost = cost,
	.constant_in = BIT(1),
	.saves_in = BIT(1),
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = scatter_cases,
};
