#include "models/audit/reduced_engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/rng.h"

#define DEVIATION 0.2 /* of vectors, around the value that they start with */

static bool ends_with(const char *text, const char *end)
{
	const size_t n = strlen(text), k = strlen(end);

	return n >= k && strcmp(text + n - k, end) == 0;
}

/* The training graph; the keys that topk chose can be read. */
static void build(void *context, struct graph *g, struct token_io *io)
{
	const struct scored_rows *r = context;
	int layer = 0;
	char name[24];

	model_build(r->model, g, MODEL_TRAIN, r->rows, r->length, io);
	for (int i = 0; i < g->n_tensors; i++)
		if (ends_with(g->tensors[i]->name, ".route_index")) {
			snprintf(name, sizeof(name), "route.%d", layer++);
			graph_output(g, name, g->tensors[i]);
		}
}

enum status reduced_engine_open(struct reduced_engine *e, const struct model *m, enum dtype type,
				const struct backend *backend, struct error *err)
{
	struct scored_rows *r = &e->rows;
	struct program_options options = r->program;

	options.train = true;
	r->model = m;
	r->backend = backend;
	if (params_create(&r->params, type, err) != OK)
		return FAIL;
	return token_program_open(&e->training, build, r, r->params, backend, &options, err);
}

void reduced_engine_close(struct reduced_engine *e)
{
	for (int64_t i = 0; e->routes && i < e->rows.model->layers; i++)
		free(e->routes[i]);
	free(e->routes);
	for (int i = 0; i < SCORINGS; i++)
		free(e->nll[i]);
	free(e->logits);
	token_program_close(&e->training);
	params_destroy(e->rows.params);
	*e = (struct reduced_engine){ .n_losses = 0 };
}

void reduced_weights(const struct param *p, uint64_t seed, double *values)
{
	const struct rng_key key = rng_key(seed, p->name);
	const bool vector = p->role == PARAM_VECTOR;
	const int inputs = p->role == PARAM_EMBEDDING ? p->ndim - 1 : p->ndim - 2;
	const double deviation = vector ? DEVIATION : 1 / sqrt((double)p->dim[inputs]);

	for (int64_t i = 0; i < p->count; i++)
		values[i] = (float)((vector ? p->init.value : 0) +
				    deviation * rng_normal(key, (uint64_t)i));
}

/* ------------------------------------------------------------------ training */

static enum status add_loss(struct reduced_engine *e, const struct graph_output *o,
			    struct error *err)
{
	int i = 0;

	while (i < e->n_losses && strcmp(e->loss[i].name, o->plain_name) != 0)
		i++;
	if (i == REDUCED_LOSSES)
		return fail(err, "audit: a model has more than %d kinds of losses", REDUCED_LOSSES);
	if (i == e->n_losses)
		e->loss[e->n_losses++] = (struct reduced_loss){ o->plain_name, 0 };
	e->loss[i].value += o->loss_weight * program_scalar(e->training.p, o->tensor);
	return OK;
}

enum status reduced_engine_train(struct reduced_engine *e, struct error *err)
{
	const struct run run = { .seed = 1, .iteration = 1 };
	const struct row_weights w = scored_rows_weights(&e->rows);
	struct token_program *t = &e->training;

	token_program_feed(t, e->rows.tokens, e->rows.targets);
	token_program_weigh(t, w.target, w.token);
	if (program_run(t->p, &run, err) != OK)
		return FAIL;
	e->n_losses = 0;
	for (int i = 0; i < t->g->n_outputs; i++)
		if (t->g->outputs[i].is_loss && add_loss(e, &t->g->outputs[i], err) != OK)
			return FAIL;
	return OK;
}

/* ------------------------------------------------------------------- scoring */

static double *doubles(int64_t n, struct error *err)
{
	double *values = malloc((size_t)n * sizeof(*values));

	if (!values)
		fail_memory(err, "audit", (size_t)n * sizeof(*values));
	return values;
}

static enum status read_routes(struct reduced_engine *e, struct error *err)
{
	const int64_t layers = e->rows.model->layers;

	if (!graph_find_output(e->training.g, "route.0"))
		return OK;
	e->routes = calloc((size_t)layers, sizeof(*e->routes));
	for (int64_t i = 0; e->routes && i < layers; i++) {
		const struct graph_output *o;
		char name[24];

		snprintf(name, sizeof(name), "route.%lld", (long long)i);
		o = graph_find_output(e->training.g, name);
		if (!o) /* a layer without the mechanism: the oracle will find that */
			continue;
		e->k = tensor_dim(o->tensor, -1);
		e->routes[i] = malloc(tensor_bytes(o->tensor));
		if (!e->routes[i])
			return fail_memory(err, "audit", tensor_bytes(o->tensor));
		program_download(e->training.p, o->tensor, e->routes[i]);
	}
	return e->routes ? OK : fail_memory(err, "audit", (size_t)layers * sizeof(*e->routes));
}

enum status reduced_engine_score(struct reduced_engine *e, struct error *err)
{
	const struct scored_rows *r = &e->rows;
	const int64_t n = r->rows * r->length;

	if (!e->drops) {
		e->logits = doubles(n * r->model->vocab, err);
		if (!e->logits || scored_rows_logits(r, e->logits, err) != OK)
			return FAIL;
	}
	if (read_routes(e, err) != OK)
		return FAIL;
	for (enum scoring how = 0; how < SCORINGS; how++) {
		if (how != BY_TRAINING && (e->drops || (how == BY_DECODING && !r->decodes)))
			continue;
		e->nll[how] = doubles(n, err);
		if (!e->nll[how])
			return FAIL;
		if (how == BY_TRAINING)
			program_read(e->training.p, e->training.io.nll, e->nll[how]);
		else if (scored_rows_nll(r, how, e->nll[how], err) != OK)
			return FAIL;
	}
	return OK;
}

/* Is it a constant, though parameters decide it? */
static bool is_detached(const struct tensor *t)
{
	const struct node *n = tensor_root(t)->producer;

	if (t->needs_grad || t->type == I32 || !n)
		return false;
	for (int i = 0; i < n->n_in; i++)
		if (n->in[i] && n->in[i]->needs_grad)
			return true;
	return false;
}

bool reduced_engine_detaches(const struct reduced_engine *e)
{
	const struct graph *g = e->training.g;

	for (int i = 0; i < g->n_nodes; i++)
		for (int j = 0; j < g->nodes[i]->n_in; j++)
			if (g->nodes[i]->in[j] && is_detached(g->nodes[i]->in[j]))
				return true;
	return false;
}
