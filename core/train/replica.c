#include "core/train/replica.h"

#include <math.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <time.h>

double seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static enum status check_disk_budget(const struct replica *r, struct error *err)
{
	const double megabytes = checkpoint_bytes(&r->checkpoint) / 1e6;
	const int64_t budget = r->run->options.checkpoint_megabytes;

	if (budget == 0 || megabytes <= (double)budget)
		return OK;
	return fail(err, "CONFIG_CHECKPOINT_DISK_MB=%lld: one checkpoint takes %.1f MB",
		    (long long)budget, megabytes);
}

enum status replica_open(struct replica *r, int number, struct train_run *run,
			 struct params *params, struct optimizer *optimizer, struct error *err)
{
	const struct train_options *o = &run->options;

	*r = (struct replica){
		.run = run,
		.number = number,
		.backend = params->backend,
		.saved = -1,
		.loss = NAN,
		.validation = NAN,
		.state = { .best_iteration = -1, .best_loss = INFINITY },
		.checkpoint = {
			.run_dir = o->run_dir,
			.identity = o->identity,
			.about = o->about,
			.params = params,
			.optimizer = optimizer,
			.replica = number,
			.shards = o->shards,
			.keep = o->checkpoint_keep,
			.megabytes = o->checkpoint_megabytes,
		},
	};
	return check_disk_budget(r, err);
}

/* --------------------------------------------------------------------- the end */

void replica_end(struct replica *r, enum train_end end)
{
	r->run->end = end;
	r->over = true;
	optimizer_switch(r->checkpoint.optimizer, r->number, false);
}

void replica_diverge(struct replica *r, int64_t iteration, const char *where)
{
	fail(&r->run->reason, "diverged in iteration %lld: %s", (long long)iteration, where);
	metrics_event(r->run->metrics, iteration, "diverged", r->run->reason.text);
	replica_end(r, TRAIN_DIVERGED);
}

void replica_fail_audit(struct replica *r, const char *subject, const char *format, ...)
{
	struct train_run *run = r->run;
	va_list args;

	va_start(args, format);
	vsnprintf(run->reason.text, sizeof(run->reason.text), format, args);
	va_end(args);
	metrics_audit(run->metrics, "update", subject, false, run->reason.text);
	replica_end(r, TRAIN_INVALID);
}

bool replica_out_of_tokens(const struct replica *r)
{
	const double tokens = r->run->options.tokens_budget;

	return tokens > 0 && r->state.tokens >= tokens;
}

bool replica_out_of_time(const struct replica *r)
{
	const double seconds = r->run->options.seconds_budget;

	return seconds > 0 && seconds_now() - r->started > seconds;
}

void replica_end_by_budget(struct replica *r)
{
	const struct train_options *o = &r->run->options;

	if (replica_out_of_tokens(r))
		fail(&r->run->reason, "token budget of %.0f is used up", o->tokens_budget);
	else
		fail(&r->run->reason, "time budget of %.0f s is used up", o->seconds_budget);
	replica_end(r, TRAIN_BUDGET);
}

/* ------------------------------------------------------------------ evaluation */

static void record_score(struct metrics *m, int64_t iteration, const char *suffix,
			 const struct score *s)
{
	char name[64];

	if (s->count == 0)
		return;
	snprintf(name, sizeof(name), METRIC_VALIDATION_LOSS "%s", suffix);
	metrics_value(m, iteration, name, s->loss);
	snprintf(name, sizeof(name), METRIC_VALIDATION_ACCURACY "%s", suffix);
	metrics_value(m, iteration, name, s->accuracy);
	snprintf(name, sizeof(name), METRIC_VALIDATION_FLOOR "%s", suffix);
	if (isfinite(s->floor))
		metrics_value(m, iteration, name, s->floor);
}

/* What the audit added up, beside what is reported: the report compares them. */
static void record_recount(struct metrics *m, int64_t iteration, const struct recount_sum *s)
{
	const long double n = (long double)s->count;

	if (s->count == 0)
		return;
	metrics_value(m, iteration, METRIC_DATA_VALIDATION_LOSS, (double)(s->loss / n));
	metrics_value(m, iteration, METRIC_DATA_VALIDATION_ACCURACY, (double)(s->hits / n));
}

static void record_evaluation(const struct train_run *run, int64_t iteration,
			      const struct evaluation *e)
{
	const char *const *names = run->workload.components;
	struct metrics *m = run->metrics;
	char suffix[40];

	record_score(m, iteration, "", &e->all);
	for (int i = 0; names && names[i] && i < WORKLOAD_MAX_COMPONENTS; i++) {
		snprintf(suffix, sizeof(suffix), "/%s", names[i]);
		record_score(m, iteration, suffix, &e->component[i]);
	}
	if (isfinite(e->bits_per_byte))
		metrics_value(m, iteration, METRIC_VALIDATION_BITS_PER_BYTE, e->bits_per_byte);
	metrics_value(m, iteration, METRIC_DATA_VALIDATION, data_sum_number(&e->given));
	metrics_value(m, iteration, METRIC_DATA_VALIDATION_TARGETS, (double)e->all.count);
}

/* By so many standard errors, and by more than rounding, a loss must not be below its floor. */
#define FLOOR_ERRORS 4
#define FLOOR_ROUNDING 1e-5

static bool below_floor(const struct score *s)
{
	return s->count > 0 && isfinite(s->floor) &&
	       s->loss < s->floor - FLOOR_ERRORS * s->error - FLOOR_ROUNDING * (1 + s->floor);
}

/* A loss that no model can reach is a fault of data, targets or causality. */
static void check_floor(struct replica *r, int64_t iteration, const struct evaluation *e)
{
	struct train_run *run = r->run;
	const struct score *s = &e->all;

	for (int i = 0; i < WORKLOAD_MAX_COMPONENTS && !below_floor(s); i++)
		if (below_floor(&e->component[i]))
			s = &e->component[i];
	if (!run->options.check_floor || !isfinite(s->floor) || r->over)
		return;
	fail(&run->reason,
	     "loss %.4f with a standard error of %.4f; no model can have less than %.4f", s->loss,
	     s->error, s->floor);
	if (below_floor(s) || iteration == run->options.iterations)
		metrics_audit(run->metrics, "data", "floor", !below_floor(s), run->reason.text);
	if (below_floor(s))
		replica_end(r, TRAIN_INVALID);
}

/* Was every row of the validation given to the model, and each of its targets scored? */
static void check_rows(struct replica *r, const struct evaluation *e)
{
	const int64_t configured = r->audit ? update_audit_valid_rows(r->audit) : 0;
	const int64_t rows = configured ? configured : (int64_t)r->run->workload.valid_rows;

	if (!r->audit || r->over || (e->given.rows == rows && e->given.targets == e->all.count))
		return;
	replica_fail_audit(r, "validation",
			   "audit update FAILED: validation: %lld of %lld rows were evaluated, "
			   "%lld of %lld targets scored",
			   (long long)e->given.rows, (long long)rows, (long long)e->all.count,
			   (long long)e->given.targets);
}

static bool agrees(const struct recount_sum *s, const struct score *told)
{
	return recount_agrees(s, told->count, told->loss, told->accuracy);
}

/* Are losses and accuracy the means over all targets?  They are added up a second time. */
static void check_sums(struct replica *r, const struct evaluation *e)
{
	const struct recount *again = &e->recount;
	const struct recount_sum *s = &again->all;
	const struct score *told = &e->all;

	for (int i = 0; i < WORKLOAD_MAX_COMPONENTS && agrees(s, told); i++) {
		s = &again->component[i];
		told = &e->component[i];
	}
	if (!r->audit || r->over || agrees(s, told))
		return;
	replica_fail_audit(r, "validation",
			   "audit update FAILED: validation: a loss of %.9g and an accuracy of "
			   "%.9g of %lld targets are reported; added up again, %lld targets have "
			   "%.9g and %.9g",
			   told->loss, told->accuracy, (long long)told->count, (long long)s->count,
			   (double)(s->loss / s->count), (double)(s->hits / s->count));
}

/* Is what was evaluated what is trained? */
static void check_program(struct replica *r, const struct evaluation *e)
{
	const double allowed = r->run->options.scoring_tolerance;

	if (r->over || e->difference <= allowed)
		return;
	replica_fail_audit(r, "validation",
			   "audit update FAILED: validation: the program that trains scores a "
			   "target of its last rows differently by %.1e; %g is allowed",
			   e->difference, allowed);
}

enum status replica_save_best(struct replica *r, struct error *err)
{
	char path[4096];

	if (!r->is_best)
		return OK;
	r->is_best = false;
	snprintf(path, sizeof(path), "%s/best.safetensors", r->run->options.run_dir);
	return checkpoint_save_weights(&r->checkpoint, path, err);
}

/* Of the weights as they are: what is pruned is 0. */
static enum status record_pruning(const struct replica *r, int64_t iteration, struct error *err)
{
	const struct prune_options *o = &r->run->options.prune;
	const struct params *params = r->checkpoint.params;
	double share;

	if (o->method == PRUNE_NONE)
		return OK;
	if (prune_measure(params, &share, err) != OK)
		return FAIL;
	metrics_value(r->run->metrics, iteration, METRIC_SPARSITY, share);
	metrics_value(r->run->metrics, iteration, METRIC_COMPRESSED_BYTES,
		      prune_bytes(o, params, share));
	return OK;
}

enum status replica_take_evaluation(struct replica *r, const struct evaluation *e,
				    int64_t iteration, struct error *err)
{
	const struct workload *w = &r->run->workload;
	struct metrics *m = r->run->metrics;

	if (e->all.count > 0 && !isfinite(e->all.loss)) {
		replica_diverge(r, iteration, "the validation loss is not finite");
		return OK;
	}
	r->validation = e->all.loss;
	record_evaluation(r->run, iteration, e);
	if (r->audit)
		record_recount(m, iteration, &e->recount.all);
	check_rows(r, e);
	check_floor(r, iteration, e);
	check_sums(r, e);
	check_program(r, e);
	if (m && w->measure && w->measure(w->context, m, iteration, err) != OK)
		return FAIL;
	if (m && record_pruning(r, iteration, err) != OK)
		return FAIL;
	if (!(e->all.loss < r->state.best_loss))
		return OK;
	r->state.best_loss = e->all.loss;
	r->state.best_iteration = iteration;
	r->is_best = iteration > 0 && r->run->options.save_best;
	return OK;
}

enum status replica_conclude(struct replica *r, int64_t iteration, struct error *err)
{
	const struct workload *w = &r->run->workload;

	if (!r->run->metrics || !w->conclude)
		return OK;
	return w->conclude(w->context, r->run->metrics, iteration, err);
}

/* --------------------------------------------------------------------- updates */

static void record_update(const struct replica *r, const struct loss_parts *parts,
			  const struct optim_report *report)
{
	const int64_t iteration = r->state.iteration;
	struct metrics *m = r->run->metrics;
	char name[48];

	metrics_value(m, iteration, METRIC_TRAIN_LOSS, parts->total);
	for (int i = 0; i < parts->n; i++) {
		snprintf(name, sizeof(name), METRIC_TRAIN "/%s", parts->name[i]);
		metrics_value(m, iteration, name, parts->value[i]);
	}
	metrics_value(m, iteration, METRIC_LEARNING_RATE,
		      schedule_rate(&r->run->options.schedule, iteration));
	metrics_value(m, iteration, METRIC_GRAD_NORM, report->norm);
}

static void record_events(struct replica *r, const struct optim_report *report)
{
	struct metrics *m = r->run->metrics;
	char text[80];

	snprintf(text, sizeof(text), "gradient norm %.6g", report->norm);
	if (report->spike)
		metrics_event(m, report->t, "spike", text);
	if (report->reset)
		metrics_event(m, report->t, "reset", "moments restarted");
	if (report->clipped)
		r->state.clips++;
}

void replica_settle(struct replica *r, const struct optim_reports *reports,
		    const struct loss_parts *parts, bool logging)
{
	for (int i = 0; i < reports->n; i++) {
		const struct optim_report *report = &reports->list[i];

		if (!report->finite) { /* the updates after it did nothing */
			r->unexplained = report->t;
			replica_end(r, TRAIN_DIVERGED);
			return;
		}
		r->state.iteration = report->t;
		record_events(r, report);
	}
	r->loss = parts->total;
	r->norm = reports->list[reports->n - 1].norm;
	if (logging)
		record_update(r, parts, &reports->list[reports->n - 1]);
}

/* -------------------------------------------------------------------- records */

static double peak_megabytes(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)usage.ru_maxrss / 1024;
}

/* What the device gave at most. */
static void record_device_memory(const struct replica *r, int64_t iteration, double share)
{
	struct backend_memory memory;

	if (!r->backend->memory)
		return;
	r->backend->memory(r->backend, &memory);
	metrics_value(r->run->metrics, iteration, METRIC_DEVICE_MEGABYTES,
		      share * memory.most / 1048576);
}

enum status replica_sum_rows(struct replica *r, struct error *err)
{
	struct shards *shards = r->run->options.shards;

	if (data_sum_over_ranks(&r->given, shards ? shards_ranks(shards) : NULL, err) != OK)
		return FAIL;
	data_sum_join(&r->state.given, &r->given);
	r->given = (struct data_sum){ 0 };
	return OK;
}

static enum status record_rows(struct replica *r, int64_t iteration, struct error *err)
{
	const struct data_sum *given = &r->state.given;
	struct metrics *m = r->run->metrics;

	if (replica_sum_rows(r, err) != OK)
		return FAIL;
	if (given->rows < 0)
		return OK;
	metrics_value(m, iteration, METRIC_DATA_TRAINING, data_sum_number(given));
	metrics_value(m, iteration, METRIC_DATA_TRAINING_TARGETS, (double)given->targets);
	return OK;
}

enum status replica_log(struct replica *r, int64_t iteration, double tokens_per_second,
			double share, bool commit, struct error *err)
{
	struct metrics *m = r->run->metrics;

	metrics_value(m, iteration, METRIC_TOKENS_PER_SECOND, tokens_per_second);
	metrics_value(m, iteration, METRIC_PEAK_MEGABYTES, share * peak_megabytes());
	record_device_memory(r, iteration, share);
	if (record_rows(r, iteration, err) != OK)
		return FAIL;
	metrics_value(m, iteration, METRIC_CLIPPED, (double)r->state.clips);
	r->state.clips = 0;
	return commit ? metrics_commit(m, err) : OK;
}

/* Does not replace a whole checkpoint of this iteration: a kill in between would leave none. */
enum status replica_prepare_save(struct replica *r, bool *missing, struct error *err)
{
	if (metrics_commit(r->run->metrics, err) != OK)
		return FAIL;
	*missing = r->saved != r->state.iteration;
	r->state.seconds = seconds_now() - r->started;
	if (r->run->metrics)
		r->state.journal = metrics_mark(r->run->metrics);
	return OK;
}
