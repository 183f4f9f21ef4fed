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
	struct optimizer *optimizer;
};

static enum status tell(const struct auditor *a, const char *subject, bool passed,
			const char *detail, struct error *err)
{
	return audit_add(a->report, "training", subject, passed, detail, err);
}

/* ------------------------------------------------------------------- values */

/* Sets every entry of a parameter, or of its gradient, to one value; `host` holds a piece. */
static void fill(const struct auditor *a, int i, bool gradient, const char *host)
{
	const size_t size = dtype_size(a->params->type), most = PARAM_CHUNK * size;
	const size_t end = (size_t)a->params->list[i].count * size;
	char *device = gradient ? param_grad(a->params, i) : param_data(a->params, i);

	for (size_t at = 0; at < end; at += most)
		a->params->backend->upload(a->params->backend, device + at, host,
					   end - at < most ? end - at : most);
}

static enum status fill_all(const struct auditor *a, bool gradient, double value, struct error *err)
{
	const size_t bytes = PARAM_CHUNK * dtype_size(a->params->type);
	char *host = malloc(bytes);

	if (!host)
		return fail_memory(err, "training audit", bytes);
	for (int64_t i = 0; i < PARAM_CHUNK; i++)
		if (a->params->type == F64)
			((double *)host)[i] = value;
		else
			((float *)host)[i] = (float)value;
	for (int i = 0; i < a->params->n; i++)
		fill(a, i, gradient, host);
	params_changed(a->params);
	free(host);
	return OK;
}

static void add_piece(void *context, int64_t first, int64_t n, double *values)
{
	double sum = *(double *)context;

	(void)first;
	for (int64_t i = 0; i < n; i++)
		sum += values[i];
	*(double *)context = sum;
}

/* The mean of a parameter, which was filled with ones, after an update. */
static enum status mean_of(const struct auditor *a, int i, double *mean, struct error *err)
{
	double sum = 0;

	if (param_visit(a->params, i, false, add_piece, &sum, err) != OK)
		return FAIL;
	*mean = sum / (double)a->params->list[i].count;
	return OK;
}

/* The first update of an optimizer that remembers nothing. */
static void first_update(const struct auditor *a, struct optim_report *report)
{
	const struct backend *b = a->params->backend;
	const struct optim_scalars none = { 0 };
	const struct optim_tensor *tensors;
	int n;

	tensors = optimizer_tensors(a->optimizer, &n);
	for (int i = 0; i < n; i++)
		b->zero(b, tensors[i].data,
			(size_t)tensors[i].param->count * dtype_size(a->params->type));
	optimizer_set_scalars(a->optimizer, &none);
	optimizer_update(a->optimizer, 1, RATE, report);
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
	first_update(a, &ignored);
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
	first_update(a, &report);
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

/* Names one row of each tensor, or one slice.  What is drawn depends on the name and the seed. */
static enum status name_rows(const struct auditor *a, struct params *rows, struct error *err)
{
	for (int i = 0; i < a->params->n; i++) {
		const struct param *p = &a->params->list[i];
		int64_t dim[TENSOR_MAX_DIMS];
		int ignored;

		memcpy(dim, p->dim, sizeof(dim));
		if (p->ndim > 1)
			dim[0] = 1;
		if (params_name(rows, p->name, &p->init, p->ndim, dim, &ignored, err) != OK)
			return FAIL;
	}
	return params_allocate(rows, a->params->backend, false, err);
}

/* Draws all rows with this seed; the caller frees them. */
static enum status draw_rows(struct params *rows, uint64_t seed, char **host, struct error *err)
{
	const size_t bytes = (size_t)rows->total * dtype_size(rows->type);

	*host = malloc(bytes);
	if (!*host)
		return fail_memory(err, "training audit", bytes);
	if (params_initialise(rows, seed, err) != OK)
		return FAIL;
	rows->backend->download(rows->backend, *host, rows->data, bytes);
	return OK;
}

/* The first tensor that is drawn, but the same with both seeds; NULL: there is none. */
static const char *drawn_alike(const struct params *rows, const char *mine, const char *other)
{
	const size_t size = dtype_size(rows->type);

	for (int i = 0; i < rows->n; i++) {
		const struct param *p = &rows->list[i];
		const size_t at = (size_t)p->offset * size;

		if (p->init.kind != INIT_CONSTANT && p->init.value != 0 &&
		    memcmp(mine + at, other + at, (size_t)p->count * size) == 0)
			return p->name;
	}
	return NULL;
}

/* Another seed must draw other weights, in every tensor. */
static enum status audit_initial(const struct auditor *a, struct error *err)
{
	char *mine = NULL, *other = NULL, detail[160] = "another seed draws others";
	const char *alike = NULL;
	enum status status = FAIL;
	struct params *rows;

	if (params_create(&rows, a->params->type, err) != OK)
		return FAIL;
	if (name_rows(a, rows, err) == OK && draw_rows(rows, a->setup->seed, &mine, err) == OK &&
	    draw_rows(rows, a->setup->seed + 1, &other, err) == OK) {
		alike = drawn_alike(rows, mine, other);
		if (alike)
			snprintf(detail, sizeof(detail), "another seed draws the same %s", alike);
		status = tell(a, "initial weights", !alike, detail, err);
	}
	free(mine);
	free(other);
	params_destroy(rows);
	return status;
}

/* ---------------------------------------------------------------------- all */

static enum status open_auditor(struct auditor *a, struct error *err)
{
	const struct run_setup *setup = a->setup;

	if (params_create(&a->params, precision_type(setup->precision), err) != OK ||
	    run_setup_name_parameters(setup, a->params, err) != OK)
		return FAIL;
	if (params_allocate(a->params, &setup->backend, true, err) != OK)
		return FAIL;
	return optimizer_create(&a->optimizer, &setup->optim, a->params, err);
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
	optimizer_destroy(a.optimizer);
	params_destroy(a.params);
	return status;
}
