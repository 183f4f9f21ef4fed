#include "models/audit/auditor.h"

#include <math.h>
#include <stdlib.h>

#include "core/backend/cpu/cpu.h"

/*
 * How much the logits may differ from the logits in double, as a share.  The models of audit_test
 * differ by at most 4e-7 in float; sums in bfloat16 would differ by more than 1e-3.
 */
#define FLOAT_ERROR 1e-4
#define BFLOAT16_ERROR 0.1 /* products of bfloat16 numbers, summed in float */

struct copying {
	struct params *to;
	int index;
	enum status status;
	struct error *err;
};

static void copy_piece(void *context, int64_t first, int64_t n, double *values)
{
	struct copying *c = context;

	if (c->status == OK)
		c->status = param_set_part(c->to, c->index, first, n, values, c->err);
}

static enum status copy_as_double(const struct params *from, struct params *to, struct error *err)
{
	for (int i = 0; i < from->n; i++) {
		struct copying c = { to, params_find(to, from->list[i].name), OK, err };

		if (c.index >= 0 &&
		    (param_visit(from, i, false, copy_piece, &c, err) != OK || c.status != OK))
			return FAIL;
	}
	return OK;
}

/* The logits of a small batch with these parameters, as doubles; the caller frees them. */
static enum status small_logits(const struct auditor *a, struct params *params,
				const struct backend *backend, double **logits, size_t *n,
				struct error *err)
{
	const struct model_use use = { .purpose = MODEL_LOGITS,
				       .rows = TRAINING_ROWS,
				       .length = auditor_training_length(a),
				       .program = a->options->program };
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
 * The lowest tenth of the tokens has at most this relative error in its logits.  Rounding may
 * decide which tokens a sparse mechanism reads, so some tokens may differ by more; wrong sums
 * change every token.  Overwrites `x`.
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

enum status audit_precision(struct auditor *a, struct error *err)
{
	const double most = precision_rounds(a->backend->precision) ? BFLOAT16_ERROR : FLOAT_ERROR;
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
		 "the logits differ from those in double by %.1e; %g is allowed", error, most);
	return auditor_add(a, "training", "precision", error <= most, detail, err);
}
