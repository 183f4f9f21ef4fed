/*
 * embedding: y[b,t] = table[tokens[b,t]] + positions[past + t].
 * The caller must keep `tokens` in range.
 */
#include "core/ops/op_case.h"

struct tensor *op_embedding(struct graph *g, const char *name, struct tensor *table,
			    struct tensor *positions, struct tensor *tokens)
{
	struct tensor *in[] = { table, tokens, positions };

	return node_out(graph_node(g, OP_embedding, name, NULL, 3, in), 0);
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct tensor *table = n->in[0], *tokens = n->in[1], *positions = n->in[2];

	if (tokens->type != I32 || tokens->ndim != 2)
		return graph_misfit(g, n, "tokens must be i32 [B,T]");
	if (table->type == I32 || table->ndim != 2)
		return graph_misfit(g, n, "the table must be real [V,E]");
	if (positions &&
	    (positions->type == I32 || positions->ndim != 2 || positions->dim[1] != table->dim[1]))
		return graph_misfit(g, n, "the positions must be real [>=T,%lld]",
				    (long long)table->dim[1]);
	if (positions && positions->dim[0] < (g->state ? g->capacity : tokens->dim[1]))
		return graph_misfit(g, n, "%lld positions are too few for %lld tokens",
				    (long long)positions->dim[0],
				    (long long)(g->state ? g->capacity : tokens->dim[1]));
	return graph_out(g, n, NULL, table->type, 3,
			 SHAPE(tokens->dim[0], tokens->dim[1], table->dim[1]));
}

static void cost(const struct node *n, struct op_cost *c)
{
	double y = (double)tensor_bytes(n->out[0]);
	double places = n->in[2] ? y / (double)n->in[1]->dim[0] : 0;

	c->forward_bytes = 2 * y + places;	/* rows of the table, y, positions */
	c->backward_bytes = 3 * y + 2 * places; /* dy, rows of the table read and written */
}

static void apply(struct graph *g, int64_t batch, int64_t length, struct tensor *table,
		  struct tensor *positions)
{
	struct tensor *tokens = case_input(g, "tokens", I32, batch, length);

	graph_seeded_output(g, "y", op_embedding(g, "embedding", table, positions, tokens));
}

BUILD_CASE(case_table, apply(g, 2, 5, case_param(g, "table", 4, 3), NULL))
BUILD_CASE(case_positions,
	   apply(g, 3, 5, case_param(g, "table", 4, 7), case_param(g, "positions", 5, 7)))
BUILD_CASE(case_spare_positions,
	   apply(g, 2, 3, case_param(g, "table", 9, 2), case_param(g, "positions", 6, 2)))
BUILD_CASE(case_one, apply(g, 1, 1, case_param(g, "table", 1, 1), case_param(g, "positions", 1, 1)))

/* Two nodes read the table: the second adds to its gradient. */
static void case_twice(struct graph *g)
{
	struct tensor *table = case_param(g, "table", 4, 5);
	struct tensor *positions = case_param(g, "positions", 4, 5);
	struct tensor *tokens = case_input(g, "tokens", I32, 2, 3);

	graph_seeded_output(g, "y", op_embedding(g, "first", table, positions, tokens));
	graph_seeded_output(g, "z", op_embedding(g, "second", table, positions, tokens));
}

BUILD_CASE(case_threads,
	   apply(g, 3, 130, case_param(g, "table", 7, 45), case_param(g, "positions", 131, 45)))

/* More channels than a block has threads. */
BUILD_CASE(case_many_channels, apply(g, 2, 3, case_param(g, "table", 2, 300), NULL))
BUILD_CASE(case_spans,
	   apply(g, 11, 3, case_param(g, "table", 5, 16), case_param(g, "positions", 4, 16)))

OP_CASES(embedding) = {
	OP_CASE("table alone", case_table, .int_limit = 4),
	OP_CASE("positions", case_positions, .int_limit = 4),
	OP_CASE("more positions than tokens", case_spare_positions, .int_limit = 9),
	OP_CASE("one token", case_one, .int_limit = 1),
	OP_CASE("used twice", case_twice, .int_limit = 4),
	OP_CASE("threads", case_threads, .int_limit = 7),
	OP_CASE("many channels", case_many_channels, .int_limit = 2),
	OP_CASE("spans", case_spans, .int_limit = 5),
	OP_CASES_END,
};

const struct op op_desc_embedding = {
	.name = "embedding",
	.min_inputs = 2,
	.max_inputs = 3,
	.infer = infer,
	.cost = cost,
	.constant_in = BIT(1),
	.saves_in = BIT(1),
	.separate_gradient_in = BIT(0),
	.bf16_residual_out = BIT(0),
	.cases = embedding_cases,
};
