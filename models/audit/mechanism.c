#include "models/audit/auditor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/*
 * The least share of the logits (EFFECT) or gradients (LOSS_EFFECT) that a mechanism must change,
 * and the least gradient of its parameters as a share of the mean gradient (GRADIENT).  With
 * strengthened weights, rounding changes about 1e-7 of the logits; the mechanisms and gates of
 * models/vectors change at least 4e-3, and their gradients are at least 5e-4 of the mean.  The
 * weight of an auxiliary loss may be small: the losses of defconfigs/wsffn change 8e-6 of the
 * gradients and more.
 */
#define EFFECT 1e-5
#define LOSS_EFFECT 1e-8
#define GRADIENT 1e-6

#define MOST_TOGETHER 64 /* changed models in one graph */
#define CHANGED_PREFIX "changed.%d."

static double logit(const struct auditor *a, const char *logits, size_t i)
{
	return a->params->type == F64 ? ((const double *)logits)[i]
				      : (double)((const float *)logits)[i];
}

/* How much the logits of the last run differ from the base logits, as a share of these; rms. */
static double logits_change(const struct auditor *a)
{
	const size_t n = auditor_small_logits(a);
	double change = 0, base = 0;

	for (size_t i = 0; i < n; i++) {
		const double x = logit(a, a->base, i), d = logit(a, a->now, i) - x;

		base += x * x;
		change += d * d;
	}
	return base > 0 ? sqrt(change / base) : 0;
}

struct gradients_compared {
	const struct auditor *a;
	const char *then; /* the copy of the parameter's gradient */
	double change, base;
};

static void compare_piece(void *context, int64_t first, int64_t n, double *now)
{
	struct gradients_compared *c = context;

	for (int64_t i = 0; i < n; i++) {
		const double x = logit(c->a, c->then, (size_t)(first + i));

		c->base += x * x;
		c->change += (now[i] - x) * (now[i] - x);
	}
}

/* How much the gradients of the main loss's parameters differ from their copy, as a share. */
static enum status gradients_change(const struct auditor *a, const char *copy, double *share,
				    struct error *err)
{
	const size_t size = dtype_size(a->params->type);
	struct gradients_compared c = { .a = a };

	for (int i = 0; i < a->params->n; i++) {
		if (!a->by_main[i])
			continue;
		c.then = copy + (size_t)a->params->list[i].offset * size;
		if (param_visit(a->params, i, true, compare_piece, &c, err) != OK)
			return FAIL;
	}
	*share = c.base > 0 ? sqrt(c.change / c.base) : 0;
	return OK;
}

/* A loss that reaches only parameters of its own does not act on the model. */
static enum status effect_on_gradients(struct auditor *a, struct token_program *without,
				       double *effect, struct error *err)
{
	enum status status = FAIL;
	char *copy;

	if (auditor_train(a, &a->training, 0, err) != OK)
		return FAIL;
	copy = auditor_copy_gradients(a, err);
	if (copy && auditor_train(a, without, 0, err) == OK)
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

/* The rms of each parameter's gradient of batch 0, for all mechanisms. */
static enum status measure_gradients(struct auditor *a, struct error *err)
{
	enum status status;

	if (a->sized)
		return OK;
	status = auditor_train(a, &a->training, 0, err);
	for (int i = 0; i < a->params->n && status == OK; i++) {
		double squares;

		status = auditor_squares(a, i, true, &squares, err);
		a->sizes[i] = sqrt(squares / (double)a->params->list[i].count);
	}
	a->sized = status == OK;
	return status;
}

/* The least gradient among a mechanism's own parameters, of those that the main loss trains. */
struct least_gradient {
	double share; /* of the mean over all parameters; INFINITY: the mechanism brings none */
	const char *parameter;
};

static enum status least_gradient(struct auditor *a, const struct graph *without,
				  struct least_gradient *least, struct error *err)
{
	double squares = 0;

	if (measure_gradients(a, err) != OK)
		return FAIL;
	for (int i = 0; i < a->params->n; i++)
		squares += a->sizes[i] * a->sizes[i] / a->params->n;
	for (int i = 0; i < a->params->n; i++) {
		if (!a->by_main[i] || reads(without, a->params->list[i].name) ||
		    !(a->sizes[i] < least->share * sqrt(squares)))
			continue;
		least->share = a->sizes[i] / sqrt(squares);
		least->parameter = a->params->list[i].name;
	}
	return OK;
}

/* How much the other model m differs, as a share of the logits or gradients. */
static enum status effect_of(struct auditor *a, const struct model_switch *s, const struct model *m,
			     double *effect, struct least_gradient *least, struct error *err)
{
	enum status status;
	struct token_program t;

	if (auditor_open_small(a, m, s->through_loss ? MODEL_TRAIN : MODEL_LOGITS, &t, err) != OK)
		return FAIL;
	if (s->through_loss) {
		status = effect_on_gradients(a, &t, effect, err);
	} else {
		status = auditor_logits(&t, a->tokens, a->now, err);
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

/* The same model, but what this layer sends does not arrive; or this layer lacks the mechanism. */
enum change { SILENCED, MUTED };

static void change_layer(struct model *m, const struct model_switch *s, enum change change,
			 int layer)
{
	if (change == SILENCED) {
		m->silenced = s->mechanism;
		m->silenced_layer = layer;
	} else {
		m->muted = s->mechanism;
		m->muted_layer = layer;
	}
}

static void change_nothing(struct model *m)
{
	m->silenced = m->muted = 0;
}

static bool claims_layer(const struct model *m, const struct model_switch *s, int layer)
{
	const struct mechanism *mechanism = m->mechanism[s->mechanism - 1];

	return !mechanism->acts ||
	       mechanism->acts(m->mechanism_options[s->mechanism - 1], m, layer);
}

/* Some layers, the model with each of them changed, and their effects. */
struct changed_layers {
	struct auditor *a;
	const struct model_switch *s;
	enum change change;
	const int *layers;
	int n;
};

/* One graph: the changed models share their first layers, and what only weights decide. */
static void build_changed(void *context, struct graph *g, struct token_io *io)
{
	const struct changed_layers *c = context;
	struct model *m = c->a->model;

	for (int i = 0; i < c->n; i++) {
		graph_variant(g, CHANGED_PREFIX, c->layers[i]);
		change_layer(m, c->s, c->change, c->layers[i]);
		model_build(m, g, MODEL_LOGITS, TRAINING_ROWS, auditor_training_length(c->a), io);
		change_nothing(m);
	}
}

static enum status effects_of_changes(struct changed_layers *c, double *effects, struct error *err)
{
	struct program_options options = c->a->options->program;
	const struct run run = { .seed = 1, .iteration = 1 };
	struct auditor *a = c->a;
	struct token_program t;
	enum status status;
	char name[64];

	options.train = false;
	if (token_program_open(&t, build_changed, c, a->params, a->backend, &options, err) != OK)
		return FAIL;
	token_program_feed(&t, a->tokens, NULL);
	status = program_run(t.p, &run, err);
	for (int i = 0; i < c->n && status == OK; i++) {
		snprintf(name, sizeof(name), CHANGED_PREFIX "logits", c->layers[i]);
		program_download(t.p, graph_find_output(t.g, name)->tensor, a->now);
		effects[i] = logits_change(a);
	}
	token_program_close(&t);
	return status;
}

/* So many logits of the small batch take no more memory than the logits of the large batch. */
static int most_together(const struct auditor *a)
{
	const size_t small = auditor_small_logits(a) * dtype_size(a->params->type);
	const size_t most = a->bytes / small;

	return most < 1 ? 1 : most > MOST_TOGETHER ? MOST_TOGETHER : (int)most;
}

/*
 * The least effect in one of the first `layers` layers.  Only layers in which the mechanism claims
 * to act count; without one the effect is INFINITY and the layer -1.
 */
static enum status least_effect(struct auditor *a, const struct model_switch *s, int64_t layers,
				enum change change, double *least, int *weakest, struct error *err)
{
	const int most = most_together(a);
	int together[MOST_TOGETHER];
	struct changed_layers c = { .a = a, .s = s, .change = change, .layers = together };
	double effects[MOST_TOGETHER];

	*weakest = -1;
	*least = INFINITY;
	for (int layer = 0; layer < layers; layer++) {
		if (claims_layer(a->model, s, layer))
			together[c.n++] = layer;
		if (c.n == 0 || (c.n < most && layer + 1 < layers))
			continue;
		if (effects_of_changes(&c, effects, err) != OK)
			return FAIL;
		for (int i = 0; i < c.n; i++)
			if (effects[i] < *least) {
				*least = effects[i];
				*weakest = together[i];
			}
		c.n = 0;
	}
	return OK;
}

struct acting {
	const char *on;	  /* logits or gradients */
	double threshold; /* for these effects */
	double whole, sent, in_layer;
	int sender, weakest; /* the layers in which the effect is least; -1: none */
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

/* With the weights of a run, which may be small, any effect is enough. */
static enum status find_presence(struct auditor *a, const struct model_switch *s, struct error *err)
{
	char subject[128];
	double effect;

	if (effect_of_switch(a, s, &effect, NULL, err) != OK)
		return FAIL;
	snprintf(subject, sizeof(subject), "CONFIG_%s", s->symbol);
	return auditor_add(
		a, "mechanism", subject, effect > 0,
		effect > 0 ? ""
		: s->through_loss
			? "switching it off changes no gradient of the main loss's parameters"
			: "switching it off changes no logit",
		err);
}

/*
 * With strengthened weights the effect must be large enough to matter.  A mechanism may act in its
 * own layer and send to the next layer: both must have an effect, in every layer.
 */
static enum status judge_size(struct auditor *a, const struct model_switch *s, struct error *err)
{
	const int64_t layers = s->mechanism ? a->model->layers : 0;
	struct acting e = { .on = s->through_loss ? "gradients of the main loss's parameters"
						  : "logits",
			    .threshold = s->through_loss ? LOSS_EFFECT : EFFECT,
			    .own.share = INFINITY };
	struct audit_finding *finding = finding_about(a, s);

	if (effect_of_switch(a, s, &e.whole, &e.own, err) != OK ||
	    least_effect(a, s, s->sends ? layers - 1 : 0, SILENCED, &e.sent, &e.sender, err) !=
		    OK ||
	    least_effect(a, s, layers, MUTED, &e.in_layer, &e.weakest, err) != OK)
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

	if (auditor_open_small(a, a->model, MODEL_LOGITS, &t, err) != OK)
		return FAIL;
	status = auditor_logits(&t, a->tokens, a->base, err);
	token_program_close(&t);
	if (status != OK)
		return FAIL;
	model_switches(a->model, visit_switch, &visit);
	return visit.status;
}

enum status audit_mechanism_presence(struct auditor *a, struct error *err)
{
	return audit_mechanisms(a, find_presence, err);
}

enum status audit_mechanism_size(struct auditor *a, struct error *err)
{
	return audit_mechanisms(a, judge_size, err);
}
