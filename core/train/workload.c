#include "core/train/workload.h"

enum status workload_program_open(struct workload_program *s, const struct workload *workload,
				  struct params *params, int64_t rows,
				  const struct backend *backend,
				  const struct program_options *options, struct error *err)
{
	*s = (struct workload_program){ 0 };
	if (graph_create(&s->g, params, options->train, err) != OK)
		return FAIL;
	workload->build(workload->context, s->g, rows, &s->io);
	if (graph_finish(s->g, err) != OK ||
	    params_allocate(params, backend, options->train, err) != OK)
		return FAIL;
	return program_create(&s->p, s->g, backend, options, err);
}

void workload_program_close(struct workload_program *s)
{
	program_destroy(s->p);
	graph_destroy(s->g);
	*s = (struct workload_program){ 0 };
}

void workload_program_weights(struct workload_program *s, double main, double z)
{
	const float narrow[2] = { (float)main, (float)z };
	const double wide[2] = { main, z };

	program_upload(s->p, s->io.weights,
		       s->g->type == F64 ? (const void *)wide : (const void *)narrow);
}
