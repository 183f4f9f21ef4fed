#include "core/train/workload.h"

struct batch {
	const struct workload *workload;
	int64_t rows;
};

static void build(void *context, struct graph *g, struct token_io *io)
{
	const struct batch *b = context;

	b->workload->build(b->workload->context, g, b->rows, io);
}

enum status workload_open(struct token_program *t, const struct workload *workload,
			  struct params *params, int64_t rows, const struct backend *backend,
			  const struct program_options *options, struct error *err)
{
	struct batch batch = { workload, rows };

	return token_program_open(t, build, &batch, params, backend, options, err);
}
