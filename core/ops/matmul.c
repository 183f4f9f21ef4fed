/*
 * matmul: y = op(A) op(B) of the last two dimensions, where op transposes on request.  Leading
 * dimensions are a batch, and broadcast.
 */
#include "core/ops/matmul.h"
#include "core/ops/rule.h"

struct tensor *op_matmul(struct graph *g, const char *name, struct tensor *a, bool transpose_a,
			 struct tensor *b, bool transpose_b)
{
	const struct matmul_attr attr = { transpose_a, transpose_b };
	struct tensor *in[] = { a, b };

	return node_out(graph_node(g, OP_matmul, name, &attr, 2, in), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct matmul_attr *attr = n->attr;
	const struct tensor *a = n->in[0], *b = n->in[1];
	const int ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
	int64_t dim[TENSOR_MAX_DIMS], takes, gives;

	if (!all_real(n) || a->ndim < 2 || b->ndim < 2)
		return graph_misfit(g, n, "inputs must be real and have 2 to %d dimensions",
				    TENSOR_MAX_DIMS);
	gives = tensor_dim(a, attr->transpose_a ? -2 : -1);
	takes = tensor_dim(b, attr->transpose_b ? -1 : -2);
	if (gives != takes)
		return graph_misfit(g, n,
				    "the left matrix has %lld columns, the right one %lld rows",
				    (long long)gives, (long long)takes);
	for (int i = 0; i < ndim - 2; i++) {
		const int64_t x = matmul_batch(a, i), y = matmul_batch(b, i);

		if (x != y && x != 1 && y != 1)
			return graph_misfit(g, n, "the leading dimensions do not broadcast");
		dim[ndim - 3 - i] = x > y ? x : y;
	}
	dim[ndim - 2] = tensor_dim(a, attr->transpose_a ? -1 : -2);
	dim[ndim - 1] = tensor_dim(b, attr->transpose_b ? -2 : -1);
	return graph_out(g, n, NULL, a->type, ndim, dim);
}

static void cost(const struct node *n, struct op_cost *c)
{
	const struct matmul_attr *attr = n->attr;
	const double k = (double)tensor_dim(n->in[0], attr->transpose_a ? -2 : -1);
	const double bytes =
		(double)(tensor_bytes(n->in[0]) + tensor_bytes(n->in[1]) + tensor_bytes(n->out[0]));

	c->forward_flops = 2 * (double)tensor_count(n->out[0]) * k;
	c->backward_flops = 2 * c->forward_flops;
	c->forward_bytes = bytes;
	c->backward_bytes = 2 * bytes;
}

/* ---------------------------------------------------------------------- cases */

/* Activations with other readers, so that gradients are added. */
static void apply(struct graph *g, struct tensor *a, bool transpose_a, struct tensor *b,
		  bool transpose_b)
{
	a = op_gelu(g, "left", a);
	b = op_gelu(g, "right", b);
	graph_seeded_output(g, "z", op_scale(g, "a_again", a, 2));
	graph_seeded_output(g, "y", op_matmul(g, "matmul", a, transpose_a, b, transpose_b));
	graph_seeded_output(g, "t", op_matmul(g, "again", a, transpose_a, b, transpose_b));
}

#define A(...) case_param(g, "a", __VA_ARGS__)
#define B(...) case_param(g, "b", __VA_ARGS__)

BUILD_CASE(case_plain, apply(g, A(5, 3), false, B(3, 7), false))
BUILD_CASE(case_left, apply(g, A(3, 5), true, B(3, 7), false))
BUILD_CASE(case_right, apply(g, A(5, 3), false, B(7, 3), true))
BUILD_CASE(case_both, apply(g, A(3, 5), true, B(7, 3), true))
BUILD_CASE(case_one, apply(g, A(1, 1, 1, 1), false, B(1, 1), false))
BUILD_CASE(case_batch, apply(g, A(2, 3, 5, 4), false, B(2, 3, 6, 4), true))
BUILD_CASE(case_batch_both, apply(g, A(2, 3, 4, 5), true, B(2, 3, 6, 4), true))
BUILD_CASE(case_weight, apply(g, A(2, 3, 5, 4), false, B(4, 6), false))
BUILD_CASE(case_weight_left, apply(g, A(2, 3, 4, 5), true, B(4, 6), false))
BUILD_CASE(case_left_shared, apply(g, A(5, 4), false, B(2, 3, 4, 6), false))
BUILD_CASE(case_heads, apply(g, A(2, 3, 5, 4), false, B(3, 4, 6), false))
BUILD_CASE(case_group, apply(g, A(2, 3, 5, 4), false, B(2, 1, 6, 4), true))
BUILD_CASE(case_cross, apply(g, A(2, 1, 5, 4), true, B(3, 5, 6), false))
BUILD_CASE(case_threads, apply(g, A(3, 70, 24), false, B(3, 33, 24), true))

/* Both factors are one tensor. */
static void case_square(struct graph *g)
{
	struct tensor *x = op_gelu(g, "x", case_param(g, "p", 2, 4, 4));

	graph_seeded_output(g, "y", op_matmul(g, "matmul", x, false, x, true));
}

/* Channels of wider activations. */
static void case_slices(struct graph *g)
{
	struct tensor *x = op_gelu(g, "x", case_param(g, "p", 2, 3, 5, 11));
	struct tensor *a = graph_slice(g, x, 1, 4), *b = graph_slice(g, x, 6, 4);

	graph_seeded_output(g, "y", op_matmul(g, "matmul", a, false, b, true));
	graph_seeded_output(g, "z", op_matmul(g, "other", a, true, b, false));
}

static void case_fixed(struct graph *g)
{
	struct tensor *a = case_input(g, "fixed", g->type, 2, 3, 4);

	graph_seeded_output(g, "y", op_matmul(g, "first", a, false, B(4, 2), false));
	graph_seeded_output(g, "z",
			    op_matmul(g, "second", case_param(g, "c", 2, 3), false, a, false));
}

OP_CASES(matmul) = {
	OP_CASE("plain", case_plain),
	OP_CASE("left transposed", case_left),
	OP_CASE("right transposed", case_right),
	OP_CASE("both transposed", case_both),
	OP_CASE("one element", case_one),
	OP_CASE("batch", case_batch),
	OP_CASE("batch, both transposed", case_batch_both),
	OP_CASE("one right matrix", case_weight),
	OP_CASE("one right matrix, left transposed", case_weight_left),
	OP_CASE("one left matrix", case_left_shared),
	OP_CASE("a right matrix for each head", case_heads),
	OP_CASE("a right matrix for each group", case_group),
	OP_CASE("both broadcast", case_cross),
	OP_CASE("threads", case_threads),
	OP_CASE("one tensor twice", case_square),
	OP_CASE("slices", case_slices),
	OP_CASE("one factor without gradient", case_fixed),
	OP_CASES_END,
};

const struct op op_desc_matmul = {
	.name = "matmul",
	.attr_size = sizeof(struct matmul_attr),
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(0) | BIT(1),
	.saves_in = BIT(0) | BIT(1),
	.separate_gradient_in = BIT(0),
	.bf16_in = BIT(0) | BIT(1),
	.bf16_out = BIT(0),
	.cases = matmul_cases,
};
