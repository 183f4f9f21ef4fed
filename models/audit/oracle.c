/*
 * The step's model, reduced, computed by two programs that share no code: the engine and the oracle
 * (models/oracle).  Logits, losses, the nll of every target in every graph, and derivatives of the
 * loss along directions must agree: with the engine in double, and with the engine on the step's
 * device in its precision.  Training is compared once more with the configured dropout.
 *
 * Each tensor has two directions: a random one, and its gradient, along which rounding averages
 * out.  A derivative is a central difference of the oracle's loss; what the specification holds
 * constant (routing weights, detached latents) is constant there.  Without an oracle it is a
 * difference of the engine's own loss in double; else only its graphs are compared, with each
 * other.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cpu/cpu.h"
#include "core/util/rng.h"
#include "models/audit/auditor.h"
#include "models/audit/reduced.h"
#include "models/audit/reduced_engine.h"
#include "models/decode.h"
#include "models/oracle/oracle.h"

#define SEED 1	   /* of weights, tokens and directions: the same for runs of all seeds */
#define STEP 1e-5  /* of a difference, as a share of the length of its tensor */
#define SURE 1e-6  /* a derivative that differs by more from the engine's is taken again */
#define UNSCORED 5 /* one of so many targets is not scored */

enum { RANDOM, GRADIENT, DIRECTIONS };
enum kind { LOGITS, LOSSES, GRAPHS, GRADIENTS, ROUTES, KINDS };

static const char *const kind_names[KINDS] = { "logits", "losses", "graphs", "gradients",
					       "routes" };

/*
 * Seen in the models of models/vectors and in steps of the defconfigs: in double 2e-14 of logits
 * and nats, 5e-12 of losses, 1e-6 of gradients (the error of the difference); in float 8e-6, 2e-5
 * nats, 2e-5 and 4e-5; with products in bfloat16 0.05, 0.08 nats, 8e-3 and 0.19, where a factor of
 * two would show.
 */
struct tolerance {
	double of[KINDS];		   /* how much may differ: a share; of graphs, in nats */
	double small_loss, small_gradient; /* judged as if they were this share of the largest */
};

static const struct tolerance in_double = { { 1e-10, 1e-10, 1e-10, 1e-5, 1e-9 }, 0, 1e-4 };
static const struct tolerance in_float = { { 1e-4, 1e-4, 1e-4, 1e-3, 1e-3 }, 1e-3, 1e-3 };
static const struct tolerance in_bfloat16 = { { 0.2, 0.02, 0.4, 0.4, 0.2 }, 0.05, 0.05 };

struct comparison {
	struct auditor *a;
	struct config *config;
	struct model *model;
	struct oracle *oracle;
	bool missing; /* a part has no oracle */
	bool drops;   /* the model that is compared now has dropout */
	int64_t T;
	int32_t *row, *token, *target; /* rows of T + 1 tokens; the engine's batch */
	int n;			       /* parameters */
	double **weights, **directions, *derivatives;
	struct reduced_engine *engine;
	const struct tolerance *tolerance;
	const char *precision;
};

/* ------------------------------------------------------------------ findings */

struct worst {
	double error;
	const char *what;
};

static void note(struct worst *w, double error, const char *what)
{
	if (w->what && !(error > w->error) && !isnan(error))
		return;
	*w = (struct worst){ isnan(error) ? INFINITY : error, what };
}

/* What the engine is compared with. */
static const char *other(const struct comparison *c, enum kind kind)
{
	if (!c->missing)
		return "oracle";
	return kind == GRAPHS ? "its training" : "its own loss";
}

static enum status tell(const struct comparison *c, enum kind kind, const struct worst *w,
			struct error *err)
{
	const double most = c->tolerance->of[kind];
	char subject[128], detail[160];

	snprintf(subject, sizeof(subject), "%s in %s%s", kind_names[kind], c->precision,
		 c->drops ? ", with dropout" : "");
	snprintf(detail, sizeof(detail), "%s: engine and %s differ by %.1e; %g is allowed", w->what,
		 other(c, kind), w->error, most);
	return auditor_add(c->a, "oracle", subject, w->error <= most, detail, err);
}

/* ------------------------------------------------------------------- outputs */

static int compare_doubles(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/*
 * The error of the logits of each token, as a share of their size: the largest.  Rounding may
 * decide which keys pass a threshold; then it is the median, for a wrong formula changes all.
 */
static enum status compare_logits(const struct comparison *c, struct error *err)
{
	const struct oracle *o = c->oracle;
	const int64_t tokens = o->B * o->T;
	const char *sparse = config_raw(c->config, "RA_MLA_MLP_SPARSE_MODE");
	const bool rounded = c->tolerance != &in_double && sparse && strcmp(sparse, "rms") == 0;
	double *errors;
	struct worst w = { 0 };

	if (!c->engine->logits)
		return OK;
	errors = malloc((size_t)tokens * sizeof(*errors));
	if (!errors)
		return fail_memory(err, "audit", (size_t)tokens * sizeof(*errors));
	for (int64_t t = 0; t < tokens; t++) {
		double error = 0, size = 0;

		for (int64_t i = t * o->V; i < (t + 1) * o->V; i++) {
			const double d = c->engine->logits[i] - o->logits[i];

			error += d * d;
			size += o->logits[i] * o->logits[i];
		}
		errors[t] = isfinite(error) ? sqrt(error / size) : INFINITY;
	}
	qsort(errors, (size_t)tokens, sizeof(*errors), compare_doubles);
	note(&w, errors[rounded ? tokens / 2 : tokens - 1], rounded ? "half of the tokens" : "all");
	free(errors);
	return tell(c, LOGITS, &w, err);
}

static double engine_loss(const struct reduced_engine *e, const char *name)
{
	for (int i = 0; i < e->n_losses; i++)
		if (strcmp(e->loss[i].name, name) == 0)
			return e->loss[i].value;
	return 0;
}

static double oracle_loss(const struct oracle *o, const char *name)
{
	for (int i = 0; i < o->n_losses; i++)
		if (strcmp(o->loss[i].name, name) == 0)
			return o->loss[i].value;
	return 0;
}

static double share(double x, double exact, double floor)
{
	return x == exact ? 0 : fabs(x - exact) / fmax(fabs(exact), floor);
}

/* Each kind of loss that one of them has; one that the other lacks is 0 there. */
static enum status compare_losses(const struct comparison *c, struct error *err)
{
	const double floor = c->tolerance->small_loss * oracle_loss(c->oracle, "main");
	const struct reduced_engine *e = c->engine;
	struct worst w = { 0 };

	for (int i = 0; i < e->n_losses; i++)
		note(&w, share(e->loss[i].value, oracle_loss(c->oracle, e->loss[i].name), floor),
		     e->loss[i].name);
	for (int i = 0; i < c->oracle->n_losses; i++)
		note(&w,
		     share(engine_loss(e, c->oracle->loss[i].name), c->oracle->loss[i].value,
			   floor),
		     c->oracle->loss[i].name);
	return tell(c, LOSSES, &w, err);
}

/* Without an oracle the others must agree with training. */
static enum status compare_graphs(const struct comparison *c, struct error *err)
{
	const double *exact = c->missing ? c->engine->nll[BY_TRAINING] : c->oracle->nll;
	struct worst w = { 0 };

	for (enum scoring how = 0; how < SCORINGS; how++)
		if (c->engine->nll[how])
			note(&w, nll_difference(c->engine->nll[how], exact, REDUCED_ROWS * c->T),
			     scoring_names[how]);
	return tell(c, GRAPHS, &w, err);
}

/* ----------------------------------------------------------------- gradients */

static double length_of(const double *x, int64_t n)
{
	double squares = 0;

	for (int64_t i = 0; i < n; i++)
		squares += x[i] * x[i];
	return sqrt(squares);
}

static double *gradient_of(const struct comparison *c, int index, struct error *err)
{
	const struct params *p = c->engine->rows.params;
	const size_t bytes = (size_t)p->list[index].count * sizeof(double);
	double *gradient = malloc(bytes);

	if (!gradient) {
		fail_memory(err, "audit", bytes);
	} else if (param_get(p, index, true, gradient, err) != OK) {
		free(gradient);
		return NULL;
	}
	return gradient;
}

/* A random direction with entries of size 1; and the gradient, with length 1. */
static enum status draw_directions(struct comparison *c, struct error *err)
{
	for (int i = 0; i < c->n; i++) {
		const struct param *p = &c->engine->rows.params->list[i];
		const struct rng_key key = rng_subkey(rng_key(SEED, p->name), 1);
		double *random = malloc((size_t)p->count * sizeof(*random));
		double *gradient = gradient_of(c, i, err), length;

		free(c->directions[DIRECTIONS * i + RANDOM]);
		free(c->directions[DIRECTIONS * i + GRADIENT]);
		c->directions[DIRECTIONS * i + RANDOM] = random;
		c->directions[DIRECTIONS * i + GRADIENT] = gradient;
		if (!random || !gradient)
			return fail_memory(err, "audit", (size_t)p->count * sizeof(*random));
		length = length_of(gradient, p->count);
		for (int64_t j = 0; j < p->count; j++) {
			random[j] = rng_normal(key, (uint64_t)j);
			gradient[j] = length > 0 ? gradient[j] / length : random[j];
		}
	}
	return OK;
}

/* The engine's losses with a tensor moved; for models without an oracle. */
static enum status moved_losses(struct comparison *c, int index, const double *direction, double by,
				struct error *err)
{
	struct params *p = c->engine->rows.params;
	const int64_t count = p->list[index].count;
	double *values = malloc((size_t)count * sizeof(*values));
	enum status status;

	if (!values)
		return fail_memory(err, "audit", (size_t)count * sizeof(*values));
	for (int64_t i = 0; i < count; i++)
		values[i] = c->weights[index][i] + by * direction[i];
	status = param_set(p, index, values, err);
	free(values);
	return status == OK ? reduced_engine_train(c->engine, err) : FAIL;
}

static enum status engine_derivative(struct comparison *c, int index, const double *direction,
				     double step, double *derivative, struct error *err)
{
	struct reduced_loss above[REDUCED_LOSSES];

	if (moved_losses(c, index, direction, step, err) != OK)
		return FAIL;
	memcpy(above, c->engine->loss, sizeof(above));
	if (moved_losses(c, index, direction, -step, err) != OK)
		return FAIL;
	*derivative = 0;
	for (int i = 0; i < c->engine->n_losses; i++)
		*derivative += (above[i].value - c->engine->loss[i].value) / (2 * step);
	return param_set(c->engine->rows.params, index, c->weights[index], err);
}

/* The derivative along direction i, with this share of the tensor's length as step. */
static enum status derive(struct comparison *c, int i, double share, double *derivative,
			  struct error *err)
{
	const int index = i / DIRECTIONS;
	const int64_t count = c->engine->rows.params->list[index].count;
	const double *d = c->directions[i];
	const double step = share * length_of(c->weights[index], count) / length_of(d, count);

	if (c->missing)
		return engine_derivative(c, index, d, step, derivative, err);
	return oracle_derivative(c->oracle, index, d, step, derivative, err);
}

/* Afterwards the results of the unchanged weights are made once more. */
static enum status restore(const struct comparison *c, struct error *err)
{
	return c->missing ? reduced_engine_train(c->engine, err) : oracle_run(c->oracle, err);
}

/* With dropout one direction of each tensor is enough: the formulas were compared without. */
static bool is_taken(const struct comparison *c, int i)
{
	return !c->drops || i % DIRECTIONS == GRADIENT;
}

static enum status differentiate(struct comparison *c, struct error *err)
{
	for (int i = 0; i < c->n * DIRECTIONS; i++)
		if (is_taken(c, i) && derive(c, i, STEP, &c->derivatives[i], err) != OK)
			return FAIL;
	return restore(c, err);
}

/* From steps of this share and a quarter of it, so that errors of second order cancel. */
static enum status extrapolate(struct comparison *c, int i, double share, double *derivative,
			       double *difference, struct error *err)
{
	double coarse, fine;

	if (derive(c, i, share, &coarse, err) != OK || derive(c, i, share / 4, &fine, err) != OK)
		return FAIL;
	*derivative = (16 * fine - coarse) / 15;
	*difference = fabs(fine - coarse);
	return OK;
}

/*
 * Where the loss bends sharply, smaller steps are better, and where it hardly changes, larger ones,
 * since the loss is rounded: those whose derivatives differ least.
 */
static enum status refine(struct comparison *c, int i, struct error *err)
{
	double small, large, of_small, of_large;

	if (extrapolate(c, i, STEP, &small, &of_small, err) != OK ||
	    extrapolate(c, i, 64 * STEP, &large, &of_large, err) != OK)
		return FAIL;
	c->derivatives[i] = of_small < of_large ? small : large;
	return restore(c, err);
}

static double product_of(const double *a, const double *b, int64_t n)
{
	double sum = 0;

	for (int64_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

/* The error of both derivatives of a tensor, as a share of its gradient's length. */
static enum status gradient_error(struct comparison *c, int index, double floor, struct worst *w,
				  double *size, struct error *err)
{
	const struct param *p = &c->engine->rows.params->list[index];
	double *gradient = gradient_of(c, index, err);
	enum status status = OK;

	if (!gradient)
		return FAIL;
	*size = length_of(gradient, p->count);
	for (int i = DIRECTIONS * index; w && status == OK && i < DIRECTIONS * (index + 1); i++) {
		const double slope = product_of(gradient, c->directions[i], p->count);
		const double scale = fmax(*size, floor);

		if (!is_taken(c, i))
			continue;
		if (c->tolerance == &in_double &&
		    !(fabs(slope - c->derivatives[i]) <= SURE * scale))
			status = refine(c, i, err);
		note(w, fabs(slope - c->derivatives[i]) / scale, p->name);
	}
	free(gradient);
	return status;
}

static enum status compare_gradients(struct comparison *c, struct error *err)
{
	struct worst w = { 0 };
	double size, largest = 0;

	for (int i = 0; i < c->n; i++) {
		if (gradient_error(c, i, 0, NULL, &size, err) != OK)
			return FAIL;
		largest = isfinite(size) ? fmax(largest, size) : largest;
	}
	/* One that differs is enough: to be sure of each takes long where all do. */
	for (int i = 0; i < c->n && !(w.error > c->tolerance->of[GRADIENTS]); i++)
		if (gradient_error(c, i, c->tolerance->small_gradient * largest, &w, &size, err) !=
		    OK)
			return FAIL;
	return tell(c, GRADIENTS, &w, err);
}

/* -------------------------------------------------------------------- routes */

/* The oracle takes the engine's choice of keys, which must be one of the largest weights. */
static enum status follow_routes(const struct comparison *c, struct error *err)
{
	c->oracle->routes = (const int32_t *const *)c->engine->routes;
	c->oracle->routed = c->engine->k;
	return oracle_run(c->oracle, err);
}

static bool same_routes(const struct comparison *c, const struct reduced_engine *a,
			const struct reduced_engine *b)
{
	const size_t bytes = (size_t)(REDUCED_ROWS * c->T * a->k) * sizeof(**a->routes);

	for (int64_t i = 0; a->routes && i < c->model->layers; i++)
		if (a->routes[i] && memcmp(a->routes[i], b->routes[i], bytes) != 0)
			return false;
	return true;
}

static enum status compare_routes(const struct comparison *c, struct error *err)
{
	const struct worst w = { c->oracle->route_gap, "keys left out and chosen" };

	return c->engine->routes ? tell(c, ROUTES, &w, err) : OK;
}

/* ------------------------------------------------------------------- opening */

static bool has_folded_routing(const struct auditor *a)
{
	const struct graph *g = a->training.g;

	for (int i = 0; i < g->n_tensors; i++)
		if (strstr(g->tensors[i]->name, "cross_folded"))
			return true;
	return false;
}

static enum status switch_off(struct config *c, const char *symbol, struct error *err)
{
	return config_raw(c, symbol) ? config_set(c, symbol, "n", err) : OK;
}

/* The form that the step trains. */
static enum status choose_form(struct comparison *c, struct error *err)
{
	return has_folded_routing(c->a) ? OK : switch_off(c->config, "CROSS_FOLDED", err);
}

static enum status find_oracle(struct comparison *c, struct error *err)
{
	const struct model *m = c->a->model;
	char missing[64], detail[160];

	if (oracle_create(&c->oracle, c->config, REDUCED_ROWS, c->T, missing, err) != OK)
		return FAIL;
	for (int i = 0; i < m->n_mechanisms && !missing[0]; i++)
		if (!oracle_knows(c->oracle, m->mechanism[i]->symbol))
			snprintf(missing, sizeof(missing), "mechanism '%.40s'",
				 m->mechanism[i]->name);
	c->missing = missing[0] != '\0';
	if (!c->missing)
		return OK;
	snprintf(detail, sizeof(detail), "%s brings none: its formula is not compared", missing);
	return auditor_add(c->a, "oracle", "no oracle", true, detail, err);
}

static void draw_batch(struct comparison *c)
{
	const struct rng_key key = rng_key(SEED, "audit/oracle");

	for (int64_t i = 0; i < REDUCED_ROWS * (c->T + 1); i++)
		c->row[i] = (int32_t)rng_below(key, (uint64_t)i, (uint64_t)c->model->vocab);
	oracle_rows(c->oracle, c->row);
	for (int64_t i = 0; i < REDUCED_ROWS * c->T; i++) {
		c->token[i] = c->row[i / c->T * (c->T + 1) + i % c->T];
		c->target[i] = c->row[i / c->T * (c->T + 1) + i % c->T + 1];
		if (i % UNSCORED == UNSCORED - 1)
			c->target[i] = c->oracle->targets[i] = -1;
	}
}

/* Gives the same weights to engine and oracle; the first engine draws them. */
static enum status share_weights(struct comparison *c, struct error *err)
{
	struct params *p = c->engine->rows.params;
	const bool first = !c->weights;

	if (first) {
		c->n = p->n;
		c->weights = calloc((size_t)p->n, sizeof(*c->weights));
		c->directions = calloc(DIRECTIONS * (size_t)p->n, sizeof(*c->directions));
		c->derivatives = calloc(DIRECTIONS * (size_t)p->n, sizeof(*c->derivatives));
		if (!c->weights || !c->directions || !c->derivatives)
			return fail_memory(err, "audit", (size_t)p->n * sizeof(*c->weights));
	}
	for (int i = 0; i < p->n; i++) {
		const int64_t count = p->list[i].count;

		if (first) {
			c->weights[i] = malloc((size_t)count * sizeof(**c->weights));
			if (!c->weights[i])
				return fail_memory(err, "audit", (size_t)count * sizeof(double));
			reduced_weights(&p->list[i], SEED, c->weights[i]);
			if (!c->missing && oracle_add_weight(c->oracle, p->list[i].name,
							     c->weights[i], count, err) != OK)
				return FAIL;
		}
		if (param_set(p, i, c->weights[i], err) != OK)
			return FAIL;
	}
	return OK;
}

static enum status open_engine(struct comparison *c, struct reduced_engine *e,
			       const struct backend *backend, enum dtype type, struct error *err)
{
	c->engine = e;
	e->drops = c->drops;
	e->rows.program = c->a->options->program;
	e->rows.rows = REDUCED_ROWS;
	e->rows.length = c->T;
	e->rows.tokens = c->token;
	e->rows.targets = c->target;
	if (auditor_can_decode(c->a, c->model, c->T, &e->rows.decodes, err) != OK)
		return FAIL;
	if (reduced_engine_open(e, c->model, type, backend, err) != OK ||
	    share_weights(c, err) != OK || reduced_engine_train(e, err) != OK)
		return FAIL;
	return c->missing ? OK : reduced_engine_score(e, err);
}

/* ---------------------------------------------------------------------- all */

static enum status compare(struct comparison *c, struct error *err)
{
	if (!c->missing && (compare_routes(c, err) != OK || compare_logits(c, err) != OK ||
			    compare_losses(c, err) != OK || compare_graphs(c, err) != OK))
		return FAIL;
	return compare_gradients(c, err);
}

/* *known: there is something to compare with. */
static enum status prepare_exact(struct comparison *c, bool *known, struct error *err)
{
	struct error why;

	*known = true;
	if (draw_directions(c, err) != OK)
		return FAIL;
	if (c->missing && reduced_engine_detaches(c->engine)) {
		*known = false;
		return auditor_add(c->a, "oracle", "gradients in double", true,
				   "not compared: something is constant on purpose, which only an "
				   "oracle can declare",
				   err);
	}
	if (!c->missing && follow_routes(c, &why) != OK) {
		*known = false;
		if (is_lack_of_memory(&why))
			return fail(err, "%s", why.text);
		return auditor_add(c->a, "oracle", "parameters", false, why.text, err);
	}
	return differentiate(c, err);
}

static enum status compare_all(struct comparison *c, struct error *err)
{
	const struct auditor *a = c->a;
	const struct backend cpu = backend_cpu(a->backend->threads);
	struct reduced_engine exact = { .n_losses = 0 }, own = { .n_losses = 0 };
	enum status status = FAIL;
	bool known = false;

	c->tolerance = &in_double;
	c->precision = "double";
	if (open_engine(c, &exact, &cpu, F64, err) == OK && prepare_exact(c, &known, err) == OK)
		status = known ? compare(c, err) : OK;
	if (status == OK && known && a->params->type != F64) {
		c->tolerance = precision_rounds(a->backend->precision) ? &in_bfloat16 : &in_float;
		c->precision = precision_names[a->backend->precision];
		status = open_engine(c, &own, a->backend, a->params->type, err);
		if (status == OK && !c->missing && !same_routes(c, &exact, &own) &&
		    (follow_routes(c, err) != OK || differentiate(c, err) != OK))
			status = FAIL;
		if (status == OK)
			status = compare(c, err);
	}
	reduced_engine_close(&exact);
	reduced_engine_close(&own);
	return status;
}

/* Training once more, as it is configured. */
static enum status compare_dropped(struct comparison *c, struct error *err)
{
	const char *const rate = config_raw(c->a->config, "DROPOUT");
	const struct model_task task = { 0 };

	if (!rate || config_set(c->config, "DROPOUT", rate, err) != OK)
		return rate ? FAIL : OK;
	c->oracle->dropout = config_real(c->config, "DROPOUT");
	c->drops = c->oracle->dropout > 0;
	if (!c->drops)
		return OK;
	model_free(c->model);
	c->model = NULL;
	if (model_read(&c->model, c->config, &task, err) != OK)
		return FAIL;
	return compare_all(c, err);
}

/* A variant may accept only sizes that the reduced model does not have. */
static enum status tell_refusal(const struct comparison *c, const struct error *why,
				struct error *err)
{
	char detail[160];

	if (c->missing)
		return OK; /* "no oracle" was said */
	snprintf(detail, sizeof(detail), "the reduced model is refused: %.120s", why->text);
	return auditor_add(c->a, "oracle", "no oracle", true, detail, err);
}

/* Without a model there is nothing to compare. */
static enum status read_reduced(struct comparison *c, struct error *err)
{
	const struct model_task task = { 0 };
	struct error why;

	model_free(c->model);
	c->model = NULL;
	if (model_read(&c->model, c->config, &task, &why) == OK)
		return OK;
	return is_lack_of_memory(&why) ? fail(err, "%s", why.text) : tell_refusal(c, &why, err);
}

static enum status open_model(struct comparison *c, struct error *err)
{
	const size_t tokens = (size_t)(REDUCED_ROWS * (c->T + 1));

	if (find_oracle(c, err) != OK || choose_form(c, err) != OK || read_reduced(c, err) != OK)
		return FAIL;
	c->row = malloc(tokens * sizeof(*c->row));
	c->token = malloc(tokens * sizeof(*c->token));
	c->target = malloc(tokens * sizeof(*c->target));
	if (!c->row || !c->token || !c->target)
		return fail_memory(err, "audit", tokens * sizeof(*c->row));
	if (c->model)
		draw_batch(c);
	return OK;
}

static void free_weights(struct comparison *c)
{
	for (int i = 0; i < c->n && c->weights; i++)
		free(c->weights[i]);
	for (int i = 0; i < c->n * DIRECTIONS && c->directions; i++)
		free(c->directions[i]);
	free(c->weights);
	free(c->directions);
	free(c->derivatives);
	c->weights = c->directions = NULL;
	c->derivatives = NULL;
}

static void close_comparison(struct comparison *c)
{
	free_weights(c);
	free(c->row);
	free(c->token);
	free(c->target);
	oracle_destroy(c->oracle);
	model_free(c->model);
	config_free(c->config);
}

static enum status compare_own_graphs(struct comparison *c, struct error *err)
{
	const struct backend cpu = backend_cpu(c->a->backend->threads);
	struct reduced_engine e = { .n_losses = 0 };
	enum status status = FAIL;

	c->tolerance = &in_double;
	c->precision = "double";
	if (open_engine(c, &e, &cpu, F64, err) == OK && reduced_engine_score(&e, err) == OK)
		status = compare_graphs(c, err);
	reduced_engine_close(&e);
	return status;
}

/* Without an oracle: all graphs as they are; for derivatives nothing that is constant on purpose.
 */
static enum status compare_without(struct comparison *c, struct error *err)
{
	if (!c->missing || !c->model)
		return OK;
	if (compare_own_graphs(c, err) != OK || switch_off(c->config, "RECIP_DETACH", err) != OK ||
	    switch_off(c->config, "RA_MLA_MLP_CROSS_TOKEN", err) != OK)
		return FAIL;
	free_weights(c);
	return read_reduced(c, err);
}

static enum status compare_parts(struct comparison *c, struct error *err)
{
	if (compare_without(c, err) != OK)
		return FAIL;
	if (!c->model)
		return OK;
	return compare_all(c, err) == OK ? compare_dropped(c, err) : FAIL;
}

enum status audit_oracle(struct auditor *a, struct error *err)
{
	struct comparison c = { .a = a,
				.T = a->model->length < REDUCED_LENGTH ? a->model->length
								       : REDUCED_LENGTH };
	enum status status = FAIL;

	if (config_copy(&c.config, a->config, err) != OK)
		return FAIL;
	if (reduce_config(c.config, a->model, err) == OK && open_model(&c, err) == OK)
		status = compare_parts(&c, err);
	close_comparison(&c);
	return status;
}
