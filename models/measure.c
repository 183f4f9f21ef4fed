#include "models/measure.h"

#include <stdlib.h>
#include <string.h>

#include "core/util/metric_names.h"
#include "models/gpt2_names.h"
#include "models/model_program.h"

struct measurer {
	struct params *params;
	struct token_program probe;
	struct run *runs; /* by replica; all zero */
	bool routing;
	double *buffer; /* holds the largest output or parameter that is read */
};

struct sink {
	void (*value)(void *context, const char *name, double value);
	void *context;
};

/* Learned mixing weights are scalars; only their names distinguish them from other scalars. */
static bool is_alpha(const struct param *p)
{
	return p->count == 1 && strstr(p->name, "alpha") != NULL;
}

static bool is_dense_z(const struct param *p)
{
	return p->ndim == 2 && p->init.kind == INIT_UNIFORM_BLOCKS;
}

static int64_t largest(const struct measurer *s)
{
	int64_t most = 1;

	for (int i = 0; i < s->probe.g->n_outputs; i++)
		if (tensor_count(s->probe.g->outputs[i].tensor) > most)
			most = tensor_count(s->probe.g->outputs[i].tensor);
	for (int i = 0; i < s->params->n; i++)
		if (is_dense_z(&s->params->list[i]) && s->params->list[i].count > most)
			most = s->params->list[i].count;
	return most;
}

enum status measurer_create(struct measurer **out, const struct model *m, struct params *params,
			    const struct backend *backend, int64_t rows, const int32_t *tokens,
			    struct error *err)
{
	const struct model_use use = { .purpose = MODEL_PROBE, .rows = rows, .length = m->length };
	struct measurer *s = calloc(1, sizeof(*s));

	if (!s)
		return fail_memory(err, "measurements", sizeof(*s));
	s->params = params;
	for (int i = 0; i < m->n_mechanisms; i++)
		s->routing = s->routing || m->mechanism[i]->attend;
	if (model_program_open(&s->probe, m, &use, params, backend, err) != OK)
		goto destroy;
	s->buffer = malloc((size_t)largest(s) * sizeof(*s->buffer));
	s->runs = calloc((size_t)backend_replicas(backend), sizeof(*s->runs));
	if (!s->buffer || !s->runs) {
		fail_memory(err, "measurements", (size_t)largest(s) * sizeof(*s->buffer));
		goto destroy;
	}
	token_program_feed(&s->probe, tokens, NULL);
	*out = s;
	return OK;
destroy:
	measurer_destroy(s);
	return FAIL;
}

void measurer_destroy(struct measurer *s)
{
	if (!s)
		return;
	token_program_close(&s->probe);
	free(s->buffer);
	free(s->runs);
	free(s);
}

/* A value of layer 3 is called "prefix/h.3". */
static void tell(const struct sink *sink, const char *prefix, struct origin origin, double value)
{
	char name[80];

	snprintf(name, sizeof(name), "%s/" LAYER_PREFIX "%d", prefix, origin.layer);
	sink->value(sink->context, name, value);
}

static double mean(const double *values, int64_t n)
{
	double sum = 0;

	for (int64_t i = 0; i < n; i++)
		sum += values[i];
	return sum / (double)n;
}

static void tell_output(const struct measurer *s, const struct graph_output *o,
			const struct sink *sink)
{
	const char *what = o->plain_name;
	const double *v = s->buffer;

	program_read(s->probe.p, o->tensor, s->buffer);
	if (strcmp(what, "probe") == 0) {
		tell(sink, METRIC_ATTENTION_ENTROPY, o->origin, v[PROBE_ENTROPY]);
		tell(sink, METRIC_ATTENTION_RECIPROCITY, o->origin, v[PROBE_RECIPROCITY]);
		if (s->routing) {
			tell(sink, METRIC_ROUTING_KEPT, o->origin, v[PROBE_KEPT]);
			tell(sink, METRIC_ROUTING_MASS, o->origin, v[PROBE_MASS]);
		}
	} else if (strcmp(what, "gate") == 0) {
		tell(sink, METRIC_GATE_MEAN, o->origin, mean(v, tensor_count(o->tensor)));
	} else if (strcmp(what, "head_similarity") == 0) {
		tell(sink, METRIC_WS_SIMILARITY, o->origin, v[0]);
	}
}

double share_outside_blocks(const double *w, int64_t n, int64_t blocks)
{
	double all = 0, outside = 0;

	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < n; j++) {
			double square = w[i * n + j] * w[i * n + j];

			all += square;
			if (i * blocks / n != j * blocks / n)
				outside += square;
		}
	return all > 0 ? outside / all : 0;
}

static enum status tell_param(const struct measurer *s, int index, const struct sink *sink,
			      struct error *err)
{
	const struct param *p = &s->params->list[index];
	char name[160];

	if (!is_alpha(p) && !is_dense_z(p))
		return OK;
	if (param_get(s->params, index, false, s->buffer, err) != OK)
		return FAIL;
	if (is_alpha(p)) {
		snprintf(name, sizeof(name), METRIC_ALPHA "/%s", p->name);
		sink->value(sink->context, name, s->buffer[0]);
	} else {
		tell(sink, METRIC_WS_OUTSIDE, p->origin,
		     share_outside_blocks(s->buffer, p->dim[0], p->init.blocks));
	}
	return OK;
}

enum status measurer_run(struct measurer *s, struct error *err)
{
	return program_run(s->probe.p, s->runs, err);
}

enum status measure(struct measurer *s,
		    void (*value)(void *context, const char *name, double value), void *context,
		    struct error *err)
{
	const struct sink sink = { value, context };

	for (int i = 0; i < s->probe.g->n_outputs; i++)
		tell_output(s, &s->probe.g->outputs[i], &sink);
	for (int i = 0; i < s->params->n; i++)
		if (tell_param(s, i, &sink, err) != OK)
			return FAIL;
	return OK;
}
