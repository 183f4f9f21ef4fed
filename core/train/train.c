#include "core/train/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/train/checkpoint.h"
#include "core/train/layer_norms.h"
#include "core/train/update.h"
#include "core/util/signals.h"

#define TIMED_UPDATES 3 /* the estimate takes the last one, when the memory is warm */
#define LONG_UPDATE 1	/* seconds: cold memory does not matter to an update of this length */

struct trainer {
	struct workload workload;
	struct train_options options;
	struct params *params;
	struct optimizer *optimizer;
	const struct backend *backend;
	struct ranks *ranks; /* NULL: this process is alone */
	struct update update;
	struct layer_norms norms;
	struct evaluator *evaluator;
	int unsettled; /* updates that were asked for, and whose outcome is not known */
	struct checkpoint checkpoint;
	struct checkpoint_state state;
	int64_t saved;	   /* iteration of the newest checkpoint known to be whole; -1: none */
	double started;	   /* when the run would have started, had nothing interrupted it */
	double loss;	   /* of the last update that is settled */
	double validation; /* loss of the last evaluation */
	bool diverged;
	bool too_good;	     /* it did not diverge: its loss is lower than it can be */
	struct error reason; /* why it cannot go on */
};

static double seconds_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ----------------------------------------------------------------- creation */

static struct shards *shards(const struct trainer *t)
{
	return t->options.shards;
}

static bool is_leader(const struct trainer *t)
{
	return !t->ranks || t->ranks->rank == 0;
}

static enum status check_disk_budget(const struct trainer *t, struct error *err)
{
	const double megabytes = checkpoint_bytes(&t->checkpoint) / 1e6;

	if (t->options.checkpoint_megabytes == 0 ||
	    megabytes <= (double)t->options.checkpoint_megabytes)
		return OK;
	return fail(err, "CONFIG_CHECKPOINT_DISK_MB=%lld: one checkpoint takes %.1f MB",
		    (long long)t->options.checkpoint_megabytes, megabytes);
}

static enum status open_parts(struct trainer *t, struct error *err)
{
	if (update_open(&t->update, &t->workload, &t->options, t->params, t->backend, err) != OK ||
	    layer_norms_open(&t->norms, t->params, t->backend, err) != OK ||
	    evaluator_create(&t->evaluator, &t->workload, t->params, t->options.batch, t->backend,
			     &t->options.program, err) != OK)
		return FAIL;
	return t->ranks ? evaluator_share(t->evaluator, t->ranks, err) : OK;
}

enum status trainer_create(struct trainer **out, const struct workload *workload,
			   const struct train_options *options, struct params *params,
			   struct optimizer *optimizer, const struct backend *backend,
			   struct error *err)
{
	struct trainer *t = calloc(1, sizeof(*t));

	if (!t)
		return fail_memory(err, "trainer", sizeof(*t));
	t->workload = *workload;
	t->options = *options;
	t->params = params;
	t->optimizer = optimizer;
	t->ranks = options->shards ? shards_ranks(options->shards) : NULL;
	t->backend = backend;
	t->saved = -1;
	t->loss = t->validation = NAN;
	t->state = (struct checkpoint_state){ .best_iteration = -1, .best_loss = INFINITY };
	t->checkpoint = (struct checkpoint){
		.run_dir = options->run_dir,
		.identity = options->identity,
		.about = options->about,
		.params = params,
		.optimizer = optimizer,
		.shards = options->shards,
		.keep = options->checkpoint_keep,
		.megabytes = options->checkpoint_megabytes,
	};
	if (check_disk_budget(t, err) != OK || open_parts(t, err) != OK) {
		trainer_destroy(t);
		return FAIL;
	}
	*out = t;
	return OK;
}

void trainer_destroy(struct trainer *t)
{
	if (!t)
		return;
	update_close(&t->update);
	layer_norms_close(&t->norms);
	evaluator_destroy(t->evaluator);
	free(t);
}

size_t trainer_arena_bytes(const struct trainer *t)
{
	return program_arena_bytes(t->update.training.p) + evaluator_arena_bytes(t->evaluator);
}

/* --------------------------------------------------------------- divergence */

/* Note and record that the run cannot go on. */
static void diverge(struct trainer *t, struct metrics *m, int64_t iteration, const char *where)
{
	t->diverged = true;
	fail(&t->reason, "diverged in iteration %lld: %s", (long long)iteration, where);
	metrics_event(m, iteration, "diverged", t->reason.text);
}

/* Run the update again with the check for NaN, which names the first tensor that is not finite. */
static void explain_divergence(struct trainer *t, struct metrics *m, int64_t iteration)
{
	struct error where;

	program_check_nan(t->update.training.p, true);
	if (update_run(&t->update, iteration, &where) == OK)
		fail(&where, "the gradient's norm overflows");
	program_check_nan(t->update.training.p, t->options.program.check_nan);
	diverge(t, m, iteration, where.text);
}

/* ---------------------------------------------------------------- recording */

static double peak_megabytes(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)usage.ru_maxrss / 1024;
}

/* What the device gave at most. */
static void record_device_memory(const struct trainer *t, struct metrics *m, int64_t iteration)
{
	struct backend_memory memory;

	if (!t->backend->memory)
		return;
	t->backend->memory(t->backend, &memory);
	metrics_value(m, iteration, METRIC_DEVICE_MEGABYTES, memory.most / 1048576);
}

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

static void record_evaluation(struct trainer *t, struct metrics *m, int64_t iteration,
			      const struct evaluation *e)
{
	const char *const *names = t->workload.components;
	char suffix[40];

	record_score(m, iteration, "", &e->all);
	for (int i = 0; names && names[i] && i < WORKLOAD_MAX_COMPONENTS; i++) {
		snprintf(suffix, sizeof(suffix), "/%s", names[i]);
		record_score(m, iteration, suffix, &e->component[i]);
	}
	if (isfinite(e->bits_per_byte))
		metrics_value(m, iteration, METRIC_VALIDATION_BITS_PER_BYTE, e->bits_per_byte);
}

static enum status save_best(struct trainer *t, struct error *err)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/best.safetensors", t->options.run_dir);
	return weights_save(t->params, path, t->options.about, err);
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
static void check_floor(struct trainer *t, struct metrics *m, int64_t iteration,
			const struct evaluation *e)
{
	const struct score *s = &e->all;

	for (int i = 0; i < WORKLOAD_MAX_COMPONENTS && !below_floor(s); i++)
		if (below_floor(&e->component[i]))
			s = &e->component[i];
	if (!t->options.check_floor || !isfinite(s->floor))
		return;
	fail(&t->reason,
	     "loss %.4f with a standard error of %.4f; no model can have less than %.4f", s->loss,
	     s->error, s->floor);
	if (below_floor(s) || iteration == t->options.iterations)
		metrics_audit(m, "data", "floor", !below_floor(s), t->reason.text);
	t->diverged = t->too_good = below_floor(s);
}

/* FAIL: something outside the training went wrong.  A loss that is not finite is a divergence. */
static enum status evaluate_now(struct trainer *t, struct metrics *m, int64_t iteration,
				struct error *err)
{
	struct evaluation e;
	struct error where;
	const enum status status = evaluate(t->evaluator, &e, &where);

	if (t->backend->check(t->backend, err) != OK)
		return FAIL;
	if (status != OK) {
		diverge(t, m, iteration, where.text);
		return OK;
	}
	if (e.all.count > 0 && !isfinite(e.all.loss)) {
		diverge(t, m, iteration, "the validation loss is not finite");
		return OK;
	}
	t->validation = e.all.loss;
	record_evaluation(t, m, iteration, &e);
	check_floor(t, m, iteration, &e);
	if (m && t->workload.measure &&
	    t->workload.measure(t->workload.context, m, iteration, err) != OK)
		return FAIL;
	if (!(e.all.loss < t->state.best_loss))
		return OK;
	t->state.best_loss = e.all.loss;
	t->state.best_iteration = iteration;
	return iteration > 0 && t->options.save_best && is_leader(t) ? save_best(t, err) : OK;
}

static enum status conclude(struct trainer *t, struct metrics *m, int64_t iteration,
			    struct error *err)
{
	if (t->diverged || !m || !t->workload.conclude)
		return OK;
	return t->workload.conclude(t->workload.context, m, iteration, err);
}

/* The evaluation after the last update of a run. */
static enum status evaluate_last(struct trainer *t, struct metrics *m, int64_t iteration,
				 struct error *err)
{
	if (evaluate_now(t, m, iteration, err) != OK)
		return FAIL;
	return conclude(t, m, iteration, err);
}

/* Rank 0 gets the gradient of the update just made. */
static enum status fetch_gradient(struct trainer *t, struct error *err)
{
	if (!shards(t))
		return OK;
	if (!is_leader(t))
		return shards_serve(shards(t), err);
	if (shards_fetch_gradient(shards(t), err) != OK)
		return FAIL;
	return shards_done(shards(t), err);
}

static void record_update(struct metrics *m, int64_t iteration, const struct loss_parts *parts,
			  double rate, const struct optim_report *report)
{
	char name[48];

	metrics_value(m, iteration, METRIC_TRAIN_LOSS, parts->total);
	for (int i = 0; i < parts->n; i++) {
		snprintf(name, sizeof(name), METRIC_TRAIN "/%s", parts->name[i]);
		metrics_value(m, iteration, name, parts->value[i]);
	}
	metrics_value(m, iteration, METRIC_LEARNING_RATE, rate);
	metrics_value(m, iteration, METRIC_GRAD_NORM, report->norm);
}

static void record_events(struct trainer *t, struct metrics *m, int64_t iteration,
			  const struct optim_report *report)
{
	char text[80];

	snprintf(text, sizeof(text), "gradient norm %.6g", report->norm);
	if (report->spike)
		metrics_event(m, iteration, "spike", text);
	if (report->reset)
		metrics_event(m, iteration, "reset", "moments restarted");
	if (report->clipped)
		t->state.clips++;
}

/* ------------------------------------------------------------------ the loop */

enum status trainer_estimate(struct trainer *t, double *seconds, struct error *err)
{
	program_check_nan(t->update.training.p, false); /* the training itself will find a NaN */
	*seconds = 0;
	for (int i = 0; i < TIMED_UPDATES && *seconds < LONG_UPDATE; i++) {
		const double start = seconds_now();

		if (update_run(&t->update, 1, err) != OK || t->backend->wait(t->backend, err) != OK)
			return FAIL;
		*seconds = seconds_now() - start;
		if (t->ranks && ranks_broadcast(t->ranks, 0, seconds, sizeof(*seconds), err) != OK)
			return FAIL;
	}
	program_check_nan(t->update.training.p, t->options.program.check_nan);
	return OK;
}

/* The loss "main" of the graph. */
static double main_loss(const struct trainer *t)
{
	const struct graph *g = t->update.training.g;

	for (int i = 0; i < g->n_outputs; i++)
		if (g->outputs[i].is_loss && strcmp(g->outputs[i].plain_name, "main") == 0)
			return program_scalar(t->update.training.p, g->outputs[i].tensor);
	return NAN;
}

enum status trainer_first_loss(struct trainer *t, double *trained, double *mean, struct error *err)
{
	const int64_t all = update_tokens(&t->update), micros = t->options.accumulate;
	const int64_t n = all / micros;
	const int who = t->ranks ? (int)((micros - 1) % t->ranks->size) : 0; /* has the last rows */
	double *nll = malloc((size_t)n * sizeof(*nll)), sum = 0;

	if (!nll)
		return fail_memory(err, "losses", (size_t)n * sizeof(*nll));
	if (update_run(&t->update, 1, err) != OK) {
		free(nll);
		return FAIL;
	}
	program_read(t->update.training.p, t->update.training.io.nll, nll);
	for (int64_t i = 0; i < n; i++) /* of the last micro-batch */
		if (t->update.targets[all - n + i] >= 0)
			sum += nll[i];
	free(nll);
	*trained = main_loss(t);
	*mean = sum / (double)(t->update.scored ? t->update.scored : 1);
	if (t->ranks && (ranks_broadcast(t->ranks, who, trained, sizeof(*trained), err) != OK ||
			 ranks_broadcast(t->ranks, who, mean, sizeof(*mean), err) != OK))
		return FAIL;
	return OK;
}

/* Rank 0 reads the checkpoint and gives every rank its part. */
static enum status load_checkpoint(struct trainer *t, bool *found, struct progress *progress,
				   struct error *err)
{
	struct optim_scalars scalars;

	if (!is_leader(t) && shards_serve(shards(t), err) != OK)
		return FAIL;
	if (is_leader(t) &&
	    checkpoint_load(&t->checkpoint, &t->state, found, progress_warn, progress, err) != OK)
		return FAIL;
	if (!shards(t))
		return OK;
	scalars = optimizer_scalars(t->optimizer);
	if ((is_leader(t) && shards_done(shards(t), err) != OK) ||
	    ranks_broadcast(t->ranks, 0, found, sizeof(*found), err) != OK ||
	    ranks_broadcast(t->ranks, 0, &t->state, sizeof(t->state), err) != OK ||
	    ranks_broadcast(t->ranks, 0, &scalars, sizeof(scalars), err) != OK)
		return FAIL;
	optimizer_set_scalars(t->optimizer, &scalars);
	return shards_spread(shards(t), err);
}

enum status trainer_resume(struct trainer *t, int64_t *iteration, struct progress *progress,
			   struct error *err)
{
	bool found = false;

	if (load_checkpoint(t, &found, progress, err) != OK)
		return FAIL;
	t->saved = *iteration = found ? t->state.iteration : -1;
	/* The run may have been killed after it saved and before it pruned. */
	return found && is_leader(t) ? checkpoint_prune(&t->checkpoint, t->saved, err) : OK;
}

static bool due(int64_t iteration, int64_t interval, int64_t last)
{
	return iteration == last || (interval > 0 && iteration % interval == 0);
}

/* The first answer that is not 0: a signal may reach one rank alone, or between other iterations.
 */
static enum status any_of_ranks(struct trainer *t, int mine, int *any, struct error *err)
{
	int *all;
	enum status status;

	*any = mine;
	if (!t->ranks)
		return OK;
	all = malloc((size_t)t->ranks->size * sizeof(*all));
	if (!all)
		return fail_memory(err, "ranks", (size_t)t->ranks->size * sizeof(*all));
	status = ranks_gather(t->ranks, &mine, all, sizeof(mine), err);
	*any = 0;
	for (int64_t r = 0; status == OK && r < t->ranks->size; r++)
		*any = *any ? *any : all[r];
	free(all);
	return status;
}

/* For tests: KABLATE_TEST_HOLD=N:FILE holds a run after its N-th iteration while FILE exists and no
 * signal comes.  So a test finds a run at a known point, however fast the machine is. */
#define HOLD_VARIABLE "KABLATE_TEST_HOLD"
#define HOLD_MICROSECONDS 1000

static bool is_held(int64_t iteration)
{
	const char *text = getenv(HOLD_VARIABLE), *file = text ? strchr(text, ':') : NULL;

	return file && iteration >= atoll(text) && access(file + 1, F_OK) == 0;
}

/* The signal that stops the run, or 0. */
static enum status find_signal(struct trainer *t, int64_t iteration, int *signal, struct error *err)
{
	int held = 0;

	do {
		if (held)
			usleep(HOLD_MICROSECONDS);
		if (any_of_ranks(t, signals_stop(), signal, err) != OK ||
		    (getenv(HOLD_VARIABLE) &&
		     any_of_ranks(t, is_held(iteration), &held, err) != OK))
			return FAIL;
	} while (held && !*signal);
	return OK;
}

/* Must the run stop after this iteration?  Its time goes by the clock of rank 0. */
static enum status must_stop(struct trainer *t, int64_t iteration, bool *stops, enum train_end *end,
			     struct error *reason, struct error *err)
{
	const double seconds = t->options.seconds_budget, tokens = t->options.tokens_budget;
	int late = is_leader(t) && seconds > 0 && seconds_now() - t->started > seconds, signal;

	if (find_signal(t, iteration, &signal, err) != OK ||
	    (seconds > 0 && any_of_ranks(t, late, &late, err) != OK))
		return FAIL;
	*stops = signal || late || (tokens > 0 && t->state.tokens >= tokens);
	if (!*stops)
		return OK;
	*end = signal ? TRAIN_INTERRUPTED : TRAIN_BUDGET;
	if (signal)
		fail(reason, "signal %d", signal);
	else if (tokens > 0 && t->state.tokens >= tokens)
		fail(reason, "token budget of %.0f is used up", tokens);
	else
		fail(reason, "time budget of %.0f s is used up", seconds);
	return OK;
}

struct interval {
	double started; /* of the interval */
	int64_t first;
};

static enum status log_interval(struct trainer *t, struct metrics *m, int64_t iteration,
				struct interval *interval, double *rate, struct error *err)
{
	const double now = seconds_now(), elapsed = now - interval->started;

	*rate = (double)((iteration - interval->first) * update_tokens(&t->update)) / elapsed;
	metrics_value(m, iteration, METRIC_TOKENS_PER_SECOND, *rate);
	metrics_value(m, iteration, METRIC_PEAK_MEGABYTES, peak_megabytes());
	record_device_memory(t, m, iteration);
	metrics_value(m, iteration, METRIC_CLIPPED, (double)t->state.clips);
	t->state.clips = 0;
	*interval = (struct interval){ .started = now, .first = iteration };
	return metrics_commit(m, err);
}

/* Ask for one update.  Its outcome is known when settle() has read it. */
static enum status step(struct trainer *t, int64_t iteration, struct error *where)
{
	if (update_run(&t->update, iteration, where) != OK)
		return FAIL;
	optimizer_ask(t->optimizer, iteration, schedule_rate(&t->options.schedule, iteration),
		      t->update.losses, update_losses(&t->update));
	t->unsettled++;
	t->state.tokens += (double)update_tokens(&t->update);
	return OK;
}

/*
 * Wait for the updates that were asked for, and record what they did; `logging`: the losses of the
 * last one as well.  One that was not finite ends the run: those after it did nothing.
 */
static enum status settle(struct trainer *t, struct metrics *m, bool logging, struct error *err)
{
	struct optim_report reports[OPTIM_REPORTS];
	struct loss_parts parts;
	int n;

	if (!t->unsettled)
		return OK;
	t->unsettled = 0;
	n = optimizer_read(t->optimizer, reports);
	update_read_losses(&t->update, &parts);
	if (t->backend->check(t->backend, err) != OK)
		return FAIL;
	for (int i = 0; i < n; i++) {
		if (!reports[i].finite) {
			explain_divergence(t, m, reports[i].t);
			return OK;
		}
		t->state.iteration = reports[i].t;
		record_events(t, m, reports[i].t, &reports[i]);
	}
	t->loss = parts.total;
	if (logging)
		record_update(m, t->state.iteration, &parts,
			      schedule_rate(&t->options.schedule, t->state.iteration),
			      &reports[n - 1]);
	return OK;
}

/* Rank 0 writes what all ranks have. */
static enum status save_checkpoint(struct trainer *t, struct error *err)
{
	if (!is_leader(t))
		return shards_serve(shards(t), err);
	if (checkpoint_save(&t->checkpoint, &t->state, err) != OK)
		return FAIL;
	return shards(t) ? shards_done(shards(t), err) : OK;
}

/* Does not replace a whole checkpoint of this iteration: a kill in between would leave none. */
static enum status save(struct trainer *t, struct metrics *m, struct error *err)
{
	if (metrics_commit(m, err) != OK)
		return FAIL;
	if (t->saved == t->state.iteration)
		return OK;
	t->state.seconds = seconds_now() - t->started;
	if (m)
		t->state.journal = metrics_mark(m);
	if (save_checkpoint(t, err) != OK)
		return FAIL;
	t->saved = t->state.iteration;
	return OK;
}

static enum status finish_iteration(struct trainer *t, struct metrics *m, int64_t iteration,
				    bool logging, struct interval *interval, double *rate,
				    struct error *err)
{
	const int64_t last = t->options.iterations;
	int wanted = true; /* a checkpoint */

	if (due(iteration, t->options.eval_interval, last) &&
	    (fetch_gradient(t, err) != OK ||
	     (m &&
	      layer_norms_record(&t->norms, m, iteration, t->workload.layer_prefix, err) != OK) ||
	     (iteration == last ? evaluate_last : evaluate_now)(t, m, iteration, err) != OK))
		return FAIL;
	if (logging && log_interval(t, m, iteration, interval, rate, err) != OK)
		return FAIL;
	if (t->diverged)
		return OK;
	if (!due(iteration, t->options.checkpoint_interval, last) &&
	    any_of_ranks(t, signals_save(), &wanted, err) != OK)
		return FAIL;
	if (!wanted)
		return OK;
	if (settle(t, m, false, err) != OK)
		return FAIL;
	return t->diverged ? OK : save(t, m, err);
}

/* A run that its budget ends gets its final evaluation now; an interrupted run gets it later. */
static enum status stop(struct trainer *t, struct metrics *m, enum train_end end, struct error *err)
{
	const bool evaluated = due(t->state.iteration, t->options.eval_interval, 0);

	if (end == TRAIN_BUDGET &&
	    (evaluated ? conclude : evaluate_last)(t, m, t->state.iteration, err) != OK)
		return FAIL;
	return t->diverged ? OK : save(t, m, err);
}

/* Must the outcome of this iteration be known before the next one? */
static bool must_settle(const struct trainer *t, int64_t iteration, bool logging)
{
	const int64_t last = t->options.iterations;

	return logging || !t->backend->is_async || t->unsettled == OPTIM_REPORTS ||
	       due(iteration, t->options.eval_interval, last) ||
	       due(iteration, t->options.checkpoint_interval, last);
}

/* FAIL: something outside the training went wrong. */
static enum status iterate(struct trainer *t, struct metrics *m, int64_t iteration, bool logging,
			   struct error *err)
{
	struct error ignored;

	if (step(t, iteration, &ignored) != OK) {
		if (t->backend->check(t->backend, err) != OK || settle(t, m, false, err) != OK)
			return FAIL;
		if (!t->diverged)
			explain_divergence(t, m, iteration);
		return OK;
	}
	if (shards(t) && shards_share(shards(t), err) != OK)
		return FAIL;
	return must_settle(t, iteration, logging) ? settle(t, m, logging, err) : OK;
}

static enum status train(struct trainer *t, struct metrics *m, struct progress *progress,
			 enum train_end *end, struct error *reason, struct error *err)
{
	const int64_t last = t->options.iterations;
	struct interval interval = { .started = seconds_now(), .first = t->state.iteration };
	double rate = NAN;
	bool stops;

	if (t->saved < 0 && evaluate_now(t, m, 0, err) != OK)
		return FAIL;
	for (int64_t i = t->state.iteration + 1; i <= last && !t->diverged; i++) {
		const bool logging = due(i, t->options.log_interval, last);

		if (must_stop(t, i - 1, &stops, end, reason, err) != OK)
			return FAIL;
		if (stops) {
			if (settle(t, m, false, err) != OK)
				return FAIL;
			return t->diverged ? OK : stop(t, m, *end, err);
		}
		if (iterate(t, m, i, logging, err) != OK)
			return FAIL;
		if (t->diverged)
			break;
		if (finish_iteration(t, m, i, logging, &interval, &rate, err) != OK)
			return FAIL;
		progress_update(progress,
				&(struct progress_point){
					.iteration = i,
					.iterations = last,
					.loss = t->loss,
					.validation = t->validation,
					.tokens_per_second = rate,
				},
				logging);
	}
	return OK;
}

enum status trainer_run(struct trainer *t, struct metrics *m, struct progress *progress,
			enum train_end *end, struct error *reason, struct error *err)
{
	*end = TRAIN_DONE;
	t->started = seconds_now() - t->state.seconds;
	if (train(t, m, progress, end, reason, err) != OK)
		return FAIL;
	if (!t->diverged)
		return OK;
	*end = t->too_good ? TRAIN_INVALID : TRAIN_DIVERGED;
	*reason = t->reason;
	return metrics_commit(m, err);
}
