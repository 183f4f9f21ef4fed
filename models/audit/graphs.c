#include "models/audit/graphs.h"

#include <math.h>
#include <stdlib.h>

#include "models/audit/auditor.h"
#include "models/decode.h"

/*
 * How much the nll of a target may differ between two graphs.  Seen in the models of models/vectors
 * and in steps of the defconfigs: 3e-6 in float (strengthened weights; a nll is about 5), and 0.04
 * with products in bfloat16, where decoding rounds other sums.
 */
#define DOUBLE_DIFFERENCE 1e-9
#define FLOAT_DIFFERENCE 1e-4
#define BFLOAT16_DIFFERENCE 0.3

const char *const scoring_names[SCORINGS] = {
	[BY_TRAINING] = "training",
	[BY_EVALUATION] = "evaluation",
	[BY_LOGITS] = "logits",
	[BY_DECODING] = "decoding",
};

static const struct run plain_run = { .seed = 1, .iteration = 1 };

struct row_weights scored_rows_weights(const struct scored_rows *r)
{
	int64_t scored = 0;

	for (int64_t i = 0; i < r->rows * r->length; i++)
		scored += r->targets[i] >= 0;
	return (struct row_weights){ 1 / fmax((double)scored, 1),
				     1 / (double)(r->rows * r->length) };
}

/* Training or evaluation. */
static enum status score_by_losses(const struct scored_rows *r, enum model_purpose purpose,
				   double *nll, struct error *err)
{
	const struct model_use use = {
		.purpose = purpose, .rows = r->rows, .length = r->length, .program = r->program
	};
	const struct row_weights w = scored_rows_weights(r);
	struct token_program t;
	enum status status;

	if (model_program_open(&t, r->model, &use, r->params, r->backend, err) != OK)
		return FAIL;
	token_program_feed(&t, r->tokens, r->targets);
	token_program_weigh(&t, w.target, w.token);
	status = program_run(t.p, &plain_run, err);
	if (status == OK)
		program_read(t.p, t.io.nll, nll);
	token_program_close(&t);
	return status;
}

enum status scored_rows_logits(const struct scored_rows *r, double *logits, struct error *err)
{
	const struct model_use use = {
		.purpose = MODEL_LOGITS, .rows = r->rows, .length = r->length, .program = r->program
	};
	struct token_program t;
	enum status status;

	if (model_program_open(&t, r->model, &use, r->params, r->backend, err) != OK)
		return FAIL;
	token_program_feed(&t, r->tokens, NULL);
	status = program_run(t.p, &plain_run, err);
	if (status == OK)
		program_read(t.p, graph_find_output(t.g, "logits")->tensor, logits);
	token_program_close(&t);
	return status;
}

/* logsumexp(logits) - logits[target] */
static double surprise(const double *logits, int64_t n, int32_t target)
{
	double most = -INFINITY, sum = 0;

	if (target < 0)
		return 0;
	for (int64_t i = 0; i < n; i++)
		most = fmax(most, logits[i]);
	for (int64_t i = 0; i < n; i++)
		sum += exp(logits[i] - most);
	return most + log(sum) - logits[target];
}

static enum status score_by_logits(const struct scored_rows *r, double *nll, struct error *err)
{
	const int64_t n = r->rows * r->length, V = r->model->vocab;
	double *logits = malloc((size_t)(n * V) * sizeof(*logits));
	enum status status;

	if (!logits)
		return fail_memory(err, "audit", (size_t)(n * V) * sizeof(*logits));
	status = scored_rows_logits(r, logits, err);
	for (int64_t i = 0; i < n && status == OK; i++)
		nll[i] = surprise(logits + i * V, V, r->targets[i]);
	free(logits);
	return status;
}

/* Feeds position t of every row; numbers[2 rows] holds tokens and targets. */
static enum status decode_position(const struct scored_rows *r, struct decoder *d, int64_t t,
				   int32_t *numbers, double *nll, double *column, struct error *err)
{
	for (int64_t row = 0; row < r->rows; row++) {
		numbers[row] = r->tokens[row * r->length + t];
		numbers[r->rows + row] = r->targets[row * r->length + t];
	}
	if (decoder_feed(d, 1, numbers, numbers + r->rows, err) != OK)
		return FAIL;
	decoder_output(d, "nll", column);
	for (int64_t row = 0; row < r->rows; row++)
		nll[row * r->length + t] = column[row];
	return OK;
}

static enum status score_by_decoding(const struct scored_rows *r, double *nll, struct error *err)
{
	int32_t *numbers = malloc(2 * (size_t)r->rows * sizeof(*numbers));
	double *column = malloc((size_t)r->rows * sizeof(*column));
	struct decoder *d = NULL;
	enum status status = FAIL;

	if (!numbers || !column)
		fail_memory(err, "audit", (size_t)r->rows * sizeof(*column));
	else
		status = decoder_create(&d, r->model, r->params, r->backend, MODEL_EVAL, r->rows,
					r->length, err);
	for (int64_t t = 0; t < r->length && status == OK; t++)
		status = decode_position(r, d, t, numbers, nll, column, err);
	decoder_destroy(d);
	free(column);
	free(numbers);
	return status;
}

enum status scored_rows_nll(const struct scored_rows *r, enum scoring how, double *nll,
			    struct error *err)
{
	if (how == BY_LOGITS)
		return score_by_logits(r, nll, err);
	if (how == BY_DECODING)
		return score_by_decoding(r, nll, err);
	return score_by_losses(r, how == BY_TRAINING ? MODEL_TRAIN : MODEL_EVAL, nll, err);
}

double nll_difference(const double *a, const double *b, int64_t n)
{
	double most = 0;

	for (int64_t i = 0; i < n; i++)
		most = isfinite(a[i]) && isfinite(b[i]) ? fmax(most, fabs(a[i] - b[i])) : INFINITY;
	return most;
}

double scoring_tolerance(enum dtype type, enum precision precision)
{
	if (type == F64)
		return DOUBLE_DIFFERENCE;
	return precision_rounds(precision) ? BFLOAT16_DIFFERENCE : FLOAT_DIFFERENCE;
}

/* -------------------------------------------------------------------- audit */

static double allowed(const struct auditor *a)
{
	return scoring_tolerance(a->params->type, a->backend->precision);
}

static enum status compare_scorings(struct auditor *a, const struct scored_rows *r, double *nll,
				    struct error *err)
{
	const int64_t n = r->rows * r->length;
	double worst = 0;
	enum scoring other = BY_EVALUATION;
	char detail[160];

	if (scored_rows_nll(r, BY_TRAINING, nll, err) != OK)
		return FAIL;
	for (enum scoring how = BY_EVALUATION; how < SCORINGS; how++) {
		double difference;

		if (how == BY_DECODING && !r->decodes)
			continue;
		if (scored_rows_nll(r, how, nll + n, err) != OK)
			return FAIL;
		difference = nll_difference(nll, nll + n, n);
		if (difference > worst) {
			worst = difference;
			other = how;
		}
	}
	snprintf(detail, sizeof(detail),
		 "training and %s score a target differently by %.1e; %g is allowed%s",
		 scoring_names[other], worst, allowed(a), r->decodes ? "" : "; without decoding");
	return auditor_add(a, "training", "graphs", worst <= allowed(a), detail, err);
}

/* The step's model, but without dropout. */
static enum status read_undropped(struct auditor *a, struct model **m, struct error *err)
{
	struct config *c;
	enum status status = FAIL;

	if (config_copy(&c, a->config, err) != OK)
		return FAIL;
	if (config_set(c, "DROPOUT", "0", err) == OK)
		status = model_read(m, c, a->task, err);
	config_free(c);
	return status;
}

enum status audit_graphs(struct auditor *a, struct error *err)
{
	struct scored_rows r = {
		.params = a->params,
		.backend = a->backend,
		.program = a->options->program,
		.rows = TRAINING_ROWS,
		.length = auditor_training_length(a),
		.tokens = a->tokens,
	};
	const int64_t n = r.rows * r.length;
	int32_t *targets = malloc((size_t)n * sizeof(*targets));
	double *nll = malloc(2 * (size_t)n * sizeof(*nll));
	struct model *m = NULL;
	enum status status = FAIL;

	if (!targets || !nll) {
		fail_memory(err, "audit", 2 * (size_t)n * sizeof(*nll));
	} else if (read_undropped(a, &m, err) == OK) {
		auditor_draw_tokens(a, TARGETS, targets, n);
		r.model = m;
		r.targets = targets;
		status = auditor_can_decode(a, m, r.length, &r.decodes, err);
		if (status == OK)
			status = compare_scorings(a, &r, nll, err);
	}
	model_free(m);
	free(nll);
	free(targets);
	return status;
}
