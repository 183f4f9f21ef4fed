#include "core/train/subject.h"

enum status stage_open(struct stage *s, const struct subject *subject, struct params *params,
		       int64_t rows, const struct backend *backend,
		       const struct program_options *options, struct error *err)
{
	*s = (struct stage){ 0 };
	if (graph_create(&s->g, params, options->train, err) != OK)
		return FAIL;
	subject->build(subject->context, s->g, rows, &s->io);
	if (graph_finish(s->g, err) != OK ||
	    params_allocate(params, backend, options->train, err) != OK)
		return FAIL;
	return program_create(&s->p, s->g, backend, options, err);
}

void stage_close(struct stage *s)
{
	program_destroy(s->p);
	graph_destroy(s->g);
	*s = (struct stage){ 0 };
}

void stage_weights(struct stage *s, double main, double z)
{
	const float narrow[2] = { (float)main, (float)z };
	const double wide[2] = { main, z };

	program_upload(s->p, s->io.weights,
		       s->g->type == F64 ? (const void *)wide : (const void *)narrow);
}
