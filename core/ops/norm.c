/*
 * norm: LayerNorm or RMSNorm over the last dimension, with or without the
 * residual sum before it.
 *
 *   s = x + residual
 *   LayerNorm: y = w (s - mean) / sqrt(variance + eps) + b
 *   RMSNorm:   y = w s / sqrt(mean(s^2) + eps) (+ b)
 *
 * (J. Ba et al., "Layer normalization", 2016; B. Zhang, R. Sennrich, "Root
 * mean square layer normalization", 2019.)  There are two ops, since inputs and
 * outputs differ: norm (x, w, b -> y, statistics) and norm_residual (x,
 * residual, w, b -> s, y, statistics).  The statistics of a row are its mean
 * (0 for RMSNorm) and 1 / deviation; they make it cheap to compute y again.
 */
#include "core/ops/rule.h"

struct tensor *op_norm(struct graph *g, const char *name, enum norm_kind kind, double eps,
		       struct tensor *x, struct tensor *residual, struct tensor *w,
		       struct tensor *b, struct tensor **sum)
{
	const struct norm_attr attr = { kind, eps };
	struct tensor *plain_in[] = { x, w, b }, *residual_in[] = { x, residual, w, b };
	struct node *n;

	if (residual)
		n = graph_node(g, OP_norm_residual, name, &attr, 4, residual_in);
	else
		n = graph_node(g, OP_norm, name, &attr, 3, plain_in);
	if (sum)
		*sum = residual ? node_out(n, 0) : x;
	return node_out(n, residual ? 1 : 0);
}

static bool is_param(const struct tensor *t)
{
	return tensor_root(t)->kind == TENSOR_PARAM;
}

/* (Devices read parameters before what the node before makes.) */
static enum status check(struct graph *g, struct node *n, const struct tensor *w,
			 const struct tensor *b)
{
	const struct norm_attr *attr = n->attr;
	const int64_t width = tensor_dim(n->in[0], -1);

	if (!all_real(n))
		return graph_misfit(g, n, "inputs must be real");
	if (!is_vector(w, width) || !is_vector(b, width))
		return graph_misfit(g, n, "weight and bias must have the shape [%lld]",
				    (long long)width);
	if (!is_param(w) || (b && !is_param(b)))
		return graph_misfit(g, n, "weight and bias must be parameters");
	if (attr->kind != NORM_LAYER && attr->kind != NORM_RMS)
		return graph_misfit(g, n, "no such kind of norm: %d", (int)attr->kind);
	if (!(attr->eps >= 0))
		return graph_misfit(g, n, "eps %g is negative", attr->eps);
	return OK;
}

static enum status declare_y(struct graph *g, struct node *n, const char *suffix)
{
	const struct tensor *x = n->in[0];
	const int64_t rows = tensor_count(x) / tensor_dim(x, -1);

	if (graph_out_like(g, n, suffix, x) != OK)
		return FAIL;
	return graph_out_constant(g, n, "statistics", x->type, 2, SHAPE(rows, 2));
}

static enum status infer(struct graph *g, struct node *n)
{
	if (check(g, n, n->in[1], n->in[2]) != OK)
		return FAIL;
	return declare_y(g, n, NULL);
}

static enum status infer_residual(struct graph *g, struct node *n)
{
	if (check(g, n, n->in[2], n->in[3]) != OK)
		return FAIL;
	if (!tensor_same_shape(n->in[0], n->in[1]))
		return graph_misfit(g, n, "x and residual differ in shape");
	if (graph_out_like(g, n, "sum", n->in[0]) != OK)
		return FAIL;
	return declare_y(g, n, NULL);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_bytes = 2 * bytes;  /* x, y */
	c->backward_bytes = 3 * bytes; /* x, dy, dx */
}

static void cost_residual(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_bytes = 4 * bytes;  /* x, residual, s, y */
	c->backward_bytes = 4 * bytes; /* s, dy, ds, dx */
}

/* -------------------------------------------------------------------- cases */

static void plain(struct graph *g, enum norm_kind kind, bool bias, struct tensor *x)
{
	const int64_t width = tensor_dim(x, -1);

	graph_seeded_output(g, "y",
			    op_norm(g, "norm", kind, 1e-5, x, NULL, case_param(g, "w", width),
				    bias ? case_param(g, "b", width) : NULL, NULL));
}

BUILD_CASE(case_layer, plain(g, NORM_LAYER, true, case_param(g, "x", 3, 5, 7)))
BUILD_CASE(case_layer_no_bias, plain(g, NORM_LAYER, false, case_param(g, "x", 2, 9)))
BUILD_CASE(case_rms, plain(g, NORM_RMS, false, case_param(g, "x", 3, 5, 7)))
BUILD_CASE(case_rms_bias, plain(g, NORM_RMS, true, case_param(g, "x", 4, 3)))
BUILD_CASE(case_one_row, plain(g, NORM_LAYER, true, case_param(g, "x", 33)))

/* y is read by a backward pass, and x by another op. */
static void case_chain(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 4, 6)), *sum;
	struct tensor *w = case_param(g, "w", 6), *b = case_param(g, "b", 6);
	struct tensor *y = op_norm(g, "norm", NORM_LAYER, 1e-5, x, NULL, w, b, &sum);

	graph_seeded_output(g, "y", op_gelu(g, "after", y));
	graph_seeded_output(g, "z", op_gelu(g, "other", sum));
}

/* Rows far from zero: the variance must not suffer from the mean. */
static void case_far(struct graph *g)
{
	struct tensor *x = op_add_scaled(g, "far", case_param(g, "x", 3, 16),
					 case_input(g, "one", g->type, 3, 16), 30, NULL);

	plain(g, NORM_LAYER, true, x);
}

BUILD_CASE(case_threads, plain(g, NORM_LAYER, true, case_param(g, "x", 201, 87)))

OP_CASES(norm) = {
	OP_CASE("layer", case_layer),
	OP_CASE("layer, no bias", case_layer_no_bias),
	OP_CASE("rms", case_rms),
	OP_CASE("rms, bias", case_rms_bias),
	OP_CASE("one row", case_one_row),
	OP_CASE("between others", case_chain),
	OP_CASE("far from zero", case_far),
	OP_CASE("threads", case_threads),
	OP_CASES_END,
};

static void with_residual(struct graph *g, enum norm_kind kind, bool bias, bool use_sum,
			  struct tensor *x, struct tensor *residual)
{
	const int64_t width = tensor_dim(x, -1);
	struct tensor *w = case_param(g, "w", width), *sum;
	struct tensor *b = bias ? case_param(g, "b", width) : NULL;

	graph_seeded_output(g, "y", op_norm(g, "norm", kind, 1e-5, x, residual, w, b, &sum));
	if (use_sum)
		graph_seeded_output(g, "s", sum);
}

BUILD_CASE(case_residual, with_residual(g, NORM_LAYER, true, true, case_param(g, "x", 3, 5, 7),
					case_param(g, "r", 3, 5, 7)))
BUILD_CASE(case_residual_rms, with_residual(g, NORM_RMS, false, true, case_param(g, "x", 2, 9),
					    case_param(g, "r", 2, 9)))

/* The last norm: nothing else reads the sum. */
BUILD_CASE(case_residual_last,
	   with_residual(g, NORM_LAYER, false, false, case_param(g, "x", 1, 1, 5),
			 case_param(g, "r", 1, 1, 5)))

/* Nothing reads y. */
static void case_sum_only(struct graph *g)
{
	struct tensor *x = op_gelu(g, "x", case_param(g, "p", 3, 5)), *sum;
	struct tensor *w = case_param(g, "w", 5), *b = case_param(g, "b", 5);

	op_norm(g, "norm", NORM_LAYER, 1e-5, x, case_param(g, "r", 3, 5), w, b, &sum);
	graph_seeded_output(g, "s", sum);
}

/* Activations, whose gradient is shared. */
BUILD_CASE(case_residual_shared,
	   with_residual(g, NORM_LAYER, true, true, op_gelu(g, "left", case_param(g, "x", 4, 6)),
			 op_gelu(g, "right", case_param(g, "r", 4, 6))))

static void case_residual_same(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 4, 6));

	with_residual(g, NORM_LAYER, true, true, x, x);
}

BUILD_CASE(case_residual_fixed,
	   with_residual(g, NORM_RMS, true, true, case_input(g, "x", g->type, 4, 6),
			 case_param(g, "r", 4, 6)))

/* Two blocks, as in a model: later nodes read both sum and y. */
static void case_residual_chain(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 4, 6), *w = case_param(g, "w", 6), *s, *y;

	y = op_norm(g, "first", NORM_RMS, 1e-5, op_gelu(g, "a", x), NULL, w, NULL, &s);
	y = op_norm(g, "second", NORM_RMS, 1e-5, op_gelu(g, "b", y), s, w, NULL, &s);
	y = op_norm(g, "third", NORM_RMS, 1e-5, op_gelu(g, "c", y), s, w, NULL, &s);
	graph_seeded_output(g, "y", op_gelu(g, "d", y));
}

BUILD_CASE(case_residual_threads,
	   with_residual(g, NORM_LAYER, true, true, case_param(g, "x", 201, 87),
			 case_param(g, "r", 201, 87)))

/* Rows of widths that backends treat in different ways: in registers or not, by pieces of four or
 * not. */
static void wide_residual(struct graph *g, int64_t rows, int64_t width)
{
	with_residual(g, NORM_LAYER, true, true,
		      op_gelu(g, "left", case_param(g, "x", rows, width)),
		      op_gelu(g, "right", case_param(g, "r", rows, width)));
}

BUILD_CASE(case_residual_64, wide_residual(g, 19, 64))
BUILD_CASE(case_residual_260, wide_residual(g, 3, 260))
BUILD_CASE(case_residual_1024, wide_residual(g, 2, 1024))

/* With more rows than devices share out among blocks. */
BUILD_CASE(case_residual_rows_of_772, wide_residual(g, 65, 772))
BUILD_CASE(case_residual_1100, wide_residual(g, 3, 1100))
BUILD_CASE(case_residual_2051, wide_residual(g, 3, 2051))
BUILD_CASE(case_residual_2052, wide_residual(g, 2, 2052))

/* Only the host reads the sum, so it is wide, whatever x is. */
static void case_residual_result(struct graph *g)
{
	struct tensor *x = op_gelu(g, "left", case_param(g, "x", 3, 64)), *sum;
	struct tensor *w = case_param(g, "w", 64);

	graph_seeded_output(
		g, "y",
		op_norm(g, "norm", NORM_RMS, 1e-5, x, case_param(g, "r", 3, 64), w, NULL, &sum));
	graph_output(g, "s", sum);
}

/* More rows than a device has parts. */
BUILD_CASE(case_residual_rows, with_residual(g, NORM_RMS, true, true, case_param(g, "x", 2100, 4),
					     case_param(g, "r", 2100, 4)))
BUILD_CASE(case_residual_many, wide_residual(g, 1060, 264))

/* The branch is the front of a wider tensor; the rest of it is read by another op. */
static void add_slice(struct graph *g, enum norm_kind kind, bool bias, struct tensor *wide,
		      int64_t width)
{
	const int64_t rows = tensor_count(wide) / tensor_dim(wide, -1);
	const int64_t rest = tensor_dim(wide, -1) - width;
	struct tensor *r = op_gelu(g, "stream", case_param(g, "r", rows, width));

	wide = graph_reshape(g, wide, 2, SHAPE(rows, width + rest));
	with_residual(g, kind, bias, true, r, graph_slice(g, wide, 0, width));
	case_add_to(g, "rest", graph_slice(g, wide, width, rest), NULL);
}

BUILD_CASE(case_slice, add_slice(g, NORM_LAYER, true, case_param(g, "x", 3, 5, 9), 7))
BUILD_CASE(case_slice_rms,
	   add_slice(g, NORM_RMS, false, op_gelu(g, "gelu", case_param(g, "x", 3, 5, 11)), 6))

/* Rows and pitches of eights, as many as a device treats in different ways. */
BUILD_CASE(case_slice_eights,
	   add_slice(g, NORM_LAYER, true, op_gelu(g, "gelu", case_param(g, "x", 11, 40)), 24))
BUILD_CASE(case_slice_264,
	   add_slice(g, NORM_RMS, true, op_gelu(g, "gelu", case_param(g, "x", 19, 280)), 264))
BUILD_CASE(case_slice_768, add_slice(g, NORM_LAYER, false, case_param(g, "x", 3, 784), 768))

/* Rows of eights that are fours apart, and of fours. */
BUILD_CASE(case_slice_fours,
	   add_slice(g, NORM_LAYER, true, op_gelu(g, "gelu", case_param(g, "x", 5, 276)), 264))
BUILD_CASE(case_slice_260,
	   add_slice(g, NORM_RMS, false, op_gelu(g, "gelu", case_param(g, "x", 5, 264)), 260))

/* Rows of eights that no device may read eight by eight, nor four by four. */
BUILD_CASE(case_slice_odd_pitch,
	   add_slice(g, NORM_LAYER, true, op_gelu(g, "gelu", case_param(g, "x", 5, 275)), 264))

/* Rows for all threads of a block; then more than these keep in registers. */
BUILD_CASE(case_slice_1100,
	   add_slice(g, NORM_LAYER, true, op_gelu(g, "gelu", case_param(g, "x", 3, 1112)), 1100))
BUILD_CASE(case_slice_2051,
	   add_slice(g, NORM_RMS, true, op_gelu(g, "gelu", case_param(g, "x", 3, 2056)), 2051))
BUILD_CASE(case_slice_2056,
	   add_slice(g, NORM_LAYER, true, op_gelu(g, "gelu", case_param(g, "x", 2, 2072)), 2056))

/* Slices that begin between eights, and at one; they overlap, so that gradients are added. */
static void case_slices_between(struct graph *g)
{
	struct tensor *wide = op_gelu(g, "gelu", case_param(g, "x", 6, 48)), *s, *y;
	struct tensor *w = case_param(g, "w", 24), *b = case_param(g, "b", 24);

	s = op_gelu(g, "stream", case_param(g, "r", 6, 24));
	y = op_norm(g, "first", NORM_LAYER, 1e-5, s, graph_slice(g, wide, 3, 24), w, b, &s);
	graph_seeded_output(g, "y", y);
	y = op_norm(g, "second", NORM_RMS, 1e-5, s, graph_slice(g, wide, 16, 24), w, b, &s);
	graph_seeded_output(g, "z", y);
}

/* Nothing reads y. */
static void sum_of_slice(struct graph *g, int64_t pitch)
{
	struct tensor *wide = op_gelu(g, "gelu", case_param(g, "x", 5, pitch)), *sum;
	struct tensor *x = op_gelu(g, "stream", case_param(g, "r", 5, 16));
	struct tensor *w = case_param(g, "w", 16), *b = case_param(g, "b", 16);

	op_norm(g, "norm", NORM_LAYER, 1e-5, x, graph_slice(g, wide, 0, 16), w, b, &sum);
	graph_seeded_output(g, "s", sum);
}

BUILD_CASE(case_slice_sum_only, sum_of_slice(g, 24))
BUILD_CASE(case_slice_sum_odd, sum_of_slice(g, 19))

OP_CASES(norm_residual) = {
	OP_CASE("layer", case_residual),
	OP_CASE("rms", case_residual_rms),
	OP_CASE("sum unused", case_residual_last),
	OP_CASE("shared gradient", case_residual_shared),
	OP_CASE("only the sum is read", case_sum_only),
	OP_CASE("x is the residual", case_residual_same),
	OP_CASE("x without gradient", case_residual_fixed),
	OP_CASE("blocks", case_residual_chain),
	OP_CASE("threads", case_residual_threads),
	OP_CASE("width 64", case_residual_64),
	OP_CASE("width 260", case_residual_260),
	OP_CASE("width 1024", case_residual_1024),
	OP_CASE("65 rows of width 772", case_residual_rows_of_772),
	OP_CASE("width 1100", case_residual_1100),
	OP_CASE("width 2051", case_residual_2051),
	OP_CASE("width 2052", case_residual_2052),
	OP_CASE("the sum is a result", case_residual_result),
	OP_CASE("many rows", case_residual_rows),
	OP_CASE("many wide rows", case_residual_many),
	OP_CASE("slice", case_slice),
	OP_CASE("slice, rms", case_slice_rms),
	OP_CASE("slice of eights", case_slice_eights),
	OP_CASE("slice of width 264", case_slice_264),
	OP_CASE("slice of width 768", case_slice_768),
	OP_CASE("slices fours apart", case_slice_fours),
	OP_CASE("slice of width 260", case_slice_260),
	OP_CASE("slices apart", case_slice_odd_pitch),
	OP_CASE("slice of width 1100", case_slice_1100),
	OP_CASE("slice of width 2051", case_slice_2051),
	OP_CASE("slice of width 2056", case_slice_2056),
	OP_CASE("slices between eights", case_slices_between),
	OP_CASE("only the sum of a slice is read", case_slice_sum_only),
	OP_CASE("only the sum of an odd slice is read", case_slice_sum_odd),
	OP_CASES_END,
};

const struct op op_desc_norm = {
	.name = "norm",
	.attr_size = sizeof(struct norm_attr),
	.min_inputs = 2,
	.max_inputs = 3,
	.infer = infer,
	.cost = cost,
	.saves_in = BIT(0) | BIT(1),
	.saves_out = BIT(1),
	.separate_gradient_in = BIT(0),
	.grad_in_place = true,
	.recompute_rule = { .made = BIT(0), .in = BIT(0) | BIT(1) | BIT(2), .out = BIT(1) },
	.bf16_out = BIT(0),
	.bf16_residual_in = BIT(0),
	.cases = norm_cases,
};

const struct op op_desc_norm_residual = {
	.name = "norm_residual",
	.attr_size = sizeof(struct norm_attr),
	.min_inputs = 3,
	.max_inputs = 4,
	.infer = infer_residual,
	.cost = cost_residual,
	.strided_in = BIT(1),
	.saves_in = BIT(2),
	.saves_out = BIT(0) | BIT(2),
	.separate_gradient_in = BIT(0) | BIT(1),
	.shares_gradient = true,
	.grad_in_place = true,
	.recompute_rule = { .made = BIT(1), .in = BIT(2) | BIT(3), .out = BIT(0) | BIT(2) },
	.bf16_in = BIT(1),
	.bf16_out = BIT(1),
	.bf16_residual_in = BIT(0),
	.bf16_residual_out = BIT(0),
	.cases = norm_residual_cases,
};
