#include "core/train/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "core/train/checkpoint.h"
#include "core/util/signals.h"

#define TIMED_UPDATES 3 /* the estimate takes the last one, when the memory is warm */
#define LONG_UPDATE 1	/* seconds: cold memory does not matter to an update of this length */

struct trainer {
	struct workload workload;
	struct train_options options;
	struct params *params;
	struct optimizer *optimizer;
	const struct backend *backend;
	struct token_program training;
	struct evaluator *evaluator;
	int32_t *tokens, *targets; /* one update: [accumulate * batch, length] */
	double *losses;		   /* device: of the update's micro-batches, one after another */
	double *seen_losses;	   /* the same on the host */
	double *squares;	   /* device: of the gradient, by layer */
	int n_losses;		   /* of a micro-batch */
	int unsettled;		   /* updates that were asked for, and whose outcome is not known */
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

static int64_t batch_tokens(const struct trainer *t)
{
	return t->options.batch * t->workload.length;
}

static int64_t update_tokens(const struct trainer *t)
{
	return batch_tokens(t) * t->options.accumulate;
}

/* The output head's losses are weighted by targets; the others are means over a micro-batch. */
static bool from_head(const struct trainer *t, const struct graph_output *o)
{
	return o->tensor->producer == t->training.io.nll->producer;
}

static void share_losses(struct trainer *t)
{
	const struct graph *g = t->training.g;

	for (int i = 0; i < g->n_outputs; i++)
		if (g->outputs[i].is_loss && !from_head(t, &g->outputs[i]))
			program_loss_weight(t->training.p, g->outputs[i].name,
					    g->outputs[i].loss_weight /
						    (double)t->options.accumulate);
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

static int update_losses(const struct trainer *t)
{
	return t->n_losses * (int)t->options.accumulate;
}

static int count_layers(const struct params *params)
{
	int layers = 0;

	for (int i = 0; i < params->n; i++)
		if (params->list[i].origin.layer >= layers)
			layers = params->list[i].origin.layer + 1;
	return layers;
}

/* Memory for what the device measures while it trains. */
static enum status open_measures(struct trainer *t, struct error *err)
{
	const size_t squares = ((size_t)count_layers(t->params) + 1) * sizeof(*t->squares);
	size_t losses;

	t->n_losses = program_loss_count(t->training.p);
	losses = (size_t)update_losses(t) * sizeof(*t->losses);
	t->seen_losses = malloc(losses);
	t->losses = t->backend->alloc(t->backend, losses);
	t->squares = t->backend->alloc(t->backend, squares);
	if (!t->losses || !t->seen_losses || !t->squares)
		return fail_memory(err, "losses and norms", losses + squares);
	return OK;
}

static enum status open_programs(struct trainer *t, struct error *err)
{
	struct program_options train = t->options.program;
	const size_t n = (size_t)update_tokens(t);

	t->tokens = malloc(n * sizeof(*t->tokens));
	t->targets = malloc(n * sizeof(*t->targets));
	if (!t->tokens || !t->targets)
		return fail_memory(err, "batches", n * sizeof(*t->tokens));
	train.train = true;
	if (workload_open(&t->training, &t->workload, t->params, t->options.batch, t->backend,
			  &train, err) != OK)
		return FAIL;
	share_losses(t);
	if (open_measures(t, err) != OK)
		return FAIL;
	return evaluator_create(&t->evaluator, &t->workload, t->params, t->options.batch,
				t->backend, &t->options.program, err);
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
		.keep = options->checkpoint_keep,
		.megabytes = options->checkpoint_megabytes,
	};
	if (check_disk_budget(t, err) != OK || open_programs(t, err) != OK) {
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
	token_program_close(&t->training);
	evaluator_destroy(t->evaluator);
	t->backend->release(t->backend, t->losses);
	t->backend->release(t->backend, t->squares);
	free(t->seen_losses);
	free(t->tokens);
	free(t->targets);
	free(t);
}

size_t trainer_arena_bytes(const struct trainer *t)
{
	return program_arena_bytes(t->training.p) + evaluator_arena_bytes(t->evaluator);
}

/* --------------------------------------------------------------- one update */

/* Losses by their plain names, weighted: summed over layers and the update's micro-batches. */
#define MAX_PARTS 8

struct loss_parts {
	int n;
	const char *name[MAX_PARTS];
	double value[MAX_PARTS];
	double total;
};

static void parts_add(struct loss_parts *parts, const char *name, double value)
{
	int i = 0;

	while (i < parts->n && strcmp(parts->name[i], name) != 0)
		i++;
	if (i == parts->n && i < MAX_PARTS) {
		parts->name[i] = name;
		parts->value[i] = 0;
		parts->n++;
	}
	if (i < MAX_PARTS)
		parts->value[i] += value;
	parts->total += value;
}

/* Fill all rows of an update; returns the number of scored targets. */
static int64_t fill_update(struct trainer *t, int64_t iteration)
{
	const int64_t T = t->workload.length, rows = t->options.batch * t->options.accumulate;
	int64_t scored = 0;

	for (int64_t row = 0; row < rows; row++)
		t->workload.train_row(t->workload.context, (uint64_t)iteration, (uint64_t)row,
				      t->tokens + row * T, t->targets + row * T);
	for (int64_t i = 0; i < rows * T; i++)
		scored += t->targets[i] >= 0;
	return scored;
}

static enum status run_micro(struct trainer *t, int64_t iteration, int64_t micro,
			     struct error *err)
{
	const int64_t n = batch_tokens(t);
	const struct run run = {
		.seed = t->options.seed,
		.iteration = (uint64_t)iteration,
		.micro = (uint64_t)micro,
	};

	token_program_feed(&t->training, t->tokens + micro * n, t->targets + micro * n);
	if (program_run(t->training.p, &run, err) != OK)
		return FAIL;
	program_collect_losses(t->training.p, t->losses + micro * t->n_losses);
	return OK;
}

/*
 * Forward and backward over all micro-batches: the gradients are in params, the losses in
 * t->losses.
 */
static enum status run_passes(struct trainer *t, int64_t iteration, struct error *err)
{
	const int64_t scored = fill_update(t, iteration);

	token_program_weigh(&t->training, 1 / fmax((double)scored, 1),
			    1 / (double)update_tokens(t));
	for (int64_t micro = 0; micro < t->options.accumulate; micro++)
		if (run_micro(t, iteration, micro, err) != OK)
			return FAIL;
	return OK;
}

/* The losses of the last update. */
static void read_losses(struct trainer *t, struct loss_parts *parts)
{
	const struct graph *g = t->training.g;
	const double *value = t->seen_losses;

	*parts = (struct loss_parts){ 0 };
	t->backend->download(t->backend, t->seen_losses, t->losses,
			     (size_t)update_losses(t) * sizeof(*t->losses));
	for (int64_t micro = 0; micro < t->options.accumulate; micro++)
		for (int i = 0; i < g->n_outputs; i++) {
			const struct graph_output *o = &g->outputs[i];
			double share = from_head(t, o) ? 1 : (double)t->options.accumulate;

			if (o->is_loss)
				parts_add(parts, o->plain_name, o->loss_weight * *value++ / share);
		}
}

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

	program_check_nan(t->training.p, true);
	if (run_passes(t, iteration, &where) == OK)
		fail(&where, "the gradient's norm overflows");
	program_check_nan(t->training.p, t->options.program.check_nan);
	diverge(t, m, iteration, where.text);
}

/* ---------------------------------------------------------------- recording */

static double peak_megabytes(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)usage.ru_maxrss / 1024;
}

static void record_score(struct metrics *m, int64_t iteration, const char *suffix,
			 const struct score *s)
{
	char name[64];

	if (s->count == 0)
		return;
	snprintf(name, sizeof(name), "val/loss%s", suffix);
	metrics_value(m, iteration, name, s->loss);
	snprintf(name, sizeof(name), "val/accuracy%s", suffix);
	metrics_value(m, iteration, name, s->accuracy);
	snprintf(name, sizeof(name), "val/floor%s", suffix);
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
		metrics_value(m, iteration, "val/bits_per_byte", e->bits_per_byte);
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
	if (t->workload.measure &&
	    t->workload.measure(t->workload.context, m, iteration, err) != OK)
		return FAIL;
	if (!(e.all.loss < t->state.best_loss))
		return OK;
	t->state.best_loss = e.all.loss;
	t->state.best_iteration = iteration;
	return iteration > 0 && t->options.save_best ? save_best(t, err) : OK;
}

static enum status conclude(struct trainer *t, struct metrics *m, int64_t iteration,
			    struct error *err)
{
	if (t->diverged || !t->workload.conclude)
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

/* The norms of the gradient of the update just made: of each layer, and of everything else. */
static enum status record_layer_norms(struct trainer *t, struct metrics *m, int64_t iteration,
				      struct error *err)
{
	const int layers = count_layers(t->params);
	const size_t bytes = ((size_t)layers + 1) * sizeof(double); /* the last: of no layer */
	double *squares = malloc(bytes);
	char name[64];

	if (!squares)
		return fail_memory(err, "gradient norms", bytes);
	t->backend->zero(t->backend, t->squares, bytes);
	for (int i = 0; i < t->params->n; i++) {
		const int layer = t->params->list[i].origin.layer;

		optimizer_add_squares(t->optimizer, i, &t->squares[layer < 0 ? layers : layer]);
	}
	t->backend->download(t->backend, squares, t->squares, bytes);
	for (int i = 0; i < layers; i++) {
		snprintf(name, sizeof(name), "grad_norm/%s%d", t->workload.layer_prefix, i);
		if (squares[i] > 0)
			metrics_value(m, iteration, name, sqrt(squares[i]));
	}
	metrics_value(m, iteration, "grad_norm/other", sqrt(squares[layers]));
	free(squares);
	return OK;
}

static void record_update(struct metrics *m, int64_t iteration, const struct loss_parts *parts,
			  double rate, const struct optim_report *report)
{
	char name[48];

	metrics_value(m, iteration, "train/loss", parts->total);
	for (int i = 0; i < parts->n; i++) {
		snprintf(name, sizeof(name), "train/%s", parts->name[i]);
		metrics_value(m, iteration, name, parts->value[i]);
	}
	metrics_value(m, iteration, "learning_rate", rate);
	metrics_value(m, iteration, "grad_norm", report->norm);
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
	program_check_nan(t->training.p, false); /* the training itself will find a NaN */
	*seconds = 0;
	for (int i = 0; i < TIMED_UPDATES && *seconds < LONG_UPDATE; i++) {
		const double start = seconds_now();

		if (run_passes(t, 1, err) != OK || t->backend->wait(t->backend, err) != OK)
			return FAIL;
		*seconds = seconds_now() - start;
	}
	program_check_nan(t->training.p, t->options.program.check_nan);
	return OK;
}

/* The loss "main" of the graph. */
static double main_loss(const struct trainer *t)
{
	const struct graph *g = t->training.g;

	for (int i = 0; i < g->n_outputs; i++)
		if (g->outputs[i].is_loss && strcmp(g->outputs[i].plain_name, "main") == 0)
			return program_scalar(t->training.p, g->outputs[i].tensor);
	return NAN;
}

enum status trainer_first_loss(struct trainer *t, double *trained, double *mean, struct error *err)
{
	const int64_t n = batch_tokens(t), all = update_tokens(t);
	double *nll = malloc((size_t)n * sizeof(*nll)), sum = 0;
	int64_t scored = 0;

	if (!nll)
		return fail_memory(err, "losses", (size_t)n * sizeof(*nll));
	if (run_passes(t, 1, err) != OK) {
		free(nll);
		return FAIL;
	}
	program_read(t->training.p, t->training.io.nll, nll);
	for (int64_t i = 0; i < all; i++)
		scored += t->targets[i] >= 0;
	for (int64_t i = 0; i < n; i++) /* of the last micro-batch */
		if (t->targets[all - n + i] >= 0)
			sum += nll[i];
	free(nll);
	*trained = main_loss(t);
	*mean = sum / (double)(scored ? scored : 1);
	return OK;
}

enum status trainer_resume(struct trainer *t, int64_t *iteration, struct progress *progress,
			   struct error *err)
{
	bool found;

	if (checkpoint_load(&t->checkpoint, &t->state, &found, progress_warn, progress, err) != OK)
		return FAIL;
	t->saved = *iteration = found ? t->state.iteration : -1;
	/* The run may have been killed after it saved and before it pruned. */
	return found ? checkpoint_prune(&t->checkpoint, t->saved, err) : OK;
}

static bool due(int64_t iteration, int64_t interval, int64_t last)
{
	return iteration == last || (interval > 0 && iteration % interval == 0);
}

/* Must the run stop before the next iteration? */
static bool must_stop(struct trainer *t, enum train_end *end, struct error *reason)
{
	if (signals_stop()) {
		*end = TRAIN_INTERRUPTED;
		fail(reason, "signal %d", signals_stop());
		return true;
	}
	if (t->options.tokens_budget > 0 && t->state.tokens >= t->options.tokens_budget) {
		*end = TRAIN_BUDGET;
		fail(reason, "token budget of %.0f is used up", t->options.tokens_budget);
		return true;
	}
	if (t->options.seconds_budget > 0 &&
	    seconds_now() - t->started > t->options.seconds_budget) {
		*end = TRAIN_BUDGET;
		fail(reason, "time budget of %.0f s is used up", t->options.seconds_budget);
		return true;
	}
	return false;
}

/* What the device gave at most. */
static void record_device_memory(const struct trainer *t, struct metrics *m, int64_t iteration)
{
	struct backend_memory memory;

	if (!t->backend->memory)
		return;
	t->backend->memory(t->backend, &memory);
	metrics_value(m, iteration, "device_megabytes", memory.most / 1048576);
}

struct interval {
	double started; /* of the interval */
	int64_t first;
};

static enum status log_interval(struct trainer *t, struct metrics *m, int64_t iteration,
				struct interval *interval, double *rate, struct error *err)
{
	const double now = seconds_now(), elapsed = now - interval->started;

	*rate = (double)((iteration - interval->first) * update_tokens(t)) / elapsed;
	metrics_value(m, iteration, "tokens_per_second", *rate);
	metrics_value(m, iteration, "peak_megabytes", peak_megabytes());
	record_device_memory(t, m, iteration);
	metrics_value(m, iteration, "clipped", (double)t->state.clips);
	t->state.clips = 0;
	*interval = (struct interval){ .started = now, .first = iteration };
	return metrics_commit(m, err);
}

/* Ask for one update.  Its outcome is known when settle() has read it. */
static enum status step(struct trainer *t, int64_t iteration, struct error *where)
{
	if (run_passes(t, iteration, where) != OK)
		return FAIL;
	optimizer_ask(t->optimizer, iteration, schedule_rate(&t->options.schedule, iteration),
		      t->losses, update_losses(t));
	t->unsettled++;
	t->state.tokens += (double)update_tokens(t);
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
	read_losses(t, &parts);
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

/* Does not replace a whole checkpoint of this iteration: a kill in between would leave none. */
static enum status save(struct trainer *t, struct metrics *m, struct error *err)
{
	if (metrics_commit(m, err) != OK)
		return FAIL;
	if (t->saved == t->state.iteration)
		return OK;
	t->state.seconds = seconds_now() - t->started;
	t->state.journal = metrics_mark(m);
	if (checkpoint_save(&t->checkpoint, &t->state, err) != OK)
		return FAIL;
	t->saved = t->state.iteration;
	return OK;
}

static enum status finish_iteration(struct trainer *t, struct metrics *m, int64_t iteration,
				    bool logging, struct interval *interval, double *rate,
				    struct error *err)
{
	const int64_t last = t->options.iterations;

	if (due(iteration, t->options.eval_interval, last) &&
	    (record_layer_norms(t, m, iteration, err) != OK ||
	     (iteration == last ? evaluate_last : evaluate_now)(t, m, iteration, err) != OK))
		return FAIL;
	if (logging && log_interval(t, m, iteration, interval, rate, err) != OK)
		return FAIL;
	if (t->diverged ||
	    (!due(iteration, t->options.checkpoint_interval, last) && !signals_save()))
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

	return logging || !t->backend->lags || t->unsettled == OPTIM_REPORTS ||
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
	return must_settle(t, iteration, logging) ? settle(t, m, logging, err) : OK;
}

static enum status train(struct trainer *t, struct metrics *m, struct progress *progress,
			 enum train_end *end, struct error *reason, struct error *err)
{
	const int64_t last = t->options.iterations;
	struct interval interval = { .started = seconds_now(), .first = t->state.iteration };
	double rate = NAN;

	if (t->saved < 0 && evaluate_now(t, m, 0, err) != OK)
		return FAIL;
	for (int64_t i = t->state.iteration + 1; i <= last && !t->diverged; i++) {
		const bool logging = due(i, t->options.log_interval, last);

		if (must_stop(t, end, reason)) {
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
