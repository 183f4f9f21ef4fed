#include "core/train/token_program.h"

static enum status make_runnable(struct token_program *t, struct params *params,
				 const struct backend *backend,
				 const struct program_options *options, struct error *err)
{
	if (graph_finish(t->g, err) != OK)
		return FAIL;
	storage_assign(t->g, backend->precision); /* state gets its size */
	if (params_allocate(params, backend, options->train, err) != OK ||
	    (t->g->state && params_allocate(t->g->state, backend, false, err) != OK))
		return FAIL;
	return program_create(&t->p, t->g, backend, options, err);
}

enum status token_program_open(struct token_program *t, token_graph_builder build, void *context,
			       struct params *params, const struct backend *backend,
			       const struct program_options *options, struct error *err)
{
	*t = (struct token_program){ 0 };
	if (graph_create(&t->g, params, options->train, err) != OK)
		return FAIL;
	build(context, t->g, &t->io);
	if (make_runnable(t, params, backend, options, err) == OK)
		return OK;
	token_program_close(t);
	return FAIL;
}

void token_program_close(struct token_program *t)
{
	program_destroy(t->p);
	graph_destroy(t->g);
	*t = (struct token_program){ 0 };
}

void token_program_feed(struct token_program *t, const int32_t *tokens, const int32_t *targets)
{
	program_upload(t->p, t->io.tokens, tokens);
	if (targets)
		program_upload(t->p, t->io.targets, targets);
}

void token_program_weigh(struct token_program *t, double main, double z)
{
	const float narrow[2] = { (float)main, (float)z };
	const double wide[2] = { main, z };

	program_upload(t->p, t->io.weights,
		       t->g->type == F64 ? (const void *)wide : (const void *)narrow);
}
