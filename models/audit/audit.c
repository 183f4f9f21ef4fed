#include "models/audit/audit.h"

#include <math.h>
#include <stdlib.h>

#include "core/util/rng.h"
#include "models/audit/auditor.h"

/* ------------------------------------------------------------------ options */

/*
 * The causality audit may take about WORK multiplications and additions: a few seconds of one core.
 * A model that needs more for all positions is audited at fewer, spread from the first to the last.
 */
#define WORK 1e11
#define LEAST_POSITIONS 8
#define ROWS 4		      /* of the batch whose logits are compared */
#define MOST_LOGITS (1 << 26) /* a batch with more logits gets two rows, which are enough */

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
		.oracle = config_bool(c, "AUDIT_ORACLE"),
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

/* ------------------------------------------------------------------ weights */

struct scaling {
	struct params *params;
	int index;
	double factor;
	enum status status;
	struct error *err;
};

static void scale_piece(void *context, int64_t first, int64_t n, double *values)
{
	struct scaling *s = context;

	for (int64_t i = 0; i < n; i++)
		values[i] *= s->factor;
	if (s->status == OK)
		s->status = param_set_part(s->params, s->index, first, n, values, s->err);
}

/*
 * A leak must not drown in rounding.  So every matrix gets entries of the size
 * 1 / sqrt(inputs): then its outputs are as large as its inputs.  A causal model
 * is causal with any weights.
 */
static enum status strengthen(struct auditor *a, struct error *err)
{
	enum status status = OK;

	for (int i = 0; i < a->params->n && status == OK; i++) {
		const struct param *p = &a->params->list[i];
		struct scaling s = { a->params, i, 1, OK, err };
		double squares;

		if (p->role != PARAM_MATRIX)
			continue;
		if (auditor_squares(a, i, false, &squares, err) != OK)
			return FAIL;
		if (squares > 0)
			s.factor = sqrt((double)p->count / (squares * (double)p->dim[p->ndim - 2]));
		status = param_visit(a->params, i, false, scale_piece, &s, err);
		if (status == OK)
			status = s.status;
	}
	return status;
}

#define MOVED 0.02 /* standard deviation, as of GPT-2's matrices */

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

/* ---------------------------------------------------------------------- all */

static enum status allocate(struct auditor *a, struct error *err)
{
	const size_t n = (size_t)(a->options->rows * a->options->length);

	a->bytes = n * (size_t)a->model->vocab * dtype_size(a->params->type);
	a->by_any = calloc((size_t)a->params->n, sizeof(*a->by_any));
	a->by_main = calloc((size_t)a->params->n, sizeof(*a->by_main));
	a->sizes = calloc((size_t)a->params->n, sizeof(*a->sizes));
	a->tokens = malloc(n * sizeof(*a->tokens));
	a->changed = malloc(n * sizeof(*a->changed));
	a->base = malloc(a->bytes);
	a->now = malloc(a->bytes);
	if (!a->by_any || !a->by_main || !a->sizes || !a->tokens || !a->changed || !a->base ||
	    !a->now)
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
	    auditor_open(a, a->model, MODEL_TRAIN, &a->training, err) != OK ||
	    params_initialise(a->params, a->options->seed, err) != OK || move_zeros(a, err) != OK ||
	    allocate(a, err) != OK)
		return FAIL;
	auditor_draw_tokens(a, 0, a->tokens, a->options->rows * a->options->length);
	return OK;
}

static void close_auditor(struct auditor *a)
{
	free(a->by_any);
	free(a->by_main);
	free(a->sizes);
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

	if (o->oracle && audit_oracle(a, err) != OK)
		return FAIL;
	if (o->wiring && (audit_storage(a, err) != OK || audit_wiring(a, err) != OK ||
			  audit_mechanism_presence(a, err) != OK))
		return FAIL;
	if (o->one_batch && audit_one_batch(a, err) != OK)
		return FAIL;
	if ((o->wiring || o->training || o->causality) && strengthen(a, err) != OK)
		return FAIL;
	if (o->wiring && audit_mechanism_size(a, err) != OK)
		return FAIL;
	if (o->training && (audit_dropout(a, err) != OK || audit_precision(a, err) != OK ||
			    audit_graphs(a, err) != OK))
		return FAIL;
	if (o->causality && (audit_scored_causality(a, err) != OK ||
			     audit_causality(a, err) != OK || audit_state(a, err) != OK))
		return FAIL;
	return OK;
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
		.partial = !(options->oracle && options->wiring && options->causality &&
			     options->one_batch && options->data && options->training &&
			     options->pairing),
	};
	if (!options->oracle && !options->wiring && !options->causality && !options->one_batch &&
	    !options->training)
		return OK; /* and no memory is taken */
	if (open_auditor(&a, err) == OK)
		status = run_audits(&a, err);
	close_auditor(&a);
	return status;
}
