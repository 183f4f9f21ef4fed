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
	return g->state ? graph_out_state(g, n, "so_far", 2, SHAPE(n->in[0]->dim[0], n->in[0]->dim[2]))
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

static void case_odd(struct graph *g)
{
	graph_seeded_output(g, "y", op_running_mean(g, "mean", case_param(g, "x", 3, 5, 7)));
}

static void case_one(struct graph *g)
{
	graph_seeded_output(g, "y", op_running_mean(g, "mean", case_param(g, "x", 1, 1, 1)));
}

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

OP_CASES(running_mean) = {
	OP_CASE("odd shape", case_odd),
	OP_CASE("one element", case_one),
	OP_CASE("many channels", case_wide),
	OP_CASE("threads", case_threads),
	OP_CASE("even width", case_even),
	OP_CASES_END,
};

const struct op op_desc_running_mean = {
	.name = "running_mean",
	.min_inputs = 1,
	.max_inputs = 1,
	.infer = infer,
	.cost = cost,
	.grad_in_place = true,
	.narrow_in = BIT(0),
	.narrow_out = BIT(0),
	.cases = running_mean_cases,
};
