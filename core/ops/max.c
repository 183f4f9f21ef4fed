/*
 * max: y = max_j x_j over a dimension; equal maxima share dy.
 */
#include "core/ops/rowwise.h"

FORMULA real max_term(real x, real m)
{
	(void)x, (void)m;
	return 0;
}

FORMULA real max_forward(real x, real e, real m, real s)
{
	(void)x, (void)e, (void)s;
	return m;
}

FORMULA real max_back_term(real x, real y, real dy)
{
	(void)dy;
	return (real)(x == y);
}

FORMULA real max_backward(real x, real y, real dy, real t)
{
	return (real)(x == y) * (dy / t);
}

#ifndef POINTWISE_DEVICE
static struct tensor *row_max(struct graph *g, const char *name, struct tensor *x,
			      struct row_mask mask)
{
	return rowwise_node(g, OP_max, name, x, mask);
}

/* x with dimension `dim` as the last. */
static struct tensor *move_last(struct graph *g, const char *name, struct tensor *x, int dim)
{
	int order[TENSOR_MAX_DIMS] = { 0 };
	char moved[96];

	for (int i = 0; i < x->ndim - 1; i++)
		order[i] = i < dim ? i : i + 1;
	order[x->ndim - 1] = dim;
	snprintf(moved, sizeof(moved), "%s.rows", name);
	return op_permute(g, moved, x, order);
}

struct tensor *op_max(struct graph *g, const char *name, struct tensor *x, int dim)
{
	int64_t shape[TENSOR_MAX_DIMS];

	if (!x || g->failed)
		return NULL;
	if (dim < -x->ndim || dim >= x->ndim) {
		graph_fail(g, "max '%s': '%s' has no dimension %d", name, x->name, dim);
		return NULL;
	}
	dim = dim < 0 ? dim + x->ndim : dim;
	if (dim == x->ndim - 1)
		return row_max(g, name, x, UNMASKED);
	memcpy(shape, x->dim, sizeof(shape));
	shape[dim] = 1;
	return graph_reshape(g, row_max(g, name, move_last(g, name, x, dim), UNMASKED), x->ndim,
			     shape);
}

static void case_dims(struct graph *g)
{
	struct tensor *x = case_param(g, "p", 4, 3, 5);

	graph_seeded_output(g, "y", op_scale(g, "a", op_max(g, "first", x, 0), 2));
	graph_seeded_output(g, "z", op_scale(g, "b", op_max(g, "middle", x, -2), 2));
	graph_seeded_output(g, "t", op_scale(g, "c", op_max(g, "last", x, 2), 2));
}

/* Equal maxima: the sum of the gradients is dy. */
static void case_equal(struct graph *g)
{
	struct tensor *x = op_expand(g, "x", case_param(g, "p", 3, 1), 2, SHAPE(3, 5));

	graph_seeded_output(g, "y", row_max(g, "max", x, UNMASKED));
}

ROWWISE_CASES(max, row_max, true, OP_CASE("all dimensions", case_dims),
	      OP_CASE("equal maxima", case_equal), )
#endif
ROWWISE(max, PER_ROW, ROW_MAX | GRADIENT_SUM, SAVES_INPUTS | SAVES_OUTPUT, 0)
