#include "models/audit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/optim/optim.h"
#include "core/util/rng.h"
#include "models/model_program.h"

/*
 * An effect below this share of what it joins is none, and so is a gradient below this share of
 * the mean one.  With strengthened weights, rounding changes about 1e-7 of the logits; the
 * mechanisms and gates of models/vectors change at least 4e-3, and their gradients are at least
 * 5e-4 of the mean.  The weight of an auxiliary loss may be small: those of defconfigs/wsffn change
 * from 8e-6 of the gradients on.
 */
#define EFFECT 1e-5
#define LOSS_EFFECT 1e-8
#define GRADIENT 1e-6

/* The batch whose logits are compared, and the training batch. */
#define ROWS 4
#define TRAINING_ROWS 2 /* a loss that compares examples needs two */
#define TRAINING_LENGTH 64

struct auditor {
	struct config *config;
	const struct model_task *task;
	const struct backend *backend;
	const struct audit_options *options;
	struct audit_report *report;
	struct model *model;
	struct params *params;
	struct token_program training, logits;
	bool *by_any, *by_main;	   /* parameters with a gradient: of some loss, of the main one */
	int32_t *tokens, *changed; /* batch 0, and the same with some tokens changed */
	size_t bytes;		   /* of the logits */
	char *base, *now;	   /* logits of batch 0, and of the last run */
};

/* ------------------------------------------------------------------- report */

enum status audit_add(struct audit_report *r, const char *audit, const char *subject, bool passed,
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

static enum status add(const struct auditor *a, const char *audit, const char *subject, bool passed,
		       const char *detail, struct error *err)
{
	return audit_add(a->report, audit, subject, passed, detail, err);
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
	fprintf(file, "%d audits, %s%s%s\n", r->n, audit_passed(r) ? "passed" : "FAILED",
		r->partial ? "; others are switched off" : "",
		r->declared_leak ? "; this arm is declared to see the future" : "");
}

void audit_free(struct audit_report *r)
{
	free(r->list);
	*r = (struct audit_report){ 0 };
}

/* ------------------------------------------------------------------ options */

/*
 * Every position is audited where that takes at most about WORK multiplications and additions: a
 * few seconds of one core.  A larger model is audited at fewer positions, spread from the first to
 * the last.
 */
#define WORK 1e11
#define LEAST_POSITIONS 8
#define MOST_LOGITS (1 << 26) /* a batch with more of them has two rows: no more is needed */

static int64_t affordable_positions(const struct model *m)
{
	const double layer = 4 * (double)m->embd * (6 * (double)m->embd + (double)m->length);
	const double head = 2 * (double)m->embd * (double)m->vocab;
	const double pass = ((double)m->layers * layer + head) * (double)m->length;
	const int64_t all = m->length - 1;
	const int64_t some = WORK / pass < (double)all ? (int64_t)(WORK / pass) : all;

	return some > LEAST_POSITIONS ? some : all < LEAST_POSITIONS ? all : LEAST_POSITIONS;
}

struct audit_options audit_configured(struct config *c, const struct model *m, enum dtype type,
				      uint64_t seed)
{
	const bool large = ROWS * m->length * m->vocab > MOST_LOGITS;

	return (struct audit_options){
		.wiring = config_bool(c, "AUDIT_WIRING"),
		.causality = config_bool(c, "AUDIT_CAUSALITY"),
		.one_batch = config_bool(c, "AUDIT_ONE_BATCH"),
		.data = config_bool(c, "AUDIT_DATA"),
		.training = config_bool(c, "AUDIT_TRAINING"),
		.pairing = config_bool(c, "AUDIT_PAIRING"),
		.declared_leak = config_bool(c, "AUDIT_LEAK_DECLARED"),
		.type = type,
		.rows = large ? 2 : ROWS,
		.length = m->length,
		.positions = affordable_positions(m),
		.seed = seed,
	};
}

/* ------------------------------------------------------------------ running */

static int64_t training_length(const struct auditor *a)
{
	return a->options->length < TRAINING_LENGTH ? a->options->length : TRAINING_LENGTH;
}

/* For the training batch.  Effects are measured on as few tokens: there are many of them. */
static enum status open_small(const struct auditor *a, const struct model *m,
			      enum model_purpose purpose, struct token_program *t,
			      struct error *err)
{
	const struct model_use use = {
		.purpose = purpose,
		.rows = TRAINING_ROWS,
		.length = training_length(a),
	};

	return model_program_open(t, m, &use, a->params, a->backend, err);
}

/* All programs share the auditor's parameters; the first one names them all. */
static enum status open_program(const struct auditor *a, const struct model *m,
				enum model_purpose purpose, struct token_program *t,
				struct error *err)
{
	const struct model_use use = {
		.purpose = purpose,
		.rows = a->options->rows,
		.length = a->options->length,
	};

	if (purpose == MODEL_TRAIN)
		return open_small(a, m, purpose, t, err);
	return model_program_open(t, m, &use, a->params, a->backend, err);
}

/* Random tokens; batch `number` is the same whenever it is asked for. */
static void draw_tokens(const struct auditor *a, uint64_t number, int32_t *tokens, int64_t count)
{
	const struct rng_key key = rng_subkey(rng_key(a->options->seed, "audit/tokens"), number);

	for (int64_t i = 0; i < count; i++)
		tokens[i] = (int32_t)rng_below(key, (uint64_t)i, (uint64_t)a->model->vocab);
}

/* Losses and gradients of a batch; the seed is that of dropout. */
static enum status run_training_with(const struct auditor *a, struct token_program *t, int batch,
				     uint64_t seed, struct error *err)
{
	const int64_t n = TRAINING_ROWS * training_length(a);
	const struct run run = { .seed = seed, .iteration = 1 + (uint64_t)batch };
	int32_t *tokens = malloc((size_t)(n + 1) * sizeof(*tokens));

	if (!tokens)
		return fail_memory(err, "audit", (size_t)(n + 1) * sizeof(*tokens));
	draw_tokens(a, (uint64_t)batch, tokens, n + 1);
	token_program_feed(t, tokens, tokens + 1);
	token_program_weigh(t, 1 / (double)n, 1 / (double)n);
	free(tokens);
	return program_run(t->p, &run, err);
}

static enum status run_training(const struct auditor *a, struct token_program *t, int batch,
				struct error *err)
{
	return run_training_with(a, t, batch, a->options->seed, err);
}

static enum status run_logits(struct token_program *t, const int32_t *tokens, char *logits,
			      struct error *err)
{
	const struct run run = { .seed = 1, .iteration = 1 };

	token_program_feed(t, tokens, NULL);
	if (program_run(t->p, &run, err) != OK)
		return FAIL;
	program_download(t->p, graph_find_output(t->g, "logits")->tensor, logits);
	return OK;
}

/* The gradients of the last run of training, copied; NULL: no memory. */
static char *copy_gradients(const struct auditor *a, struct error *err)
{
	const size_t bytes = (size_t)a->params->total * dtype_size(a->params->type);
	char *copy = malloc(bytes);

	if (copy)
		a->backend->download(a->backend, copy, a->params->grad, bytes);
	else
		fail_memory(err, "audit", bytes);
	return copy;
}

/* Does a gradient differ from its copy?  `which`: the parameters to look at; NULL: all. */
static enum status gradients_differ(const struct auditor *a, const char *copy, const bool *which,
				    bool *differ, struct error *err)
{
	const size_t size = dtype_size(a->params->type);

	*differ = false;
	for (int i = 0; i < a->params->n && !*differ; i++) {
		const struct param *p = &a->params->list[i];
		const size_t bytes = (size_t)p->count * size;
		char *now;

		if (which && !which[i])
			continue;
		now = malloc(bytes);
		if (!now)
			return fail_memory(err, "audit", bytes);
		a->backend->download(a->backend, now, param_grad(a->params, i), bytes);
		*differ = memcmp(copy + (size_t)p->offset * size, now, bytes) != 0;
		free(now);
	}
	return OK;
}

/* ------------------------------------------------------------------- wiring */

#define BATCHES 3     /* a parameter must get a gradient in one of these */
#define NEIGHBOURS 10 /* batches from here on hold other rows */

static enum status has_gradient(const struct params *params, int index, bool *has,
				struct error *err)
{
	const int64_t count = params->list[index].count;
	double *values = malloc((size_t)count * sizeof(*values));

	if (!values)
		return fail_memory(err, "audit", (size_t)count * sizeof(*values));
	if (param_get(params, index, true, values, err) != OK) {
		free(values);
		return FAIL;
	}
	*has = false;
	for (int64_t i = 0; i < count; i++)
		*has |= values[i] != 0;
	for (int64_t i = 0; i < count; i++)
		*has &= isfinite(values[i]); /* NaN is no gradient */
	free(values);
	return OK;
}

/* reached[i] becomes true where parameter i has a gradient in some batch. */
static enum status find_reached(struct auditor *a, bool *reached, struct error *err)
{
	bool all = false;

	for (int batch = 0; batch < BATCHES && !all; batch++) {
		if (run_training(a, &a->training, batch, err) != OK)
			return FAIL;
		all = true;
		for (int i = 0; i < a->params->n; i++) {
			if (!reached[i] && has_gradient(a->params, i, &reached[i], err) != OK)
				return FAIL;
			all = all && reached[i];
		}
	}
	return OK;
}

/* Switch every loss but the cross-entropy on or off; returns their number. */
static int weigh_auxiliary(struct token_program *t, bool on)
{
	int count = 0;

	for (int i = 0; i < t->g->n_outputs; i++) {
		const struct graph_output *o = &t->g->outputs[i];

		if (!o->is_loss || strcmp(o->name, "main") == 0)
			continue;
		program_loss_weight(t->p, o->name, on ? o->loss_weight : 0);
		count++;
	}
	return count;
}

static enum status find_reached_by_main(struct auditor *a, struct error *err)
{
	enum status status;

	if (weigh_auxiliary(&a->training, false) == 0) {
		memcpy(a->by_main, a->by_any, (size_t)a->params->n * sizeof(*a->by_main));
		return OK;
	}
	status = find_reached(a, a->by_main, err);
	weigh_auxiliary(&a->training, true);
	return status;
}

static enum status audit_wiring(struct auditor *a, struct error *err)
{
	if (find_reached(a, a->by_any, err) != OK || find_reached_by_main(a, err) != OK)
		return FAIL;
	for (int i = 0; i < a->params->n; i++) {
		const char *detail = !a->by_any[i]   ? "receives no gradient"
				     : a->by_main[i] ? ""
						     : "reached only by an auxiliary loss";

		if (add(a, "wiring", a->params->list[i].name, a->by_any[i], detail, err) != OK)
			return FAIL;
	}
	return OK;
}

/* --------------------------------------------------------------- mechanisms */

static double logit(const struct auditor *a, const char *logits, size_t i)
{
	return a->params->type == F64 ? ((const double *)logits)[i]
				      : (double)((const float *)logits)[i];
}

/* The change from the base logits to those of the last run, as a share of the base; rms. */
static double logits_change(const struct auditor *a)
{
	const size_t n = (size_t)(TRAINING_ROWS * training_length(a) * a->model->vocab);
	double change = 0, base = 0;

	for (size_t i = 0; i < n; i++) {
		const double x = logit(a, a->base, i), d = logit(a, a->now, i) - x;

		base += x * x;
		change += d * d;
	}
	return base > 0 ? sqrt(change / base) : 0;
}

/* The same for the gradients that the main loss has, and a copy of them. */
static enum status gradients_change(const struct auditor *a, const char *copy, double *share,
				    struct error *err)
{
	const size_t size = dtype_size(a->params->type);
	double change = 0, base = 0;

	for (int i = 0; i < a->params->n; i++) {
		const struct param *p = &a->params->list[i];
		const char *then = copy + (size_t)p->offset * size;
		double *now;

		if (!a->by_main[i])
			continue;
		now = malloc((size_t)p->count * sizeof(*now));
		if (!now)
			return fail_memory(err, "audit", (size_t)p->count * sizeof(*now));
		if (param_get(a->params, i, true, now, err) != OK) {
			free(now);
			return FAIL;
		}
		for (int64_t j = 0; j < p->count; j++) {
			const double x = logit(a, then, (size_t)j);

			base += x * x;
			change += (now[j] - x) * (now[j] - x);
		}
		free(now);
	}
	*share = base > 0 ? sqrt(change / base) : 0;
	return OK;
}

/* A loss that reaches only parameters of its own does not act on the model. */
static enum status effect_on_gradients(struct auditor *a, struct token_program *without,
				       double *effect, struct error *err)
{
	enum status status = FAIL;
	char *copy;

	if (run_training(a, &a->training, 0, err) != OK)
		return FAIL;
	copy = copy_gradients(a, err);
	if (copy && run_training(a, without, 0, err) == OK)
		status = gradients_change(a, copy, effect, err);
	free(copy);
	return status;
}

/* Does the graph read this parameter? */
static bool reads(const struct graph *g, const char *parameter)
{
	for (int i = 0; i < g->n_tensors; i++)
		if (g->tensors[i]->kind == TENSOR_PARAM &&
		    strcmp(g->tensors[i]->name, parameter) == 0)
			return true;
	return false;
}

/* The rms of each parameter's gradient of batch 0. */
static enum status gradient_sizes(struct auditor *a, double *sizes, struct error *err)
{
	enum status status = run_training(a, &a->training, 0, err);

	for (int i = 0; i < a->params->n && status == OK; i++) {
		const int64_t count = a->params->list[i].count;
		double *values = malloc((size_t)count * sizeof(*values)), squares = 0;

		if (!values)
			return fail_memory(err, "audit", (size_t)count * sizeof(*values));
		status = param_get(a->params, i, true, values, err);
		for (int64_t j = 0; j < count; j++)
			squares += values[j] * values[j];
		sizes[i] = sqrt(squares / (double)count);
		free(values);
	}
	return status;
}

/* Of the parameters that a mechanism brings and the main loss trains, that with the least gradient.
 */
struct least_gradient {
	double share; /* of the mean over all parameters; INFINITY: the mechanism brings none */
	const char *parameter;
};

static enum status least_gradient(struct auditor *a, const struct graph *without,
				  struct least_gradient *least, struct error *err)
{
	double *sizes = calloc((size_t)a->params->n, sizeof(*sizes)), squares = 0;
	enum status status;

	if (!sizes)
		return fail_memory(err, "audit", (size_t)a->params->n * sizeof(*sizes));
	status = gradient_sizes(a, sizes, err);
	for (int i = 0; i < a->params->n; i++)
		squares += sizes[i] * sizes[i] / a->params->n;
	for (int i = 0; i < a->params->n && status == OK; i++) {
		if (!a->by_main[i] || reads(without, a->params->list[i].name) ||
		    !(sizes[i] < least->share * sqrt(squares)))
			continue;
		least->share = sizes[i] / sqrt(squares);
		least->parameter = a->params->list[i].name;
	}
	free(sizes);
	return status;
}

/* How much this other model differs, as a share of the logits or gradients. */
static enum status effect_of(struct auditor *a, const struct model_switch *s, const struct model *m,
			     double *effect, struct least_gradient *least, struct error *err)
{
	enum status status;
	struct token_program t;

	if (open_small(a, m, s->through_loss ? MODEL_TRAIN : MODEL_LOGITS, &t, err) != OK)
		return FAIL;
	if (s->through_loss) {
		status = effect_on_gradients(a, &t, effect, err);
	} else {
		status = run_logits(&t, a->tokens, a->now, err);
		*effect = logits_change(a);
	}
	if (status == OK && least && !s->through_loss)
		status = least_gradient(a, t.g, least, err);
	token_program_close(&t);
	return status;
}

/* The model that the configuration describes with this one symbol off. */
static enum status read_without(struct auditor *a, const struct model_switch *s, struct model **m,
				struct error *err)
{
	const char *value = config_raw(a->config, s->symbol);
	enum status status;

	if (!value)
		return fail(err, "the model has CONFIG_%s switched on, the configuration has not",
			    s->symbol);
	if (config_set(a->config, s->symbol, s->off, err) != OK)
		return FAIL;
	status = model_read(m, a->config, a->task, err);
	if (config_set(a->config, s->symbol, value, err) != OK && status == OK) {
		model_free(*m);
		return FAIL;
	}
	return status;
}

static enum status effect_of_switch(struct auditor *a, const struct model_switch *s, double *effect,
				    struct least_gradient *least, struct error *err)
{
	struct model *other;
	enum status status;

	if (read_without(a, s, &other, err) != OK)
		return FAIL;
	status = effect_of(a, s, other, effect, least, err);
	model_free(other);
	return status;
}

/* The model as it is, but what this layer sends does not arrive. */
static enum status effect_of_messages(struct auditor *a, const struct model_switch *s, int layer,
				      double *effect, struct error *err)
{
	enum status status;

	a->model->silenced = s->mechanism;
	a->model->silenced_layer = layer;
	status = effect_of(a, s, a->model, effect, NULL, err);
	a->model->silenced = 0;
	return status;
}

/* The model as it is, but this layer lacks the mechanism. */
static enum status effect_in_layer(struct auditor *a, const struct model_switch *s, int layer,
				   double *effect, struct error *err)
{
	enum status status;

	a->model->muted = s->mechanism;
	a->model->muted_layer = layer;
	status = effect_of(a, s, a->model, effect, NULL, err);
	a->model->muted = 0;
	return status;
}

static bool claims_layer(const struct model *m, const struct model_switch *s, int layer)
{
	const struct mechanism *mechanism = m->mechanism[s->mechanism - 1];

	return !mechanism->acts ||
	       mechanism->acts(m->mechanism_options[s->mechanism - 1], m, layer);
}

typedef enum status (*layer_effect)(struct auditor *a, const struct model_switch *s, int layer,
				    double *effect, struct error *err);

/*
 * The least effect over the first `layers` layers, of those in which the mechanism claims to act;
 * INFINITY and layer -1: there is none.
 */
static enum status least_effect(struct auditor *a, const struct model_switch *s, int64_t layers,
				layer_effect effect_of_layer, double *least, int *weakest,
				struct error *err)
{
	*weakest = -1;
	*least = INFINITY;
	for (int layer = 0; layer < layers; layer++) {
		double effect;

		if (!claims_layer(a->model, s, layer))
			continue;
		if (effect_of_layer(a, s, layer, &effect, err) != OK)
			return FAIL;
		if (effect < *least) {
			*least = effect;
			*weakest = layer;
		}
	}
	return OK;
}

struct acting {
	const char *on;	  /* logits or gradients */
	double threshold; /* for these effects */
	double whole, sent, in_layer;
	int sender, weakest; /* the layers in which the effect is least; -1: it has none */
	struct least_gradient own;
};

static bool enough(const struct acting *e)
{
	return fmin(fmin(e->whole, e->sent), e->in_layer) >= e->threshold &&
	       e->own.share >= GRADIENT;
}

static void tell_acting(const struct acting *e, char *text, size_t size)
{
	if (e->whole < e->threshold)
		snprintf(text, size, "switching it off changes %.1e of the %s, less than %g",
			 e->whole, e->on, e->threshold);
	else if (e->sent < e->threshold)
		snprintf(text, size,
			 "what layer %d sends to the next changes %.1e of the %s, less than %g",
			 e->sender, e->sent, e->on, e->threshold);
	else if (e->in_layer < e->threshold)
		snprintf(text, size, "in layer %d it changes %.1e of the %s, less than %g",
			 e->weakest, e->in_layer, e->on, e->threshold);
	else if (e->own.share < GRADIENT)
		snprintf(text, size, "the gradient of its %s is %.1e of the mean one, less than %g",
			 e->own.parameter, e->own.share, GRADIENT);
	else if (e->weakest >= 0)
		snprintf(text, size, "changes %.1e of the %s, at least %.1e in a layer", e->whole,
			 e->on, e->in_layer);
	else
		snprintf(text, size, "changes %.1e of the %s", e->whole, e->on);
}

static struct audit_finding *finding_about(const struct auditor *a, const struct model_switch *s)
{
	char subject[128];

	snprintf(subject, sizeof(subject), "CONFIG_%s", s->symbol);
	for (int i = 0; i < a->report->n; i++)
		if (strcmp(a->report->list[i].audit, "mechanism") == 0 &&
		    strcmp(a->report->list[i].subject, subject) == 0)
			return &a->report->list[i];
	return NULL;
}

/* With the weights of a run, which may be small, it must act at all. */
static enum status audit_presence(struct auditor *a, const struct model_switch *s,
				  struct error *err)
{
	char subject[128];
	double effect;

	if (effect_of_switch(a, s, &effect, NULL, err) != OK)
		return FAIL;
	snprintf(subject, sizeof(subject), "CONFIG_%s", s->symbol);
	return add(a, "mechanism", subject, effect > 0,
		   effect > 0 ? ""
		   : s->through_loss
			   ? "switching it off changes no gradient of the main loss's parameters"
			   : "switching it off changes no logit",
		   err);
}

/*
 * With strengthened weights it must act by a size that can matter.  A mechanism may act in its own
 * layer and send to the next: both must act, and in every layer.
 */
static enum status audit_size(struct auditor *a, const struct model_switch *s, struct error *err)
{
	const int64_t layers = s->mechanism ? a->model->layers : 0;
	struct acting e = { .on = s->through_loss ? "gradients of the main loss's parameters"
						  : "logits",
			    .threshold = s->through_loss ? LOSS_EFFECT : EFFECT,
			    .own.share = INFINITY };
	struct audit_finding *finding = finding_about(a, s);

	if (effect_of_switch(a, s, &e.whole, &e.own, err) != OK ||
	    least_effect(a, s, s->sends ? layers - 1 : 0, effect_of_messages, &e.sent, &e.sender,
			 err) != OK ||
	    least_effect(a, s, layers, effect_in_layer, &e.in_layer, &e.weakest, err) != OK)
		return FAIL;
	if (finding->passed) {
		finding->passed = enough(&e);
		tell_acting(&e, finding->detail, sizeof(finding->detail));
	}
	return OK;
}

typedef enum status (*switch_audit)(struct auditor *a, const struct model_switch *s,
				    struct error *err);

struct switch_visit {
	struct auditor *a;
	switch_audit audit;
	struct error *err;
	enum status status;
};

static void visit_switch(void *context, const struct model_switch *s)
{
	struct switch_visit *v = context;

	if (v->status != OK)
		return;
	v->status = v->audit(v->a, s, v->err);
	if (v->status != OK)
		fail_prefix(v->err, "audit with CONFIG_%s=%s", s->symbol, s->off);
}

static enum status audit_mechanisms(struct auditor *a, switch_audit audit, struct error *err)
{
	struct switch_visit visit = { .a = a, .audit = audit, .err = err, .status = OK };
	struct token_program t;
	enum status status;

	if (open_small(a, a->model, MODEL_LOGITS, &t, err) != OK)
		return FAIL;
	status = run_logits(&t, a->tokens, a->base, err);
	token_program_close(&t);
	if (status != OK)
		return FAIL;
	model_switches(a->model, visit_switch, &visit);
	return visit.status;
}

/* ---------------------------------------------------------------- one batch */

/*
 * AdamW with this rate and so many updates lowers the loss of the models in models/vectors (2000
 * parameters) by 0.9 to 5.3 % (5 seeds), and that of larger models by more.  A tenth of the least
 * is demanded.
 */
#define UPDATES 5
#define RATE 1e-3
#define FALL 0.001

static double total_loss(const struct token_program *t)
{
	double sum = 0;

	for (int i = 0; i < t->g->n_outputs; i++)
		if (t->g->outputs[i].is_loss)
			sum += t->g->outputs[i].loss_weight *
			       program_scalar(t->p, t->g->outputs[i].tensor);
	return sum;
}

/* Changes the audit's own weights.  Audits that follow must hold for any weights. */
static enum status audit_one_batch(struct auditor *a, struct error *err)
{
	const struct optim_options adamw = {
		.kind = OPTIM_ADAMW,
		.clip = 1,
		.beta1 = 0.9,
		.beta2 = 0.95,
		.eps = 1e-8,
	};
	struct optimizer *optimizer;
	struct optim_report ignored;
	double first = 0, last = 0;
	enum status status = OK;
	char detail[160];

	if (optimizer_create(&optimizer, &adamw, a->params, err) != OK)
		return FAIL;
	for (int update = 0; update <= UPDATES && status == OK; update++) {
		status = run_training(a, &a->training, 0, err);
		last = total_loss(&a->training);
		if (update == 0)
			first = last;
		if (update < UPDATES)
			optimizer_update(optimizer, update + 1, RATE, &ignored);
	}
	optimizer_destroy(optimizer);
	if (status != OK)
		return FAIL;
	snprintf(detail, sizeof(detail), "%d updates bring it from %.4f to %.4f", UPDATES, first,
		 last);
	return add(a, "one batch", "loss", first - last >= FALL * first, detail, err);
}

/* ------------------------------------------------------ causality and state */

/*
 * A leak must not drown in rounding.  So every matrix gets entries of the size
 * 1 / sqrt(inputs): what passes through it keeps its size.  A causal model is
 * causal with any weights.
 */
static enum status strengthen(struct auditor *a, struct error *err)
{
	enum status status = OK;

	for (int i = 0; i < a->params->n && status == OK; i++) {
		const struct param *p = &a->params->list[i];
		double *values, squares = 0, factor;

		if (p->role != PARAM_MATRIX)
			continue;
		values = malloc((size_t)p->count * sizeof(*values));
		if (!values)
			return fail_memory(err, "audit", (size_t)p->count * sizeof(*values));
		status = param_get(a->params, i, false, values, err);
		for (int64_t j = 0; j < p->count; j++)
			squares += values[j] * values[j];
		factor = squares > 0
				 ? sqrt((double)p->count / (squares * (double)p->dim[p->ndim - 2]))
				 : 1;
		for (int64_t j = 0; j < p->count; j++)
			values[j] *= factor;
		if (status == OK)
			status = param_set(a->params, i, values, err);
		free(values);
	}
	return status;
}

/* Every row is cut at a position of its own; from there on its tokens are changed. */
struct cuts {
	int64_t count, passes;
};

/* The position of a row's cut in a pass; the length: this row has none. */
static int64_t cut_at(const struct auditor *a, const struct cuts *c, int64_t pass, int64_t row)
{
	const int64_t T = a->options->length, number = row * c->passes + pass;

	if (number >= c->count)
		return T;
	return c->count > 1 ? 1 + number * (T - 2) / (c->count - 1) : T - 1;
}

static void change_tokens(struct auditor *a, const struct cuts *c, int64_t pass)
{
	const int64_t T = a->options->length, V = a->model->vocab;
	const struct rng_key key =
		rng_subkey(rng_key(a->options->seed, "audit/changes"), (uint64_t)pass);

	memcpy(a->changed, a->tokens, (size_t)(a->options->rows * T) * sizeof(*a->tokens));
	for (int64_t row = 0; row < a->options->rows; row++)
		for (int64_t i = row * T + cut_at(a, c, pass, row); i < (row + 1) * T; i++) {
			const int64_t shift =
				1 + (int64_t)rng_below(key, (uint64_t)i, (uint64_t)V - 1);

			a->changed[i] = (int32_t)((a->tokens[i] + shift) % V);
		}
}

/* A fault is a logit that differs before its row's cut, or no difference at all. */
static bool find_fault(const struct auditor *a, const struct cuts *c, int64_t pass, char *detail,
		       size_t size)
{
	const int64_t T = a->options->length;
	const size_t per_token = a->bytes / (size_t)(a->options->rows * T);

	if (memcmp(a->base, a->now, a->bytes) == 0) {
		snprintf(detail, size, "other tokens change no logit");
		return true;
	}
	for (int64_t row = 0; row < a->options->rows; row++)
		for (int64_t t = 0; t < cut_at(a, c, pass, row); t++) {
			const size_t at = (size_t)(row * T + t) * per_token;

			if (memcmp(a->base + at, a->now + at, per_token) == 0)
				continue;
			snprintf(detail, size,
				 "other tokens from %lld on change the logits at %lld",
				 (long long)cut_at(a, c, pass, row), (long long)t);
			return true;
		}
	return false;
}

static enum status audit_causality(struct auditor *a, struct error *err)
{
	const int64_t all = a->options->length - 1, rows = a->options->rows;
	struct cuts c = { .count = a->options->positions < all ? a->options->positions : all };
	char subject[128], detail[160] = "";
	bool fault = false;

	if (run_logits(&a->logits, a->tokens, a->base, err) != OK)
		return FAIL;
	c.passes = (c.count + rows - 1) / rows;
	for (int64_t pass = 0; pass < c.passes && !fault; pass++) {
		change_tokens(a, &c, pass);
		if (run_logits(&a->logits, a->changed, a->now, err) != OK)
			return FAIL;
		fault = find_fault(a, &c, pass, detail, sizeof(detail));
	}
	snprintf(subject, sizeof(subject), "%lld of %lld positions", (long long)c.count,
		 (long long)all);
	return add(a, "causality", subject, !fault, detail, err);
}

/* Run batch 0 again, after the changed batches: the logits must be the same. */
static enum status audit_logits_state(struct auditor *a, struct error *err)
{
	bool same;

	if (run_logits(&a->logits, a->tokens, a->now, err) != OK)
		return FAIL;
	same = memcmp(a->base, a->now, a->bytes) == 0;
	return add(a, "state", "logits", same,
		   same ? "" : "those of a batch depend on the batch before it", err);
}

/* All rows but one get other tokens: no bit of that row's logits may change. */
static enum status audit_neighbours(struct auditor *a, struct error *err)
{
	const int64_t T = a->options->length, rows = a->options->rows;
	const size_t bytes = a->bytes / (size_t)rows;
	bool same = true;

	for (int64_t kept = 0; kept<rows; kept += rows> 1 ? rows - 1 : 1) {
		draw_tokens(a, (uint64_t)(NEIGHBOURS + kept), a->changed, rows * T);
		memcpy(a->changed + kept * T, a->tokens + kept * T, (size_t)T * sizeof(*a->tokens));
		if (run_logits(&a->logits, a->changed, a->now, err) != OK)
			return FAIL;
		same = same && memcmp(a->base + (size_t)kept * bytes, a->now + (size_t)kept * bytes,
				      bytes) == 0;
	}
	return add(a, "state", "neighbours", same,
		   same ? "" : "the logits of a row depend on the other rows of its batch", err);
}

/* The same for gradients, with another batch in between. */
static enum status audit_gradient_state(struct auditor *a, struct error *err)
{
	enum status status = FAIL;
	bool differ = true;
	char *copy;

	if (run_training(a, &a->training, 0, err) != OK)
		return FAIL;
	copy = copy_gradients(a, err);
	if (copy && run_training(a, &a->training, 1, err) == OK &&
	    run_training(a, &a->training, 0, err) == OK)
		status = gradients_differ(a, copy, NULL, &differ, err);
	free(copy);
	if (status != OK)
		return FAIL;
	return add(a, "state", "gradients", !differ,
		   differ ? "those of a batch depend on the batch before it" : "", err);
}

/* ------------------------------------------------------------------ dropout */

static enum status run_evaluation(const struct auditor *a, struct token_program *t, uint64_t seed,
				  double *nll, struct error *err)
{
	const struct run run = { .seed = seed, .iteration = seed };

	token_program_feed(t, a->tokens, a->tokens);
	token_program_weigh(t, 1, 1);
	if (program_run(t->p, &run, err) != OK)
		return FAIL;
	program_read(t->p, t->io.nll, nll);
	return OK;
}

/* Two evaluations with different seeds of dropout must agree. */
static enum status audit_evaluation(struct auditor *a, struct error *err)
{
	const size_t n = (size_t)(a->options->rows * a->options->length);
	double *nll = malloc(2 * n * sizeof(*nll));
	struct token_program t = { 0 };
	enum status status = FAIL;
	bool same = false;

	if (!nll)
		return fail_memory(err, "audit", 2 * n * sizeof(*nll));
	if (open_program(a, a->model, MODEL_EVAL, &t, err) == OK &&
	    run_evaluation(a, &t, 1, nll, err) == OK &&
	    run_evaluation(a, &t, 2, nll + n, err) == OK) {
		same = memcmp(nll, nll + n, n * sizeof(*nll)) == 0;
		status = OK;
	}
	token_program_close(&t);
	free(nll);
	if (status != OK)
		return FAIL;
	return add(a, "training", "evaluation without dropout", same,
		   same ? "" : "two evaluations with different seeds differ", err);
}

/* In training, the seed must matter with dropout, and only with dropout. */
static enum status audit_dropout(struct auditor *a, struct error *err)
{
	const double dropout = config_real(a->config, "DROPOUT");
	const bool wanted = dropout > 0;
	enum status status = FAIL;
	bool differ = !wanted;
	char detail[160];
	char *copy;

	if (run_training_with(a, &a->training, 0, 1, err) != OK)
		return FAIL;
	copy = copy_gradients(a, err);
	if (copy && run_training_with(a, &a->training, 0, 2, err) == OK)
		status = gradients_differ(a, copy, NULL, &differ, err);
	free(copy);
	if (status != OK)
		return FAIL;
	snprintf(detail, sizeof(detail), "DROPOUT=%g, and another seed changes %s gradient",
		 dropout, differ ? "the" : "no");
	return add(a, "training", "dropout", differ == wanted, detail, err);
}

/* ---------------------------------------------------------------- precision */

/*
 * The logits against those in double, as a share.  The models of models/audit_test differ by at
 * most 4e-7 in float; sums in bfloat16 would differ by more than 1e-3.
 */
#define FLOAT_ERROR 1e-4
#define BFLOAT16_ERROR 0.1 /* products of bfloat16 numbers, summed in float */

static enum status copy_as_double(const struct params *from, struct params *to, struct error *err)
{
	for (int i = 0; i < from->n; i++) {
		const int at = params_find(to, from->list[i].name);
		double *values = malloc((size_t)from->list[i].count * sizeof(*values));
		enum status status;

		if (!values)
			return fail_memory(err, "audit", 0);
		status = param_get(from, i, false, values, err);
		if (status == OK && at >= 0)
			status = param_set(to, at, values, err);
		free(values);
		if (status != OK)
			return FAIL;
	}
	return OK;
}

/* The logits of the training batch's tokens, with these parameters; as doubles, to be freed. */
static enum status small_logits(const struct auditor *a, struct params *params,
				const struct backend *backend, double **logits, size_t *n,
				struct error *err)
{
	const struct model_use use = { .purpose = MODEL_LOGITS,
				       .rows = TRAINING_ROWS,
				       .length = training_length(a) };
	const struct run run = { .seed = 1, .iteration = 1 };
	struct token_program t = { 0 };
	enum status status = FAIL;
	const struct tensor *out;

	*logits = NULL;
	if (model_program_open(&t, a->model, &use, params, backend, err) != OK)
		return FAIL;
	out = graph_find_output(t.g, "logits")->tensor;
	*n = tensor_bytes(out) / dtype_size(params->type);
	*logits = malloc(*n * sizeof(**logits));
	if (!*logits)
		fail_memory(err, "audit", *n * sizeof(**logits));
	else if (params->type == a->params->type || copy_as_double(a->params, params, err) == OK) {
		token_program_feed(&t, a->tokens, NULL);
		status = program_run(t.p, &run, err);
		program_read(t.p, out, *logits);
	}
	token_program_close(&t);
	return status;
}

static int compare_doubles(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/*
 * The relative error of a token's logits, such that a tenth of the tokens has less.  Rounding may
 * decide which tokens a sparse mechanism reads, so some tokens may differ by more; wrong sums
 * reach all.  `x` is overwritten.
 */
static double common_error(double *x, const double *exact, size_t tokens, size_t vocab)
{
	for (size_t t = 0; t < tokens; t++) {
		double error = 0, size = 0;

		for (size_t i = t * vocab; i < (t + 1) * vocab; i++) {
			error += (x[i] - exact[i]) * (x[i] - exact[i]);
			size += exact[i] * exact[i];
		}
		x[t] = size > 0 ? sqrt(error / size) : 0;
	}
	qsort(x, tokens, sizeof(*x), compare_doubles);
	return x[tokens / 10];
}

static enum status audit_precision(struct auditor *a, struct error *err)
{
	const double most = a->backend->precision == BFLOAT16 ? BFLOAT16_ERROR : FLOAT_ERROR;
	const struct backend exact = backend_cpu(a->backend->threads);
	double *mine = NULL, *theirs = NULL, error = NAN;
	struct params *params = NULL;
	enum status status = FAIL;
	char detail[160];
	size_t n;

	if (a->params->type == F64)
		return OK;
	if (params_create(&params, F64, err) == OK &&
	    small_logits(a, a->params, a->backend, &mine, &n, err) == OK &&
	    small_logits(a, params, &exact, &theirs, &n, err) == OK) {
		error = common_error(mine, theirs, n / (size_t)a->model->vocab,
				     (size_t)a->model->vocab);
		status = OK;
	}
	free(mine);
	free(theirs);
	params_destroy(params);
	if (status != OK)
		return FAIL;
	snprintf(detail, sizeof(detail),
		 "the logits differ from those in double by %.1e, allowed are %g", error, most);
	return add(a, "training", "precision", error <= most, detail, err);
}

/* ---------------------------------------------------------------------- all */

#define MOVED 0.02 /* deviation of weights that start at zero: that of GPT-2's matrices */

/* Weights that start at zero get small random values. */
static enum status move_zeros(struct auditor *a, struct error *err)
{
	const struct rng_key key = rng_key(a->options->seed, "audit/zeros");
	enum status status = OK;

	for (int i = 0; i < a->params->n && status == OK; i++) {
		const struct param *p = &a->params->list[i];
		double *values;

		if (p->init.kind != INIT_CONSTANT || p->init.value != 0)
			continue;
		values = malloc((size_t)p->count * sizeof(*values));
		if (!values)
			return fail_memory(err, "audit", (size_t)p->count * sizeof(*values));
		for (int64_t j = 0; j < p->count; j++)
			values[j] = MOVED * rng_normal(rng_subkey(key, (uint64_t)i), (uint64_t)j);
		status = param_set(a->params, i, values, err);
		free(values);
	}
	return status;
}

static enum status allocate(struct auditor *a, struct error *err)
{
	const size_t n = (size_t)(a->options->rows * a->options->length);

	a->bytes = tensor_bytes(graph_find_output(a->logits.g, "logits")->tensor);
	a->by_any = calloc((size_t)a->params->n, sizeof(*a->by_any));
	a->by_main = calloc((size_t)a->params->n, sizeof(*a->by_main));
	a->tokens = malloc(n * sizeof(*a->tokens));
	a->changed = malloc(n * sizeof(*a->changed));
	a->base = malloc(a->bytes);
	a->now = malloc(a->bytes);
	if (!a->by_any || !a->by_main || !a->tokens || !a->changed || !a->base || !a->now)
		return fail_memory(err, "audit", 2 * a->bytes);
	return OK;
}

static enum status open_auditor(struct auditor *a, struct error *err)
{
	if (model_read(&a->model, a->config, a->task, err) != OK)
		return FAIL;
	if (a->model->vocab < 2)
		return fail(err, "a vocabulary of one token cannot be audited");
	if (params_create(&a->params, a->options->type, err) != OK ||
	    open_program(a, a->model, MODEL_TRAIN, &a->training, err) != OK ||
	    open_program(a, a->model, MODEL_LOGITS, &a->logits, err) != OK ||
	    params_initialise(a->params, a->options->seed, err) != OK || move_zeros(a, err) != OK ||
	    allocate(a, err) != OK)
		return FAIL;
	draw_tokens(a, 0, a->tokens, a->options->rows * a->options->length);
	return OK;
}

static void close_auditor(struct auditor *a)
{
	free(a->by_any);
	free(a->by_main);
	free(a->tokens);
	free(a->changed);
	free(a->base);
	free(a->now);
	token_program_close(&a->training);
	token_program_close(&a->logits);
	params_destroy(a->params);
	model_free(a->model);
}

static enum status run_audits(struct auditor *a, struct error *err)
{
	const struct audit_options *o = a->options;

	if (o->wiring &&
	    (audit_wiring(a, err) != OK || audit_mechanisms(a, audit_presence, err) != OK))
		return FAIL;
	if (o->one_batch && audit_one_batch(a, err) != OK)
		return FAIL;
	if ((o->wiring || o->training || o->causality) && strengthen(a, err) != OK)
		return FAIL;
	if (o->wiring && audit_mechanisms(a, audit_size, err) != OK)
		return FAIL;
	if (o->training && (audit_evaluation(a, err) != OK || audit_dropout(a, err) != OK ||
			    audit_precision(a, err) != OK))
		return FAIL;
	if (!o->causality)
		return OK;
	if (audit_causality(a, err) != OK || audit_logits_state(a, err) != OK ||
	    audit_neighbours(a, err) != OK)
		return FAIL;
	return audit_gradient_state(a, err);
}

enum status audit_model(struct config *c, const struct model_task *task,
			const struct backend *backend, const struct audit_options *options,
			struct audit_report *report, struct error *err)
{
	struct auditor a = {
		.config = c,
		.task = task,
		.backend = backend,
		.options = options,
		.report = report,
	};
	enum status status = FAIL;

	*report = (struct audit_report){
		.declared_leak = options->declared_leak,
		.partial = !(options->wiring && options->causality && options->one_batch &&
			     options->data && options->training && options->pairing),
	};
	if (open_auditor(&a, err) == OK)
		status = run_audits(&a, err);
	close_auditor(&a);
	return status;
}
