/*
 * linear: y = x W + b, or y = x W' if W is stored transposed.
 * x [..,I] is seen as N rows of I channels.
 *   dx = dy W'        dW = x' dy        db = sum of the rows of dy
 */
#include <stdio.h>

#include "core/ops/linear_rule.h"

static struct tensor *linear_node(struct graph *g, const char *name, struct tensor *x,
				  struct tensor *w, struct tensor *b, bool transposed)
{
	const struct linear_attr attr = { .transposed = transposed };
	struct tensor *in[] = { x, w, b };

	return node_out(graph_node(g, OP_linear, name, &attr, 3, in), 0);
}

struct tensor *op_linear(struct graph *g, const char *name, struct tensor *x, struct tensor *w,
			 struct tensor *b)
{
	return linear_node(g, name, x, w, b, false);
}

struct tensor *op_linear_transposed(struct graph *g, const char *name, struct tensor *x,
				    struct tensor *w)
{
	return linear_node(g, name, x, w, NULL, true);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct linear_attr *attr = n->attr;

	return infer_linear(g, n, attr->transposed);
}

#define ALIGNED \
	8 /* columns: devices read matrices faster whose rows are a multiple of this apart */

/* x [V | W | ..], with a bias if any has one, and with columns of zeros at the end. */
static struct tensor *merge(struct graph *g, int n, struct node *const *nodes)
{
	const struct linear_attr *attr = nodes[0]->attr;
	struct tensor *w[OP_MAX_INPUTS] = { NULL }, *b[OP_MAX_INPUTS] = { NULL }, *bias = NULL;
	int64_t width[OP_MAX_INPUTS], total = 0;
	char name[160];

	if (attr->transposed)
		return NULL;
	for (int i = 0; i < n; i++) {
		w[i] = nodes[i]->in[1];
		b[i] = nodes[i]->in[2];
		width[i] = w[i]->dim[1];
		total += width[i];
		bias = b[i] ? b[i] : bias;
	}
	if (total % ALIGNED && n < OP_MAX_INPUTS)
		width[n++] = ALIGNED - total % ALIGNED;
	if (bias) {
		snprintf(name, sizeof(name), "%s.biases", nodes[0]->name);
		bias = op_concat(g, name, n, b, width);
	}
	snprintf(name, sizeof(name), "%s.weights", nodes[0]->name);
	w[0] = op_concat(g, name, n, w, width);
	snprintf(name, sizeof(name), "%s.joined", nodes[0]->name);
	return op_linear(g, name, nodes[0]->in[0], w[0], bias);
}

static void case_plain(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 2, 5, 7), *w = case_param(g, "w", 7, 3);

	graph_seeded_output(g, "y", op_linear(g, "linear", x, w, NULL));
}

static void case_bias(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 13, 3), *w = case_param(g, "w", 3, 17);

	graph_seeded_output(g, "y", op_linear(g, "linear", x, w, case_param(g, "b", 17)));
}

static void case_one(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 1), *w = case_param(g, "w", 1, 1);

	graph_seeded_output(g, "y", op_linear(g, "linear", x, w, case_param(g, "b", 1)));
}

static void case_transposed(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 3, 2, 2, 5), *w = case_param(g, "w", 4, 5);

	graph_seeded_output(g, "y", op_linear_transposed(g, "linear", x, w));
}

/* Few rows, enough for two threads, with remainders. */
static void case_few(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 3, 71), *w = case_param(g, "w", 71, 251);

	graph_seeded_output(g, "y", op_linear(g, "linear", x, w, case_param(g, "b", 251)));
}

static void case_few_transposed(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 1, 71), *w = case_param(g, "w", 251, 71);

	graph_seeded_output(g, "y", op_linear_transposed(g, "linear", x, w));
}

/* Rows of decoding: long ones, and many outputs. */
static void case_few_long(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 3, 2056), *w = case_param(g, "w", 2056, 6);

	graph_seeded_output(g, "y", op_linear(g, "linear", x, w, case_param(g, "b", 6)));
}

static void case_few_outputs(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 1, 2, 8), *w = case_param(g, "w", 8195, 8);

	graph_seeded_output(g, "y", op_linear_transposed(g, "linear", x, w));
}

/* One matrix read both ways: its gradient has two parts. */
static void case_tied(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 6, 5), *w = case_param(g, "w", 5, 4);

	x = op_linear(g, "down", x, w, NULL);
	graph_seeded_output(g, "y", op_linear_transposed(g, "up", x, w));
}

/* Two slices that cover x, and one that does not cover an activation. */
static void case_slices(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 2, 3, 9);
	struct tensor *front = graph_slice(g, x, 0, 4), *back = graph_slice(g, x, 4, 5);

	front = op_linear(g, "y", front, case_param(g, "w", 4, 3), case_param(g, "b", 3));
	graph_seeded_output(g, "y", front);
	back = op_linear_transposed(g, "wide", back, case_param(g, "v", 6, 5));
	back = graph_slice(g, back, 1, 3);
	graph_seeded_output(g, "z", op_linear(g, "z", back, case_param(g, "u", 3, 2), NULL));
}

/* A slice that is not columns of its root but the last of three rows. */
static void case_last_token(struct graph *g)
{
	struct tensor *x = op_gelu(g, "x", case_param(g, "p", 2, 3, 4));

	x = graph_slice(g, graph_reshape(g, x, 2, SHAPE(2, 12)), 8, 4);
	graph_seeded_output(g, "y", op_linear(g, "y", x, case_param(g, "w", 4, 2), NULL));
}

/* More slices of one tensor than the gradient can track. */
static void case_many_slices(struct graph *g)
{
	struct tensor *x = op_gelu(g, "x", case_param(g, "p", 2, 11));
	struct tensor *w = case_param(g, "w", 1, 2), *y = NULL;

	for (int i = 0; i < 10; i++) {
		char name[16];
		struct tensor *part;

		snprintf(name, sizeof(name), "part%d", i);
		part = op_linear(g, name, graph_slice(g, x, i, 1), w, NULL);
		snprintf(name, sizeof(name), "sum%d", i);
		y = y ? op_add(g, name, y, part) : part;
	}
	graph_seeded_output(g, "y", y);
}

/* Enough rows for several blocks and threads in the column sums of db. */
static void case_many_rows(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 300, 2), *w = case_param(g, "w", 2, 70);

	graph_seeded_output(g, "y", op_linear(g, "linear", x, w, case_param(g, "b", 70)));
}

OP_CASES(linear) = {
	OP_CASE("no bias", case_plain),
	OP_CASE("bias", case_bias),
	OP_CASE("one number", case_one),
	OP_CASE("transposed", case_transposed),
	OP_CASE("few rows", case_few),
	OP_CASE("few rows, transposed", case_few_transposed),
	OP_CASE("few long rows", case_few_long),
	OP_CASE("few rows, many outputs", case_few_outputs),
	OP_CASE("tied", case_tied),
	OP_CASE("slices", case_slices),
	OP_CASE("last token", case_last_token),
	OP_CASE("many slices", case_many_slices),
	OP_CASE("many rows", case_many_rows),
	OP_CASES_END,
};

const struct op op_desc_linear = {
	.name = "linear",
	.attr_size = sizeof(struct linear_attr),
	.min_inputs = 2,
	.max_inputs = 3,
	.infer = infer,
	.cost = cost_linear,
	.strided_in = BIT(0),
	.saves_in = BIT(0) | BIT(1),
	.separate_gradient_in = BIT(0),
	.bf16_in = BIT(0) | BIT(1),
	.bf16_out = BIT(0),
	.merge = merge,
	.cases = linear_cases,
};
