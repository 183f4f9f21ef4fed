/*
 * scalar_pool: the way back of scalar_expand.  Latent channel i of L
 * receives the mean of the hidden channels that read it:
 *   y_i = s[iH/L] mean of x_c over floor(cL/F) = i, x [B,T,F], s [H], y [B,T,L], F >= L.
 */
#include "core/ops/rule.h"

struct tensor *op_scalar_pool(struct graph *g, const char *name, struct tensor *x,
			      struct tensor *s, int64_t width)
{
	const struct scalar_attr attr = { width };
	struct tensor *in[] = { x, s };

	return node_out(graph_node(g, OP_scalar_pool, name, &attr, 2, in), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct scalar_attr *attr = n->attr;
	const struct tensor *x = n->in[0];

	if (!all_real(n) || x->ndim != 3 || n->in[1]->ndim != 1)
		return graph_misfit(g, n, "inputs must be real, x [B,T,F] and the scalars [H]");
	if (attr->width > x->dim[2])
		return graph_misfit(g, n, "a width of %lld leaves some channels without any of "
				    "%lld", (long long)attr->width, (long long)x->dim[2]);
	return graph_out(g, n, NULL, x->type, 3, SHAPE(x->dim[0], x->dim[1], attr->width));
}

static void cost(const struct node *n, struct op_cost *c)
{
	double x = (double)tensor_bytes(n->in[0]), y = (double)tensor_bytes(n->out[0]);

	c->forward_flops = (double)tensor_count(n->in[0]);
	c->backward_flops = 2 * c->forward_flops;
	c->forward_bytes = x + y;
	c->backward_bytes = 2 * x + y; /* x, dx, dy */
}

static void apply(struct graph *g, struct tensor *x, int64_t scalars, int64_t width)
{
	graph_seeded_output(g, "y", op_scalar_pool(g, "pool", x, case_param(g, "s", scalars),
						   width));
}

static void case_even(struct graph *g)
{
	apply(g, case_param(g, "x", 2, 3, 16), 2, 4);
}

static void case_uneven(struct graph *g)
{
	apply(g, case_param(g, "x", 2, 3, 13), 3, 5);
}

static void case_equal(struct graph *g)
{
	apply(g, case_param(g, "x", 1, 2, 6), 4, 6);
}

static void case_one(struct graph *g)
{
	apply(g, case_param(g, "x", 1, 1, 3), 1, 1);
}

static void case_chain(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 1, 4, 9));
	struct tensor *s = case_param(g, "s", 2);
	struct tensor *y = op_scalar_pool(g, "first", x, s, 5);

	graph_seeded_output(g, "y", op_gelu(g, "after", op_scalar_pool(g, "second", y, s, 3)));
	graph_seeded_output(g, "z", op_scalar_pool(g, "third", x, s, 9));
}

static void case_threads(struct graph *g)
{
	apply(g, case_param(g, "x", 3, 157, 41), 3, 7);
}

OP_CASES(scalar_pool) = {
	OP_CASE("even blocks", case_even),
	OP_CASE("uneven blocks", case_uneven),
	OP_CASE("equal widths", case_equal),
	OP_CASE("one latent channel", case_one),
	OP_CASE("between others", case_chain),
	OP_CASE("threads", case_threads),
	OP_CASES_END,
};

const struct op op_desc_scalar_pool = {
	.name = "scalar_pool",
	.attr_size = sizeof(struct scalar_attr),
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer,
	.cost = cost,
	.saves_in = BIT(0) | BIT(1),
	.cases = scalar_pool_cases,
};
