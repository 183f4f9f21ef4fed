#include "models/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/metric_names.h"
#include "core/util/rng.h"
#include "models/gpt2_names.h"
#include "models/model_program.h"

struct measurer {
	struct params *params;
	struct token_program probe;
	struct run *runs; /* by replica; all zero */
	bool routing;
	double *buffer; /* holds the largest output or parameter that is read */
	/* Of the sample's tokens: classes, the same shuffled, and the most active heads. */
	int32_t *classes, *shuffled, *heads;
	int64_t count, n_classes;
	double *table; /* counts of heads and classes */
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

static bool is_activity(const struct graph_output *o)
{
	return strcmp(o->plain_name, "head_activity") == 0;
}

static void shuffle(int32_t *values, int64_t n)
{
	struct rng_reader random = { .key = rng_key(1, "measure/shuffled") };

	for (int64_t i = n - 1; i > 0; i--) {
		const int64_t j = (int64_t)rng_next_below(&random, (uint64_t)i + 1);
		const int32_t kept = values[i];

		values[i] = values[j];
		values[j] = kept;
	}
}

static enum status keep_classes(struct measurer *s, const struct measure_sample *sample,
				int64_t count, struct error *err)
{
	const size_t bytes = (size_t)count * sizeof(*s->classes);
	int64_t most = 0;

	for (int i = 0; i < s->probe.g->n_outputs; i++)
		if (is_activity(&s->probe.g->outputs[i]))
			most = tensor_dim(s->probe.g->outputs[i].tensor, -1);
	if (!sample->classes || !most)
		return OK;
	s->classes = malloc(bytes);
	s->shuffled = malloc(bytes);
	s->heads = malloc(bytes);
	s->table = malloc((size_t)(most * sample->n_classes) * sizeof(*s->table));
	if (!s->classes || !s->shuffled || !s->heads || !s->table)
		return fail_memory(err, "measurements", 3 * bytes);
	s->count = count;
	s->n_classes = sample->n_classes;
	memcpy(s->classes, sample->classes, bytes);
	memcpy(s->shuffled, sample->classes, bytes);
	shuffle(s->shuffled, count);
	return OK;
}

enum status measurer_create(struct measurer **out, const struct model *m, struct params *params,
			    const struct backend *backend, const struct measure_sample *sample,
			    struct error *err)
{
	const struct model_use use = { .purpose = MODEL_PROBE,
				       .rows = sample->rows,
				       .length = m->length };
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
	if (keep_classes(s, sample, sample->rows * m->length, err) != OK)
		goto destroy;
	token_program_feed(&s->probe, sample->tokens, NULL);
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
	free(s->classes);
	free(s->shuffled);
	free(s->heads);
	free(s->table);
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

double mutual_information(const int32_t *a, int64_t as, const int32_t *b, int64_t bs, int64_t count,
			  double *table)
{
	double sum = 0;

	memset(table, 0, (size_t)(as * bs) * sizeof(*table));
	for (int64_t i = 0; i < count; i++)
		table[a[i] * bs + b[i]] += 1 / (double)count;
	for (int64_t i = 0; i < as; i++)
		for (int64_t j = 0; j < bs; j++) {
			const double both = table[i * bs + j];
			double p = 0, q = 0;

			if (both <= 0)
				continue;
			for (int64_t k = 0; k < bs; k++)
				p += table[i * bs + k];
			for (int64_t k = 0; k < as; k++)
				q += table[k * bs + j];
			sum += both * log(both / (p * q));
		}
	return sum;
}

/* The head whose activity exceeds its mean by the largest factor, of each token. */
static void find_heads(const struct measurer *s, int64_t n)
{
	const double *v = s->buffer;
	double *means = s->table;

	for (int64_t h = 0; h < n; h++) {
		means[h] = 0;
		for (int64_t i = 0; i < s->count; i++)
			means[h] += v[i * n + h] / (double)s->count;
	}
	for (int64_t i = 0; i < s->count; i++) {
		s->heads[i] = 0;
		for (int64_t h = 1; h < n; h++)
			if (v[i * n + h] * means[s->heads[i]] > v[i * n + s->heads[i]] * means[h])
				s->heads[i] = (int32_t)h;
	}
}

static void tell_information(const struct measurer *s, const struct graph_output *o,
			     const struct sink *sink)
{
	const int64_t n = tensor_dim(o->tensor, -1);

	if (!s->classes)
		return;
	find_heads(s, n);
	tell(sink, METRIC_HEADS_INFORMATION, o->origin,
	     mutual_information(s->heads, n, s->classes, s->n_classes, s->count, s->table));
	tell(sink, METRIC_HEADS_SHUFFLED, o->origin,
	     mutual_information(s->heads, n, s->shuffled, s->n_classes, s->count, s->table));
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
			tell(sink, METRIC_ROUTING_SPREAD, o->origin, v[PROBE_SPREAD]);
		}
	} else if (strcmp(what, "gate") == 0) {
		tell(sink, METRIC_GATE_MEAN, o->origin, mean(v, tensor_count(o->tensor)));
	} else if (strcmp(what, "head_similarity") == 0) {
		tell(sink, METRIC_WS_SIMILARITY, o->origin, v[0]);
	} else if (is_activity(o)) {
		tell_information(s, o, sink);
	}
}

/* How much the layers differ in the mean number of entries that they keep. */
static void tell_layers(const struct measurer *s, const struct sink *sink)
{
	double n = 0, mean_kept = 0, squares = 0;

	for (int i = 0; i < s->probe.g->n_outputs; i++) {
		const struct graph_output *o = &s->probe.g->outputs[i];
		double difference;

		if (strcmp(o->plain_name, "probe") != 0)
			continue;
		program_read(s->probe.p, o->tensor, s->buffer);
		difference = s->buffer[PROBE_KEPT] - mean_kept;
		mean_kept += difference / ++n;
		squares += difference * (s->buffer[PROBE_KEPT] - mean_kept);
	}
	if (s->routing && n > 1)
		sink->value(sink->context, METRIC_ROUTING_LAYERS, sqrt(squares / n));
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
	tell_layers(s, &sink);
	for (int i = 0; i < s->params->n; i++)
		if (tell_param(s, i, &sink, err) != OK)
			return FAIL;
	return OK;
}
