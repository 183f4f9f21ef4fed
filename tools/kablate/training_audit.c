#include "tools/kablate/training_audit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RATE 0.5       /* large, so that decay shows */
#define TOLERANCE 1e-3 /* of a movement, in float */

struct auditor {
	const struct run_setup *setup;
	struct audit_report *report;
	struct params *params;
};

static enum status tell(const struct auditor *a, const char *subject, bool passed,
			const char *detail, struct error *err)
{
	return audit_add(a->report, "training", subject, passed, detail, err);
}

/* ------------------------------------------------------------------- values */

/* Sets every entry of a parameter, or of its gradient, to one value. */
static enum status fill(const struct auditor *a, int i, bool gradient, double value,
			struct error *err)
{
	const int64_t n = a->params->list[i].count;
	const size_t size = dtype_size(a->params->type);
	char *host = malloc((size_t)n * size);

	if (!host)
		return fail_memory(err, "training audit", (size_t)n * size);
	for (int64_t j = 0; j < n; j++)
		if (a->params->type == F64)
			((double *)host)[j] = value;
		else
			((float *)host)[j] = (float)value;
	a->params->backend->upload(a->params->backend,
				   gradient ? param_grad(a->params, i) : param_data(a->params, i),
				   host, (size_t)n * size);
	params_changed(a->params);
	free(host);
	return OK;
}

static enum status fill_all(const struct auditor *a, bool gradient, double value, struct error *err)
{
	for (int i = 0; i < a->params->n; i++)
		if (fill(a, i, gradient, value, err) != OK)
			return FAIL;
	return OK;
}

/* The mean of a parameter, which was filled with ones, after an update. */
static enum status mean_of(const struct auditor *a, int i, double *mean, struct error *err)
{
	const int64_t n = a->params->list[i].count;
	double *values = malloc((size_t)n * sizeof(*values)), sum = 0;
	enum status status;

	if (!values)
		return fail_memory(err, "training audit", (size_t)n * sizeof(*values));
	status = param_get(a->params, i, false, values, err);
	for (int64_t j = 0; j < n && status == OK; j++)
		sum += values[j];
	*mean = sum / (double)n;
	free(values);
	return status;
}

/* The first update of an optimizer that remembers nothing. */
static enum status first_update(const struct auditor *a, struct optim_report *report,
				struct error *err)
{
	struct optimizer *optimizer;

	if (optimizer_create(&optimizer, &a->setup->optim, a->params, err) != OK)
		return FAIL;
	optimizer_update(optimizer, 1, RATE, report);
	optimizer_destroy(optimizer);
	return OK;
}

/* ------------------------------------------------------------------- groups */

static bool should_decay(const struct auditor *a, const struct param *p)
{
	const char *group = config_raw(a->setup->config, "DECAY_GROUP");

	if (group && strcmp(group, "all") == 0)
		return true;
	return p->ndim >= 2 && !p->init.embedding;
}

static enum status audit_decay(const struct auditor *a, struct error *err)
{
	const double decay = config_real(a->setup->config, "WEIGHT_DECAY");
	struct optim_report ignored;
	char detail[320] = "";
	int group = 0;

	if (fill_all(a, false, 1, err) != OK || fill_all(a, true, 0, err) != OK)
		return FAIL;
	if (first_update(a, &ignored, err) != OK)
		return FAIL;
	for (int i = 0; i < a->params->n; i++) {
		const struct param *p = &a->params->list[i];
		double kept;

		if (mean_of(a, i, &kept, err) != OK)
			return FAIL;
		group += should_decay(a, p);
		if ((kept != 1) != (should_decay(a, p) && decay > 0))
			snprintf(detail, sizeof(detail), "%s %s", p->name,
				 kept != 1 ? "decays, but is not of the group that decays"
					   : "does not decay");
	}
	if (detail[0])
		return tell(a, "decay", false, detail, err);
	snprintf(detail, sizeof(detail), "WEIGHT_DECAY=%g acts on %d of %d tensors", decay, group,
		 a->params->n);
	return tell(a, "decay", true, detail, err);
}

/* ------------------------------------------------------- rates and clipping */

static bool moves_alike(const struct auditor *a)
{
	return a->setup->optim.kind == OPTIM_ADAMW || a->setup->optim.kind == OPTIM_SGD;
}

/* After one update from ones, with the same gradient everywhere. */
static enum status audit_rates(const struct auditor *a, struct error *err)
{
	const double decay = config_real(a->setup->config, "WEIGHT_DECAY");
	double first = 0, moved;
	char detail[320] = "";

	for (int i = 0; i < a->params->n && moves_alike(a); i++) {
		const struct param *p = &a->params->list[i];

		if (mean_of(a, i, &moved, err) != OK)
			return FAIL;
		moved = (should_decay(a, p) ? 1 - RATE * decay : 1) - moved;
		if (i == 0)
			first = moved;
		if (!(fabs(moved - first) <= TOLERANCE * fabs(first)) || first == 0)
			snprintf(detail, sizeof(detail),
				 "with the same gradient %s moves by %.3g, %s by %.3g",
				 a->params->list[0].name, first, p->name, moved);
	}
	if (detail[0])
		return tell(a, "rate", false, detail, err);
	return tell(a, "rate", true,
		    moves_alike(a) ? "one learning rate for all tensors"
				   : "this optimizer has rates of its own per tensor",
		    err);
}

static enum status audit_clipping(const struct auditor *a, struct error *err)
{
	const double clip = config_real(a->setup->config, "GRAD_CLIP");
	const double norm = 10 * (clip > 0 ? clip : 1);
	const double entry = norm / sqrt((double)params_count(a->params));
	struct optim_report report;
	char detail[160];

	if (fill_all(a, false, 1, err) != OK || fill_all(a, true, entry, err) != OK)
		return FAIL;
	if (first_update(a, &report, err) != OK)
		return FAIL;
	snprintf(detail, sizeof(detail), "GRAD_CLIP=%g, and a gradient of norm %.3g is %s", clip,
		 norm, report.clipped ? "clipped" : "not clipped");
	if (tell(a, "clipping", report.clipped == (clip > 0), detail, err) != OK)
		return FAIL;
	return audit_rates(a, err);
}

/* ----------------------------------------------------------------- schedule */

/* The formula of CONFIG_SCHEDULE. */
static double expected_rate(struct config *c, int64_t t)
{
	const double top = config_real(c, "LEARNING_RATE");
	const int64_t warmup = config_int(c, "WARMUP_ITERS"), n = config_int(c, "GPT2_MAX_ITERS");
	double bottom, phase;

	if (t <= warmup)
		return top * (double)t / (double)warmup;
	if (strcmp(config_text(c, "SCHEDULE"), "constant") == 0)
		return top;
	bottom = config_real(c, "MIN_LEARNING_RATE");
	phase = t >= n ? 1 : (double)(t - warmup) / (double)(n - warmup);
	return bottom + (top - bottom) * (1 + cos(M_PI * phase)) / 2;
}

static enum status audit_schedule(const struct auditor *a, struct error *err)
{
	struct config *c = a->setup->config;
	const int64_t n = config_int(c, "GPT2_MAX_ITERS"), warmup = config_int(c, "WARMUP_ITERS");
	const int64_t updates[] = { 1,	   warmup / 2, warmup,	   warmup + 1, n / 4,
				    n / 2, 3 * n / 4,  9 * n / 10, n - 1,      n };
	char detail[160];

	for (size_t i = 0; i < sizeof(updates) / sizeof(*updates); i++) {
		const int64_t t = updates[i] < 1 ? 1 : updates[i];
		const double rate = schedule_rate(&a->setup->train.schedule, t);

		if (fabs(rate - expected_rate(c, t)) <= 1e-9 * fabs(expected_rate(c, t)))
			continue;
		snprintf(detail, sizeof(detail), "the rate of update %lld is %g, not %g",
			 (long long)t, rate, expected_rate(c, t));
		return tell(a, "schedule", false, detail, err);
	}
	if (a->setup->train.iterations != n) {
		snprintf(detail, sizeof(detail),
			 "%lld updates are planned, not GPT2_MAX_ITERS=%lld",
			 (long long)a->setup->train.iterations, (long long)n);
		return tell(a, "schedule", false, detail, err);
	}
	snprintf(detail, sizeof(detail), "%s from %g to %g in %lld updates",
		 config_text(c, "SCHEDULE"), config_real(c, "LEARNING_RATE"), expected_rate(c, n),
		 (long long)n);
	return tell(a, "schedule", true, detail, err);
}

/* --------------------------------------------------------------- parameters */

static enum status audit_count(const struct auditor *a, struct error *err)
{
	struct description d;
	int64_t sum = 0;
	char detail[160];

	if (run_setup_describe(a->setup, 0, &d, err) != OK)
		return FAIL;
	for (int i = 0; i < a->params->n; i++) {
		int64_t count = 1;

		for (int j = 0; j < a->params->list[i].ndim; j++)
			count *= a->params->list[i].dim[j];
		sum += count;
	}
	snprintf(detail, sizeof(detail), "%lld are reported, but the tensors hold %lld",
		 (long long)d.parameters, (long long)sum);
	return tell(a, "parameters", d.parameters == sum, detail, err);
}

/* Another seed must draw other weights. */
static enum status audit_initial(const struct auditor *a, struct error *err)
{
	char mine[SHA256_HEX_SIZE], other[SHA256_HEX_SIZE];
	bool differ;

	if (params_initialise(a->params, a->setup->seed, err) != OK ||
	    params_hash(a->params, mine, err) != OK ||
	    params_initialise(a->params, a->setup->seed + 1, err) != OK ||
	    params_hash(a->params, other, err) != OK)
		return FAIL;
	differ = strcmp(mine, other) != 0;
	return tell(a, "initial weights", differ,
		    differ ? "another seed draws others" : "another seed draws the same", err);
}

/* ---------------------------------------------------------------------- all */

static enum status name_parameters(const struct auditor *a, struct error *err)
{
	enum status status;
	struct token_io io;
	struct graph *g;

	if (graph_create(&g, a->params, true, err) != OK)
		return FAIL;
	model_build(a->setup->model, g, MODEL_TRAIN, 1, 1, &io);
	status = graph_finish(g, err);
	graph_destroy(g);
	return status;
}

static enum status open_auditor(struct auditor *a, struct error *err)
{
	const struct run_setup *setup = a->setup;

	if (params_create(&a->params, precision_type(setup->precision), err) != OK ||
	    name_parameters(a, err) != OK)
		return FAIL;
	return params_allocate(a->params, &setup->backend, true, err);
}

enum status training_audit(const struct run_setup *setup, struct audit_report *report,
			   struct error *err)
{
	struct auditor a = { .setup = setup, .report = report };
	enum status status = FAIL;

	if (open_auditor(&a, err) == OK && audit_decay(&a, err) == OK &&
	    audit_clipping(&a, err) == OK && audit_schedule(&a, err) == OK &&
	    audit_count(&a, err) == OK)
		status = audit_initial(&a, err);
	params_destroy(a.params);
	return status;
}
