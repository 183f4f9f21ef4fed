/*
 * running_mean: y_t = mean of x_s over s <= t, x [B,T,C].  If runs continue each
 * other, the mean includes the tokens of earlier runs, and the op keeps it.
 * The gradient of x_s is the sum of dy_t / (t + 1) over t >= s.
 */
#include "core/ops/rule.h"

struct tensor *op_running_mean(struct graph *g, const char *name, struct tensor *x)
{
	return node_out(graph_node(g, OP_running_mean, name, NULL, 1, &x), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	if (!all_real(n) || n->in[0]->ndim != 3)
		return graph_misfit(g, n, "x must be real and [B,T,C]");
	if (graph_out_like(g, n, NULL, n->in[0]) != OK)
		return FAIL;
	return g->state ? graph_out_state(g, n, "so_far", 2,
					  SHAPE(n->in[0]->dim[0], n->in[0]->dim[2]))
			: OK;
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_flops = 3 * (double)tensor_count(n->in[0]);
	c->backward_flops = 2 * (double)tensor_count(n->in[0]);
	c->forward_bytes = 2 * bytes;  /* x, y */
	c->backward_bytes = 2 * bytes; /* dy, dx */
}

BUILD_CASE(case_odd,
	   graph_seeded_output(g, "y", op_running_mean(g, "mean", case_param(g, "x", 3, 5, 7))))
BUILD_CASE(case_one,
	   graph_seeded_output(g, "y", op_running_mean(g, "mean", case_param(g, "x", 1, 1, 1))))

/* Wider than one block of columns; x is read twice. */
static void case_wide(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 2, 3, 131));

	graph_seeded_output(g, "y", op_running_mean(g, "first", x));
	graph_seeded_output(g, "z", op_running_mean(g, "second", x));
}

static void case_threads(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 3, 701, 9));

	graph_seeded_output(g, "y", op_running_mean(g, "mean", x));
}

/* Channels that a thread takes together. */
static void case_even(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 2, 67, 24));

	graph_seeded_output(g, "y", op_running_mean(g, "mean", x));
}

/* Of two slices that cover x, the other is read by another op. */
static void mean_of_slice(struct graph *g, struct tensor *x, int64_t first)
{
	const int64_t C = tensor_dim(x, -1) - first;

	graph_seeded_output(g, "back", op_running_mean(g, "mean", graph_slice(g, x, first, C)));
	case_add_to(g, "front", graph_slice(g, x, 0, first), NULL);
}

BUILD_CASE(case_slice, mean_of_slice(g, case_param(g, "x", 3, 5, 11), 4))

/* Wider than one block of columns, in several pieces. */
BUILD_CASE(case_slice_wide, mean_of_slice(g, op_gelu(g, "gelu", case_param(g, "x", 2, 37, 75)), 6))
BUILD_CASE(case_slice_eights,
	   mean_of_slice(g, op_gelu(g, "gelu", case_param(g, "x", 2, 67, 40)), 16))
BUILD_CASE(case_slice_threads,
	   mean_of_slice(g, op_gelu(g, "gelu", case_param(g, "x", 3, 701, 17)), 8))

/* Eights that begin where no eight does, beside others; and eights that are not eights apart. */
static void case_slice_between(struct graph *g)
{
	struct tensor *x = op_gelu(g, "gelu", case_param(g, "x", 2, 35, 32));
	struct tensor *z = op_gelu(g, "odd", case_param(g, "z", 2, 35, 13));

	graph_seeded_output(g, "between", op_running_mean(g, "first", graph_slice(g, x, 3, 16)));
	graph_seeded_output(g, "again", op_running_mean(g, "second", graph_slice(g, x, 8, 16)));
	graph_seeded_output(g, "pitch", op_running_mean(g, "third", graph_slice(g, z, 0, 8)));
}

OP_CASES(running_mean) = {
	OP_CASE("odd shape", case_odd),
	OP_CASE("one element", case_one),
	OP_CASE("many channels", case_wide),
	OP_CASE("threads", case_threads),
	OP_CASE("even width", case_even),
	OP_CASE("slice", case_slice),
	OP_CASE("wide slice", case_slice_wide),
	OP_CASE("slice of eights", case_slice_eights),
	OP_CASE("slice for threads", case_slice_threads),
	OP_CASE("slices between eights", case_slice_between),
	OP_CASES_END,
};

const struct op op_desc_running_mean = {
	.name = "running_mean",
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(0),
	.grad_in_place = true,
	.bf16_in = BIT(0),
	.bf16_out = BIT(0),
	.cases = running_mean_cases,
};
