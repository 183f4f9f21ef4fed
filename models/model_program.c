#include "models/model_program.h"

struct order {
	const struct model *m;
	const struct model_use *use;
};

static void build(void *context, struct graph *g, struct token_io *io)
{
	const struct order *order = context;
	const struct model_use *use = order->use;

	if (use->state)
		graph_continue(g, use->state, use->capacity);
	model_build(order->m, g, use->purpose, use->rows, use->length, io);
}

enum status model_program_open(struct token_program *t, const struct model *m,
			       const struct model_use *use, struct params *params,
			       const struct backend *backend, struct error *err)
{
	struct program_options options = use->program;
	struct order order = { m, use };

	options.train = use->purpose == MODEL_TRAIN;
	return token_program_open(t, build, &order, params, backend, &options, err);
}
