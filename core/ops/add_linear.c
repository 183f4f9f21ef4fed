/*
 * add_linear: y = a + f x W with a constant f, or y = a + f x W' if W is stored transposed.  With a
 * learned f it is another op, as add_scaled is.  x [..,I] is seen as N rows of I channels.
 *   da = dy        dx = f dy W'        dW = f R        df = sum R W        with R = x' dy
 * So the backward pass reads neither x W nor any other tensor as wide as y but dy.
 */
#include "core/ops/linear_rule.h"

struct tensor *op_add_linear(struct graph *g, const char *name, struct tensor *a, struct tensor *x,
			     struct tensor *w, bool transposed, double constant,
			     struct tensor *learned)
{
	const struct add_linear_attr attr = { .factor = { constant }, .transposed = transposed };
	struct tensor *in[] = { a, w, x, learned };

	if (learned)
		return node_out(graph_node(g, OP_add_linear_learned, name, &attr, 4, in), 0);
	return node_out(graph_node(g, OP_add_linear, name, &attr, 3, in), 0);
}

static bool same_rows(const struct tensor *a, const struct tensor *x)
{
	if (a->ndim != x->ndim)
		return false;
	for (int i = 0; i < x->ndim - 1; i++)
		if (a->dim[i] != x->dim[i])
			return false;
	return true;
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct add_linear_attr *attr = n->attr;
	const struct tensor *a = n->in[0], *w = n->in[1], *x = n->in[2];

	if (check_linear(g, n, x, w, attr->transposed) != OK)
		return FAIL;
	if (!same_rows(a, x) || tensor_dim(a, -1) != w->dim[!attr->transposed])
		return graph_misfit(g, n, "a must have the shape of the product");
	/* da may lie where dy was, which the gradients of x and W are made from. */
	if (tensor_root(a) == tensor_root(x) || tensor_root(a) == tensor_root(w))
		return graph_misfit(g, n, "a must not be a factor of the product");
	if (!is_vector(n->in[3], 1))
		return graph_misfit(g, n, "a learned factor must have the shape [1]");
	return graph_out_like(g, n, NULL, a);
}

/* As of linear and add_scaled: the work of a model does not depend on which ops it is made of. */
static void cost(const struct node *n, struct op_cost *c)
{
	const struct tensor *w = n->in[1], *x = n->in[2], *y = n->out[0];
	const double product = 2.0 * (double)tensor_count(x) * (double)tensor_dim(y, -1);
	const double sum = 2 * (double)tensor_count(y), wide = (double)tensor_bytes(y);
	const double ends = (double)(tensor_bytes(x) + tensor_bytes(w)) + wide;

	c->forward_flops = product + sum;
	c->backward_flops = 2 * product + (n->in[3] ? 1.5 : 0.5) * sum;
	c->forward_bytes = ends + 3 * wide;
	c->backward_bytes = 2 * ends + (n->in[3] ? 4 : 3) * wide;
}

/* -------------------------------------------------------------------- cases */

static void apply(struct graph *g, struct tensor *a, struct tensor *x, bool transposed,
		  struct tensor *learned)
{
	const int64_t I = tensor_dim(x, -1), O = tensor_dim(a, -1);
	struct tensor *w = transposed ? case_param(g, "w", O, I) : case_param(g, "w", I, O);

	graph_seeded_output(g, "y", op_add_linear(g, "y", a, x, w, transposed, 0.3, learned));
}

static struct tensor *factor(struct graph *g)
{
	return case_param(g, "f", 1);
}

BUILD_CASE(case_constant,
	   apply(g, case_param(g, "a", 2, 5, 7), case_param(g, "x", 2, 5, 3), false, NULL))
BUILD_CASE(case_learned,
	   apply(g, case_param(g, "a", 2, 5, 7), case_param(g, "x", 2, 5, 3), false, factor(g)))
BUILD_CASE(case_transposed,
	   apply(g, case_param(g, "a", 13, 6), case_param(g, "x", 13, 4), true, NULL))
BUILD_CASE(case_learned_transposed,
	   apply(g, case_param(g, "a", 13, 6), case_param(g, "x", 13, 4), true, factor(g)))
BUILD_CASE(case_one, apply(g, case_param(g, "a", 1), case_param(g, "x", 1), false, factor(g)))

static void case_zero(struct graph *g)
{
	struct tensor *a = case_param(g, "a", 3, 4), *x = case_param(g, "x", 3, 2);

	graph_seeded_output(g, "y",
			    op_add_linear(g, "y", a, x, case_param(g, "w", 2, 4), false, 0, NULL));
}

/*
 * As in a model: W is read both ways, a twice, and others follow.  Counts are multiples of eight,
 * which a device may take at once.
 */
static void between(struct graph *g, struct tensor *learned)
{
	struct tensor *a = op_gelu(g, "before", case_param(g, "p", 16, 24));
	struct tensor *x = op_gelu(g, "left", case_param(g, "q", 16, 8));
	struct tensor *w = case_param(g, "w", 24, 8), *down = op_linear(g, "down", a, w, NULL);
	struct tensor *y = op_add_linear(g, "y", a, x, w, true, 0.5, learned);

	graph_seeded_output(g, "down", op_gelu(g, "sent", down));
	graph_seeded_output(g, "out", op_gelu(g, "after", y));
}

BUILD_CASE(case_between, between(g, NULL))
BUILD_CASE(case_learned_between, between(g, factor(g)))

/* a is read here alone: its gradient may take the place of dy. */
static void case_last(struct graph *g)
{
	struct tensor *a = op_gelu(g, "before", case_param(g, "p", 9, 8));
	struct tensor *y = op_add_linear(g, "y", a, case_param(g, "x", 9, 5),
					 case_param(g, "w", 5, 8), false, 0, factor(g));

	graph_seeded_output(g, "out", op_gelu(g, "after", y));
}

static void case_slice(struct graph *g)
{
	struct tensor *x = graph_slice(g, case_param(g, "x", 2, 3, 9), 4, 5);

	apply(g, case_param(g, "a", 2, 3, 6), x, false, factor(g));
}

/* Only the weight and the factor are learned; or all but the weight. */
BUILD_CASE(case_fixed, apply(g, case_input(g, "a", g->type, 4, 3),
			     case_input(g, "x", g->type, 4, 2), false, factor(g)))

static void case_fixed_weight(struct graph *g)
{
	struct tensor *w = case_input(g, "w", g->type, 2, 3);

	graph_seeded_output(g, "y",
			    op_add_linear(g, "y", case_param(g, "a", 4, 3),
					  case_param(g, "x", 4, 2), w, false, 0, factor(g)));
}

/* The weight is an activation. */
static void case_made_weight(struct graph *g)
{
	struct tensor *w = op_gelu(g, "made", case_param(g, "w", 8, 16));

	graph_seeded_output(g, "y",
			    op_add_linear(g, "y", case_param(g, "a", 6, 16),
					  case_param(g, "x", 6, 8), w, false, 0, factor(g)));
}

/* Enough rows, and a weight large enough, for several threads and blocks. */
BUILD_CASE(case_threads,
	   apply(g, case_param(g, "a", 301, 72), case_param(g, "x", 301, 8), false, NULL))
BUILD_CASE(case_learned_threads,
	   apply(g, case_param(g, "a", 5, 1051), case_param(g, "x", 5, 17), true, factor(g)))

OP_CASES(add_linear) = {
	OP_CASE("constant", case_constant), OP_CASE("transposed", case_transposed),
	OP_CASE("by zero", case_zero),	    OP_CASE("between others", case_between),
	OP_CASE("threads", case_threads),   OP_CASES_END,
};

OP_CASES(add_linear_learned) = {
	OP_CASE("learned", case_learned),
	OP_CASE("transposed", case_learned_transposed),
	OP_CASE("one number", case_one),
	OP_CASE("between others", case_learned_between),
	OP_CASE("the last reader", case_last),
	OP_CASE("slice", case_slice),
	OP_CASE("a and x without gradients", case_fixed),
	OP_CASE("weight without gradient", case_fixed_weight),
	OP_CASE("weight of an op", case_made_weight),
	OP_CASE("threads", case_learned_threads),
	OP_CASES_END,
};

const struct op op_desc_add_linear = {
	.name = "add_linear",
	.attr_size = sizeof(struct add_linear_attr),
	.min_inputs = 3,
	.max_inputs = 3,
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(2),
	.saves_in = BIT(1) | BIT(2),
	.grad_in_place = true,
	.separate_gradient_in = BIT(0) | BIT(2),
	.bf16_in = BIT(0) | BIT(1) | BIT(2),
	.bf16_out = BIT(0),
	.cases = add_linear_cases,
};

const struct op op_desc_add_linear_learned = {
	.name = "add_linear_learned",
	.attr_size = sizeof(struct add_linear_attr),
	.min_inputs = 4,
	.max_inputs = 4,
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(2),
	.saves_in = BIT(1) | BIT(2) | BIT(3),
	.grad_in_place = true,
	.separate_gradient_in = BIT(0) | BIT(2),
	.bf16_in = BIT(0) | BIT(1) | BIT(2),
	.bf16_out = BIT(0),
	.cases = add_linear_learned_cases,
};
