/*
 * add_scaled: y = a + f b with a constant f.  With a learned f it is another
 * op, because only then does the backward pass read b (df = sum dy b).
 */
#include "core/ops/rule.h"

struct tensor *op_add_scaled(struct graph *g, const char *name, struct tensor *a, struct tensor *b,
			     double constant, struct tensor *learned)
{
	const struct factor_attr attr = { constant };
	struct tensor *in[] = { a, b, learned };

	op_broadcast(g, name, &in[0], &in[1]);
	if (learned)
		return node_out(graph_node(g, OP_add_scaled_learned, name, &attr, 3, in), 0);
	return node_out(graph_node(g, OP_add_scaled, name, &attr, 2, in), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	if (!all_real(n))
		return graph_misfit(g, n, "inputs must be real");
	if (!tensor_same_shape(n->in[0], n->in[1]))
		return graph_misfit(g, n, "the shapes do not broadcast");
	if (!is_vector(n->in[2], 1))
		return graph_misfit(g, n, "a learned factor must have the shape [1]");
	return graph_out_like(g, n, NULL, n->in[0]);
}

static void cost(const struct node *n, struct op_cost *c)
{
	double bytes = (double)tensor_bytes(n->in[0]);

	c->forward_flops = 2 * (double)tensor_count(n->in[0]);
	c->backward_flops = (n->in[2] ? 1.5 : 0.5) * c->forward_flops;
	c->forward_bytes = 3 * bytes;			/* a, b, y */
	c->backward_bytes = (n->in[2] ? 4 : 3) * bytes; /* dy, da, db, and b */
}

static void apply(struct graph *g, struct tensor *a, struct tensor *b, double constant,
		  struct tensor *learned)
{
	graph_seeded_output(g, "y", op_add_scaled(g, "add_scaled", a, b, constant, learned));
}

BUILD_CASE(case_constant,
	   apply(g, case_param(g, "a", 3, 5, 7), case_param(g, "b", 3, 5, 7), 0.3, NULL))
BUILD_CASE(case_zero,
	   apply(g, op_gelu(g, "gelu", case_param(g, "a", 2)), case_param(g, "b", 2), 0, NULL))

static void case_same(struct graph *g)
{
	struct tensor *a = op_gelu(g, "gelu", case_param(g, "a", 2, 3));

	apply(g, a, a, 0.3, NULL);
}

/* Activations whose count is a multiple of eight: a device may take so many at once. */
static void case_eights(struct graph *g)
{
	struct tensor *a = op_gelu(g, "left", case_param(g, "p", 3, 8));
	struct tensor *b = op_gelu(g, "right", case_param(g, "q", 3, 8));

	graph_seeded_output(g, "y", op_gelu(g, "after", op_add_scaled(g, "add", a, b, 0.5, NULL)));
}

/* Two slices that cover a parameter, and one of its channels again. */
static void case_slices(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 2, 3, 9);

	case_add_to(g, "front", graph_slice(g, x, 0, 4), NULL);
	case_add_to(g, "back", graph_slice(g, x, 4, 5), NULL);
	case_add_to(g, "one", graph_slice(g, x, 3, 1), NULL);
}

/* Rows and pitches that a device may take eight by eight, and some that it may not. */
static void slice_eights(struct graph *g, struct tensor *learned)
{
	struct tensor *x = op_gelu(g, "gelu", case_param(g, "x", 1, 3, 40));

	case_add_to(g, "aligned", graph_slice(g, x, 8, 24), learned);
	case_add_to(g, "between", graph_slice(g, x, 3, 16), learned);
	case_add_to(g, "odd", graph_slice(g, x, 16, 12), learned);
	x = op_gelu(g, "other", case_param(g, "z", 3, 13));
	case_add_to(g, "pitch", graph_slice(g, x, 0, 8), learned);
}

BUILD_CASE(case_slice_eights, slice_eights(g, NULL))

/* Rows are tokens of several heads; then heads. */
static void case_slice_heads(struct graph *g)
{
	struct tensor *x = op_gelu(g, "gelu", case_param(g, "x", 2, 3, 17));
	struct tensor *z = case_param(g, "z", 2, 3, 2, 9);

	x = graph_reshape(g, graph_slice(g, x, 5, 12), 4, SHAPE(2, 3, 3, 4));
	case_add_to(g, "tokens", x, NULL);
	case_add_to(g, "heads", graph_slice(g, z, 2, 6), NULL);
}

OP_CASES(add_scaled) = {
	OP_CASE("constant", case_constant),
	OP_CASE("by zero", case_zero),
	OP_CASE("one tensor twice", case_same),
	OP_CASE("slices", case_slices),
	OP_CASE("slices of eights", case_slice_eights),
	OP_CASE("slices with heads", case_slice_heads),
	OP_CASES_END,
};

BUILD_CASE(case_learned, apply(g, case_param(g, "a", 3, 5, 7), case_param(g, "b", 3, 5, 7), 0,
			       case_param(g, "f", 1)))
BUILD_CASE(case_one, apply(g, op_gelu(g, "gelu", case_param(g, "a", 1)), case_param(g, "b", 1), 0,
			   case_param(g, "f", 1)))

/* Only the factor and a are learned. */
BUILD_CASE(case_fixed_b, apply(g, op_gelu(g, "gelu", case_param(g, "a", 4, 3)),
			       case_input(g, "b", g->type, 4, 3), 0, case_param(g, "f", 1)))
BUILD_CASE(case_threads, apply(g, case_param(g, "a", 9, 2011), case_param(g, "b", 9, 2011), 0,
			       case_param(g, "f", 1)))
BUILD_CASE(case_slice_learned, slice_eights(g, case_param(g, "f", 1)))

/* Rows that are no multiple of what a thread takes at a time. */
static void case_slice_threads(struct graph *g)
{
	struct tensor *x = op_gelu(g, "gelu", case_param(g, "x", 9, 2013));

	case_add_to(g, "y", graph_slice(g, x, 1, 2011), case_param(g, "f", 1));
}

OP_CASES(add_scaled_learned) = {
	OP_CASE("learned", case_learned),
	OP_CASE("one element", case_one),
	OP_CASE("b without gradient", case_fixed_b),
	OP_CASE("threads", case_threads),
	OP_CASE("eights", case_eights),
	OP_CASE("slices of eights", case_slice_learned),
	OP_CASE("slice for threads", case_slice_threads),
	OP_CASES_END,
};

const struct op op_desc_add_scaled = {
	.name = "add_scaled",
	.attr_size = sizeof(struct factor_attr),
	.min_inputs = 2,
	.max_inputs = 2,
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(0),
	.strided_heads_in = BIT(0),
	.grad_in_place = true,
	.bf16_in = BIT(0) | BIT(1),
	.bf16_out = BIT(0),
	.cases = add_scaled_cases,
};

const struct op op_desc_add_scaled_learned = {
	.name = "add_scaled_learned",
	.attr_size = sizeof(struct factor_attr),
	.min_inputs = 3,
	.max_inputs = 3,
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(0),
	.strided_heads_in = BIT(0),
	.saves_in = BIT(1) | BIT(2),
	.grad_in_place = true,
	.bf16_in = BIT(0) | BIT(1),
	.bf16_out = BIT(0),
	.cases = add_scaled_learned_cases,
};
