#include "models/audit.h"

#include <stdlib.h>
#include <string.h>

#include "core/program.h"
#include "core/rng.h"

#define LENGTH 128 /* positions of the causality audit */
#define ROWS 8

struct auditor {
	struct config *config;
	int64_t vocab;
	const struct backend *backend;
	const struct audit_options *options;
	struct audit_report *report;
	struct model *model;
	struct params *params;
};

/* ------------------------------------------------------------------- report */

static enum status add(struct audit_report *r, const char *audit, const char *subject, bool passed,
		       const char *detail, struct error *err)
{
	struct audit_finding *list = r->list;

	if (r->n == r->capacity) {
		list = realloc(list, (size_t)(2 * r->capacity + 32) * sizeof(*list));
		if (!list)
			return fail_memory(err, "audit", (size_t)r->capacity * sizeof(*list));
		r->list = list;
		r->capacity = 2 * r->capacity + 32;
	}
	list[r->n] = (struct audit_finding){ .audit = audit, .passed = passed };
	snprintf(list[r->n].subject, sizeof(list[r->n].subject), "%s", subject);
	snprintf(list[r->n].detail, sizeof(list[r->n].detail), "%s", detail);
	r->n++;
	return OK;
}

bool audit_passed(const struct audit_report *r)
{
	for (int i = 0; i < r->n; i++)
		if (!r->list[i].passed &&
		    !(r->declared_leak && strcmp(r->list[i].audit, "causality") == 0))
			return false;
	return true;
}

void audit_print(const struct audit_report *r, FILE *file)
{
	for (int i = 0; i < r->n; i++)
		if (!r->list[i].passed || r->list[i].detail[0])
			fprintf(file, "%-9s %-6s %s%s%s\n", r->list[i].audit,
				r->list[i].passed ? "ok" : "FAILED", r->list[i].subject,
				r->list[i].detail[0] ? ": " : "", r->list[i].detail);
	fprintf(file, "%d audits, %s%s\n", r->n, audit_passed(r) ? "passed" : "FAILED",
		r->declared_leak ? "; this arm is declared to see the future" : "");
}

void audit_free(struct audit_report *r)
{
	free(r->list);
	*r = (struct audit_report){ 0 };
}

struct audit_options audit_defaults(const struct model *m, uint64_t seed)
{
	return (struct audit_options){
		.rows = ROWS,
		.length = m->length < LENGTH ? m->length : LENGTH,
		.batches = 3,
		.seed = seed,
	};
}

/* ------------------------------------------------------------------ running */

/* One model made runnable. */
struct trial {
	struct graph *g;
	struct model_io io;
	struct program *p;
};

static void close_trial(struct trial *t)
{
	program_destroy(t->p);
	graph_destroy(t->g);
	*t = (struct trial){ 0 };
}

static enum status open_trial(const struct auditor *a, const struct model *m,
			      struct params *params, enum model_purpose purpose, struct trial *t,
			      struct error *err)
{
	const struct program_options options = { .train = purpose == MODEL_TRAIN };

	*t = (struct trial){ 0 };
	if (graph_create(&t->g, params, purpose == MODEL_TRAIN, err) != OK)
		return FAIL;
	model_build(m, t->g, purpose, a->options->rows, a->options->length, &t->io);
	if (graph_finish(t->g, err) != OK || params_allocate(params, a->backend, true, err) != OK)
		return FAIL;
	return program_create(&t->p, t->g, a->backend, &options, err);
}

static int64_t batch_tokens(const struct auditor *a)
{
	return a->options->rows * a->options->length;
}

/* Random tokens; batch `number` is the same whenever it is asked for. */
static void draw_tokens(const struct auditor *a, uint64_t number, int32_t *tokens)
{
	const struct rng_key key =
		rng_subkey(rng_key(a->options->seed, "audit/tokens"), number);

	for (int64_t i = 0; i < batch_tokens(a); i++)
		tokens[i] = (int32_t)rng_below(key, (uint64_t)i, (uint64_t)a->vocab);
}

static enum status run_training(const struct auditor *a, struct trial *t, int batch,
				struct error *err)
{
	const int64_t n = batch_tokens(a);
	const struct run run = { .seed = a->options->seed, .iteration = 1 + (uint64_t)batch };
	const float narrow[2] = { 1 / (float)n, 1 / (float)n };
	const double wide[2] = { 1 / (double)n, 1 / (double)n };
	int32_t *tokens = malloc((size_t)(n + 1) * sizeof(*tokens));

	if (!tokens)
		return fail_memory(err, "audit", (size_t)n * sizeof(*tokens));
	draw_tokens(a, (uint64_t)batch, tokens);
	tokens[n] = 0;
	program_upload(t->p, t->io.tokens, tokens);
	program_upload(t->p, t->io.targets, tokens + 1);
	program_upload(t->p, t->io.weights,
		       t->g->type == F64 ? (const void *)wide : (const void *)narrow);
	free(tokens);
	return program_run(t->p, &run, err);
}

/* Logits of these tokens, as bytes; `logits` has room for them. */
static enum status run_logits(struct trial *t, const int32_t *tokens, void *logits,
			      struct error *err)
{
	const struct run run = { .seed = 1, .iteration = 1 };

	program_upload(t->p, t->io.tokens, tokens);
	if (program_run(t->p, &run, err) != OK)
		return FAIL;
	program_download(t->p, graph_find_output(t->g, "logits")->tensor, logits);
	return OK;
}

/* ------------------------------------------------------------------- wiring */

static bool gradient_is_zero(const struct params *params, int index, double *buffer,
			     struct error *err, enum status *status)
{
	*status = param_get(params, index, true, buffer, err);
	for (int64_t i = 0; *status == OK && i < params->list[index].count; i++)
		if (buffer[i] != 0)
			return false;
	return true;
}

static int64_t largest_param(const struct params *params)
{
	int64_t most = 1;

	for (int i = 0; i < params->n; i++)
		most = params->list[i].count > most ? params->list[i].count : most;
	return most;
}

/* reached[i] becomes true where parameter i has a gradient in some batch. */
static enum status find_reached(const struct auditor *a, struct trial *t, bool *reached,
				struct error *err)
{
	double *buffer = malloc((size_t)largest_param(a->params) * sizeof(*buffer));
	enum status status = buffer ? OK : fail_memory(err, "audit", 0);

	for (int batch = 0; batch < a->options->batches && status == OK; batch++) {
		status = run_training(a, t, batch, err);
		for (int i = 0; i < a->params->n && status == OK; i++)
			if (!reached[i])
				reached[i] = !gradient_is_zero(a->params, i, buffer, err, &status);
	}
	free(buffer);
	return status;
}

/* Leave only the cross-entropy as loss. */
static void silence_auxiliary(struct trial *t)
{
	for (int i = 0; i < t->g->n_outputs; i++)
		if (t->g->outputs[i].is_loss && strcmp(t->g->outputs[i].name, "main") != 0)
			program_loss_weight(t->p, t->g->outputs[i].name, 0);
}

static enum status audit_wiring(struct auditor *a, struct trial *t, struct error *err)
{
	const size_t n = (size_t)a->params->n;
	bool *by_any = calloc(n, sizeof(bool)), *by_main = calloc(n, sizeof(bool));
	enum status status = FAIL;

	if (!by_any || !by_main) {
		fail_memory(err, "audit", n);
		goto free_lists;
	}
	if (find_reached(a, t, by_any, err) != OK)
		goto free_lists;
	silence_auxiliary(t);
	if (find_reached(a, t, by_main, err) != OK)
		goto free_lists;
	status = OK;
	for (int i = 0; i < a->params->n && status == OK; i++) {
		const char *detail = by_main[i] ? ""
				     : by_any[i] ? "reached only by an auxiliary loss"
						 : "receives no gradient";

		status = add(a->report, "wiring", a->params->list[i].name, by_any[i], detail, err);
	}
free_lists:
	free(by_any);
	free(by_main);
	return status;
}

/* --------------------------------------------------------------- mechanisms */

struct switch_visit {
	struct auditor *a;
	struct error *err;
	enum status status;
};

/* Weights of `to` that `from` has, too; the others stay as they were drawn. */
static enum status copy_shared(const struct params *from, struct params *to, struct error *err)
{
	for (int i = 0; i < to->n; i++) {
		int j = params_find(from, to->list[i].name);

		if (j < 0)
			continue;
		if (from->list[j].count != to->list[i].count)
			return fail(err, "'%s' has another size with the mechanism off",
				    to->list[i].name);
		to->backend->upload(param_data(to, i), param_data(from, j),
				    (size_t)to->list[i].count * dtype_size(to->type));
	}
	return OK;
}

/* Did any gradient that both have, or any logit, change? */
static enum status outputs_differ(const struct auditor *a, struct trial *on, struct trial *off,
				  bool *differ, struct error *err)
{
	const struct tensor *logits = graph_find_output(on->g, "logits")->tensor;
	const size_t bytes = tensor_bytes(logits);
	int32_t *tokens = malloc((size_t)batch_tokens(a) * sizeof(*tokens));
	char *x = malloc(bytes), *y = malloc(bytes);
	enum status status = FAIL;

	if (!tokens || !x || !y) {
		fail_memory(err, "audit", bytes);
		goto free_buffers;
	}
	draw_tokens(a, 0, tokens);
	status = run_logits(on, tokens, x, err);
	if (status == OK)
		status = run_logits(off, tokens, y, err);
	*differ = memcmp(x, y, bytes) != 0;
free_buffers:
	free(tokens);
	free(x);
	free(y);
	return status;
}

static enum status gradients_differ(const struct auditor *a, struct trial *on, struct trial *off,
				    const struct params *other, bool *differ, struct error *err)
{
	const size_t size = dtype_size(a->params->type);

	if (run_training(a, on, 0, err) != OK || run_training(a, off, 0, err) != OK)
		return FAIL;
	*differ = false;
	for (int i = 0; i < other->n && !*differ; i++) {
		int j = params_find(a->params, other->list[i].name);
		const size_t bytes = (size_t)other->list[i].count * size;
		char *x, *y;

		if (j < 0)
			continue;
		x = malloc(bytes);
		y = malloc(bytes);
		if (!x || !y) {
			free(x);
			free(y);
			return fail_memory(err, "audit", bytes);
		}
		a->backend->download(x, param_grad(a->params, j), bytes);
		a->backend->download(y, param_grad(other, i), bytes);
		*differ = memcmp(x, y, bytes) != 0;
		free(x);
		free(y);
	}
	return OK;
}

/* The same weights, one switch off: does anything change? */
static enum status compare_without(struct auditor *a, const struct model_switch *s,
				   const struct model *without, bool *differ, struct error *err)
{
	const enum model_purpose purpose = s->through_loss ? MODEL_TRAIN : MODEL_LOGITS;
	struct trial on = { 0 }, off = { 0 };
	struct params *params = NULL;
	enum status status = FAIL;

	if (params_create(&params, a->params->type, err) != OK ||
	    open_trial(a, without, params, purpose, &off, err) != OK ||
	    params_initialise(params, a->options->seed, err) != OK ||
	    copy_shared(a->params, params, err) != OK ||
	    open_trial(a, a->model, a->params, purpose, &on, err) != OK)
		goto close;
	status = s->through_loss ? gradients_differ(a, &on, &off, params, differ, err)
				 : outputs_differ(a, &on, &off, differ, err);
close:
	close_trial(&on);
	close_trial(&off);
	params_destroy(params);
	return status;
}

static enum status audit_switch(struct auditor *a, const struct model_switch *s, struct error *err)
{
	const char *raw = config_raw(a->config, s->symbol);
	char saved[64], subject[128];
	struct model *without;
	enum status status;
	bool differ = false;

	snprintf(saved, sizeof(saved), "%s", raw ? raw : "");
	if (config_set(a->config, s->symbol, s->off, err) != OK)
		return FAIL;
	status = model_read(&without, a->config, a->vocab, err);
	if (config_set(a->config, s->symbol, saved, err) != OK)
		status = FAIL;
	if (status != OK)
		return fail_prefix(err, "audit with CONFIG_%s=%s", s->symbol, s->off);
	status = compare_without(a, s, without, &differ, err);
	model_free(without);
	if (status != OK)
		return FAIL;
	snprintf(subject, sizeof(subject), "CONFIG_%s", s->symbol);
	return add(a->report, "mechanism", subject, differ,
		   differ ? "" : s->through_loss ? "switching it off changes no gradient"
						 : "switching it off changes no logit", err);
}

static void visit_switch(void *context, const struct model_switch *s)
{
	struct switch_visit *v = context;

	if (v->status == OK)
		v->status = audit_switch(v->a, s, v->err);
}

static enum status audit_mechanisms(struct auditor *a, struct error *err)
{
	struct switch_visit visit = { .a = a, .err = err, .status = OK };

	model_switches(a->model, visit_switch, &visit);
	return visit.status;
}

/* ---------------------------------------------------------------- causality */

struct logits {
	int32_t *tokens, *changed;
	char *base, *now;
	size_t bytes, per_token;
};

static bool alloc_logits(const struct auditor *a, const struct trial *t, struct logits *l)
{
	const size_t n = (size_t)batch_tokens(a);

	l->bytes = tensor_bytes(graph_find_output(t->g, "logits")->tensor);
	l->per_token = l->bytes / n;
	l->tokens = malloc(n * sizeof(*l->tokens));
	l->changed = malloc(n * sizeof(*l->changed));
	l->base = malloc(l->bytes);
	l->now = malloc(l->bytes);
	return l->tokens && l->changed && l->base && l->now;
}

static void free_logits(struct logits *l)
{
	free(l->tokens);
	free(l->changed);
	free(l->base);
	free(l->now);
}

/* Position first + b is changed in row b; a leak is the first earlier position that notices. */
static enum status audit_positions(struct auditor *a, struct trial *t, struct logits *l,
				   int64_t first, int64_t *leak_from, int64_t *leak_to,
				   struct error *err)
{
	const int64_t T = a->options->length;
	const struct rng_key key = rng_key(a->options->seed, "audit/changes");

	memcpy(l->changed, l->tokens, (size_t)batch_tokens(a) * sizeof(*l->tokens));
	for (int64_t row = 0; row < a->options->rows && first + row < T; row++) {
		int32_t *token = &l->changed[row * T + first + row];

		*token = (int32_t)((*token + 1 +
				    (int64_t)rng_below(key, (uint64_t)(first + row),
						       (uint64_t)a->vocab - 1)) % a->vocab);
	}
	if (run_logits(t, l->changed, l->now, err) != OK)
		return FAIL;
	for (int64_t row = 0; row < a->options->rows && first + row < T; row++)
		for (int64_t i = 0; i < first + row && *leak_from < 0; i++) {
			size_t at = (size_t)(row * T + i) * l->per_token;

			if (memcmp(l->base + at, l->now + at, l->per_token) != 0) {
				*leak_from = first + row;
				*leak_to = i;
			}
		}
	return OK;
}

static enum status audit_causality(struct auditor *a, struct trial *t, struct logits *l,
				   struct error *err)
{
	int64_t leak_from = -1, leak_to = -1;
	char subject[128], detail[160] = "";

	for (int64_t first = 1; first < a->options->length && leak_from < 0;
	     first += a->options->rows)
		if (audit_positions(a, t, l, first, &leak_from, &leak_to, err) != OK)
			return FAIL;
	snprintf(subject, sizeof(subject), "%lld positions", (long long)a->options->length);
	if (leak_from >= 0)
		snprintf(detail, sizeof(detail), "the token at %lld changes the logits at %lld",
			 (long long)leak_from, (long long)leak_to);
	return add(a->report, "causality", subject, leak_from < 0, detail, err);
}

/* The first batch again, after another one. */
static enum status audit_state(struct auditor *a, struct trial *t, struct logits *l,
			       struct error *err)
{
	bool same;

	draw_tokens(a, 1, l->changed);
	if (run_logits(t, l->changed, l->now, err) != OK ||
	    run_logits(t, l->tokens, l->now, err) != OK)
		return FAIL;
	same = memcmp(l->base, l->now, l->bytes) == 0;
	return add(a->report, "state", "batches in another order", same,
		   same ? "" : "the logits of a batch depend on the batch before it", err);
}

static enum status audit_logits(struct auditor *a, struct error *err)
{
	struct logits l = { 0 };
	enum status status = FAIL;
	struct trial t;

	if (open_trial(a, a->model, a->params, MODEL_LOGITS, &t, err) != OK)
		goto close;
	if (!alloc_logits(a, &t, &l)) {
		fail_memory(err, "audit", l.bytes);
		goto close;
	}
	draw_tokens(a, 0, l.tokens);
	if (run_logits(&t, l.tokens, l.base, err) == OK && audit_state(a, &t, &l, err) == OK &&
	    audit_causality(a, &t, &l, err) == OK)
		status = OK;
close:
	free_logits(&l);
	close_trial(&t);
	return status;
}

/* ---------------------------------------------------------------------- all */

enum status audit_model(struct config *c, int64_t vocab, const struct backend *backend,
			const struct audit_options *options, struct audit_report *report,
			struct error *err)
{
	struct auditor a = {
		.config = c,
		.backend = backend,
		.options = options,
		.report = report,
	};
	enum status status = FAIL;
	struct trial t = { 0 };

	*report = (struct audit_report){ 0 };
	if (model_read(&a.model, c, vocab, err) != OK || params_create(&a.params, F32, err) != OK)
		goto close;
	a.vocab = a.model->vocab;
	report->declared_leak = model_leak(a.model) != NULL;
	if (open_trial(&a, a.model, a.params, MODEL_TRAIN, &t, err) != OK ||
	    params_initialise(a.params, options->seed, err) != OK)
		goto close;
	if (audit_wiring(&a, &t, err) == OK && audit_mechanisms(&a, err) == OK &&
	    audit_logits(&a, err) == OK)
		status = OK;
close:
	close_trial(&t);
	params_destroy(a.params);
	model_free(a.model);
	return status;
}
