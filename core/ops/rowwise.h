/*
 * rowwise - ops that reduce each row of x, its last dimension, and may map its elements.
 *
 * An op is one file.  It states its formulas in the common subset of C and C++ and without
 * branches, as pointwise.h says; `real` and the functions are the device's.
 *
 *     m = max_j x_j                               with ROW_MAX, else 0
 *     s = sum_j e_j,  e_j = NAME_term(x_j, m)     with ROW_SUM, else 0
 *     y_j = NAME_forward(x_j, e_j, m, s)          PER_ELEMENT: y has the shape of x
 *     y   = NAME_forward(0, 0, m, s)              PER_ROW: one element for each row
 *
 *     t = sum_j NAME_back_term(x_j, y_j, dy_j)    with GRADIENT_SUM, else 0
 *     dx_j = NAME_backward(x_j, y_j, dy_j, t)     PER_ROW: y and dy are those of the row
 *
 *     ROWWISE(NAME, PER_ELEMENT or PER_ROW, REDUCTIONS, SAVES, flops)
 *
 *     REDUCTIONS  ROW_MAX, ROW_SUM, GRADIENT_SUM, or several of them
 *     SAVES       what the backward formulas read beside dy: SAVES_INPUTS, SAVES_OUTPUT, or both
 *     flops       arithmetic operations an element that a model's work counts; functions count as
 *                 none
 *
 * A mask leaves elements of a row out of all reductions; there y and dx are 0.  Every backend
 * compiles the formulas (generated/rowwise_formulas.h).
 */
#ifndef CORE_OPS_ROWWISE_H
#define CORE_OPS_ROWWISE_H

#include "core/ops/pointwise.h"

#define PER_ROW 0
#define PER_ELEMENT 1

#define ROW_MAX 1
#define ROW_SUM 2
#define GRADIENT_SUM 4

/* Elements [*first, *last) of row number `row` of x [..,queries,keys] pass the mask. */
#define ROW_RANGE(mask, row, queries, keys, first, last)                                         \
	do {                                                                                     \
		*(last) = (mask).kind == MASK_NONE ? (keys)                                      \
						   : (row) % (queries) + (keys) - (queries) + 1; \
		*(first) = (mask).kind == MASK_WINDOW && *(last) > (mask).window                 \
				   ? *(last) - (mask).window                                     \
				   : 0;                                                          \
	} while (0)

#ifndef POINTWISE_DEVICE

#define ROWWISE(name_, shape_, reductions_, saves_, flops_)               \
	static enum status name_##_infer(struct graph *g, struct node *n) \
	{                                                                 \
		return infer_rowwise(g, n, shape_);                       \
	}                                                                 \
	static void name_##_cost(const struct node *n, struct op_cost *c) \
	{                                                                 \
		rowwise_cost(n, c, saves_, flops_);                       \
		(void)name_##_term, (void)name_##_forward;                \
		(void)name_##_back_term, (void)name_##_backward;          \
	}                                                                 \
	const struct op op_desc_##name_ = {                               \
		.name = #name_,                                           \
		.attr_size = sizeof(struct row_mask),                     \
		.min_inputs = 1,                                          \
		.max_inputs = 1,                                          \
		.infer = name_##_infer,                                   \
		.cost = name_##_cost,                                     \
		.saves_in = (saves_)&SAVES_INPUTS ? BIT(0) : 0,           \
		.saves_out = (saves_)&SAVES_OUTPUT ? BIT(0) : 0,          \
		.grad_in_place = (shape_) == PER_ELEMENT,                 \
		.bf16_in = BIT(0),                                        \
		.bf16_out = (shape_) == PER_ELEMENT ? BIT(0) : 0,         \
		.cases = name_##_cases,                                   \
	};

static inline enum status infer_rowwise(struct graph *g, struct node *n, int shape)
{
	const struct row_mask *mask = n->attr;
	const struct tensor *x = n->in[0];
	int64_t dim[TENSOR_MAX_DIMS];

	if (!all_real(n))
		return graph_misfit(g, n, "x must be real");
	if (mask->window < 0 || (mask->kind == MASK_WINDOW && mask->window < 1))
		return graph_misfit(g, n, "a window of %lld keys is empty",
				    (long long)mask->window);
	if (mask->kind != MASK_NONE && (x->ndim < 2 || tensor_dim(x, -2) > tensor_dim(x, -1)))
		return graph_misfit(g, n,
				    "a causal mask needs [..,queries,keys] with no more "
				    "queries than keys");
	memcpy(dim, x->dim, sizeof(dim));
	dim[x->ndim - 1] = shape == PER_ROW ? 1 : tensor_dim(x, -1);
	return graph_out(g, n, NULL, x->type, x->ndim, dim);
}

static inline void rowwise_cost(const struct node *n, struct op_cost *c, int saves, int flops)
{
	const double x = (double)tensor_bytes(n->in[0]), y = (double)tensor_bytes(n->out[0]);

	c->forward_flops = flops * (double)tensor_count(n->in[0]);
	c->backward_flops = c->forward_flops;
	c->forward_bytes = x + y;
	c->backward_bytes = x + y + (saves & SAVES_INPUTS ? x : 0) + (saves & SAVES_OUTPUT ? y : 0);
}

static inline struct tensor *rowwise_node(struct graph *g, enum op_id id, const char *name,
					  struct tensor *x, struct row_mask mask)
{
	return node_out(graph_node(g, id, name, &mask, 1, &x), 0);
}

/* ------------------------------------------------------------------------- cases */

typedef struct tensor *(*rowwise_op)(struct graph *g, const char *name, struct tensor *x,
				     struct row_mask mask);

/* An activation with two readers. */
static inline void rowwise_case(struct graph *g, rowwise_op op, struct tensor *p,
				struct row_mask mask)
{
	struct tensor *x = op_scale(g, "before", p, 2);

	graph_seeded_output(g, "y", op(g, "op", x, mask));
	graph_seeded_output(g, "z", op_gelu(g, "after", op(g, "again", x, mask)));
}

#define ROWWISE_CASE(op, function, label, mask, ...)                              \
	static void op##_case_##label(struct graph *g)                            \
	{                                                                         \
		rowwise_case(g, function, case_param(g, "p", __VA_ARGS__), mask); \
	}
/*
 * Rows longer than a warp and a block take at a time, and masks of all kinds.  `choice`: rounding
 * may change what the op chooses.  Further cases may follow.
 */
#define ROWWISE_CASES(op, function, choice, ...)                                                   \
	ROWWISE_CASE(op, function, odd, UNMASKED, 3, 5, 7)                                         \
	ROWWISE_CASE(op, function, one, UNMASKED, 1)                                               \
	ROWWISE_CASE(op, function, eights, UNMASKED, 5, 48)                                        \
	ROWWISE_CASE(op, function, long_row, UNMASKED, 2, 2003)                                    \
	ROWWISE_CASE(op, function, long_eights, UNMASKED, 1, 1032)                                 \
	ROWWISE_CASE(op, function, threads, UNMASKED, 700, 32)                                     \
	ROWWISE_CASE(op, function, causal, CAUSAL, 2, 2, 19, 19)                                   \
	ROWWISE_CASE(op, function, end, CAUSAL, 2, 3, 24)                                          \
	ROWWISE_CASE(op, function, window, CAUSAL_WINDOW(5), 2, 21, 40)                            \
	ROWWISE_CASE(op, function, wide_window, CAUSAL_WINDOW(50), 24, 24)                         \
	OP_CASES(op) = { OP_CASE("odd shape", op##_case_odd),                                      \
			 OP_CASE("one element", op##_case_one),                                    \
			 OP_CASE("eights", op##_case_eights, .chooses = choice),                   \
			 OP_CASE("long rows", op##_case_long_row, .chooses = choice),              \
			 OP_CASE("long rows of eights", op##_case_long_eights, .chooses = choice), \
			 OP_CASE("threads", op##_case_threads, .chooses = choice),                 \
			 OP_CASE("causal", op##_case_causal, .chooses = choice),                   \
			 OP_CASE("fewer queries than keys", op##_case_end, .chooses = choice),     \
			 OP_CASE("window", op##_case_window, .chooses = choice),                   \
			 OP_CASE("window of all", op##_case_wide_window, .chooses = choice),       \
			 __VA_ARGS__ OP_CASES_END };
#endif
#endif
