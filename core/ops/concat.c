/*
 * join: y = [a | b | ..], matrices with the same rows, or vectors, beside each other.  Columns of
 * an absent input are zero.
 */
#include "core/ops/rule.h"

struct tensor *op_concat(struct graph *g, const char *name, int n, struct tensor *const *in,
			 const int64_t *width)
{
	struct concat_attr attr = { { 0 } };

	for (int i = 0; i < n; i++)
		attr.width[i] = width[i];
	return node_out(graph_node(g, OP_concat, name, &attr, n, in), 0);
}

static const struct tensor *any_input(const struct node *n)
{
	for (int i = 0; i < n->n_in; i++)
		if (n->in[i])
			return n->in[i];
	return NULL;
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct concat_attr *attr = n->attr;
	const struct tensor *like = any_input(n);
	int64_t width = 0;

	if (!like || !all_real(n) || like->ndim > 2)
		return graph_misfit(g, n, "inputs must be real matrices or vectors");
	for (int i = 0; i < n->n_in; i++) {
		const struct tensor *t = n->in[i];

		if (attr->width[i] < 1 || (t && tensor_dim(t, -1) != attr->width[i]))
			return graph_misfit(g, n, "input %d must have %lld columns", i,
					    (long long)attr->width[i]);
		if (t && (t->ndim != like->ndim || (t->ndim == 2 && t->dim[0] != like->dim[0])))
			return graph_misfit(g, n, "the numbers of rows differ");
		width += attr->width[i];
	}
	if (like->ndim == 1)
		return graph_out(g, n, NULL, g->type, 1, SHAPE(width));
	return graph_out(g, n, NULL, g->type, 2, SHAPE(like->dim[0], width));
}

static void cost(const struct node *n, struct op_cost *c)
{
	double in = 0;

	for (int i = 0; i < n->n_in; i++)
		in += n->in[i] ? (double)tensor_bytes(n->in[i]) : 0;
	c->forward_bytes = in + (double)tensor_bytes(n->out[0]);
	c->backward_bytes = 2 * in;
}

static void case_matrices(struct graph *g)
{
	struct tensor *in[] = { case_param(g, "a", 5, 3), case_param(g, "b", 5, 1),
				case_param(g, "c", 5, 7) };

	graph_seeded_output(g, "y", op_concat(g, "y", 3, in, SHAPE(3, 1, 7)));
}

static void case_vectors(struct graph *g)
{
	struct tensor *in[] = { case_param(g, "a", 3), op_gelu(g, "b", case_param(g, "p", 2)) };

	graph_seeded_output(g, "y", op_concat(g, "y", 2, in, SHAPE(3, 2)));
}

static void case_absent(struct graph *g)
{
	struct tensor *in[] = { NULL, case_param(g, "b", 4, 3), NULL };

	graph_seeded_output(g, "y", op_concat(g, "y", 3, in, SHAPE(2, 3, 1)));
}

/* As in a model: x [W | V W] by one product, read in slices; counts are multiples of eight. */
static void case_weights(struct graph *g)
{
	struct tensor *x = op_gelu(g, "before", case_param(g, "x", 6, 8));
	struct tensor *w = case_param(g, "w", 8, 16), *v = case_param(g, "v", 8, 8), *in[2], *y;

	in[0] = w;
	in[1] = op_linear(g, "folded", v, w, NULL);
	y = op_linear(g, "y", x, op_concat(g, "weight", 2, in, SHAPE(16, 16)), NULL);
	for (int i = 0; i < 2; i++)
		in[i] = op_linear(g, i ? "right" : "left", graph_slice(g, y, 16 * i, 16),
				  case_param(g, i ? "r" : "l", 16, 3), NULL);
	graph_seeded_output(g, "z", op_add(g, "z", in[0], in[1]));
}

/* Columns of wider matrices, some of which are not read. */
static void case_slices(struct graph *g)
{
	struct tensor *a = op_gelu(g, "a", case_param(g, "p", 5, 24)),
		      *b = case_param(g, "b", 5, 3);
	struct tensor *in[] = { graph_slice(g, a, 8, 8), graph_slice(g, a, 16, 8),
				graph_slice(g, b, 1, 2) };

	graph_seeded_output(g, "y", op_concat(g, "y", 3, in, SHAPE(8, 8, 2)));
}

/* Columns of y, read alone, and some of them twice. */
static void case_read_in_slices(struct graph *g)
{
	struct tensor *in[] = { case_param(g, "a", 5, 8), case_param(g, "b", 5, 16) };
	struct tensor *y = op_concat(g, "y", 2, in, SHAPE(8, 16));

	for (int i = 0; i < 2; i++)
		in[i] = op_linear(g, i ? "right" : "left", graph_slice(g, y, 8 * i, 16),
				  case_param(g, i ? "r" : "l", 16, 3), NULL);
	graph_seeded_output(g, "z", op_add(g, "z", in[0], in[1]));
}

/* A reader whose gradient is that of y, unless they are kept in different types. */
static void case_added(struct graph *g)
{
	struct tensor *in[] = { case_param(g, "a", 5, 8), case_param(g, "b", 5, 16) };
	struct tensor *y = op_concat(g, "y", 2, in, SHAPE(8, 16));

	graph_seeded_output(g, "z", op_add(g, "z", y, case_param(g, "c", 5, 24)));
}

static void case_threads(struct graph *g)
{
	struct tensor *in[] = { case_param(g, "a", 301, 24), case_param(g, "b", 301, 8) };

	graph_seeded_output(g, "y", op_concat(g, "y", 2, in, SHAPE(24, 8)));
}

OP_CASES(concat) = {
	OP_CASE("matrices", case_matrices),
	OP_CASE("vectors", case_vectors),
	OP_CASE("absent inputs", case_absent),
	OP_CASE("weights of one product", case_weights),
	OP_CASE("slices", case_slices),
	OP_CASE("read in slices", case_read_in_slices),
	OP_CASE("added", case_added),
	OP_CASE("threads", case_threads),
	OP_CASES_END,
};

const struct op op_desc_concat = {
	.name = "concat",
	.attr_size = sizeof(struct concat_attr),
	.min_inputs = 1,
	.max_inputs = OP_MAX_INPUTS,
	.optional_in = BIT(0),
	.infer = infer,
	.cost = cost,
	.strided_in = BIT(OP_MAX_INPUTS) - 1,
	.recompute_rule = { .made = BIT(0), .in = BIT(OP_MAX_INPUTS) - 1 },
	.bf16_in = BIT(OP_MAX_INPUTS) - 1,
	.bf16_out = BIT(0),
	.full_gradient_out = BIT(0), /* of weights: products round these, but not their gradients */
	.cases = concat_cases,
};
