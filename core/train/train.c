#include "core/train/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/train/layer_norms.h"
#include "core/train/replica.h"
#include "core/train/update_audit.h"
#include "core/util/signals.h"

#define TIMED_UPDATES 3 /* the estimate takes the last one, when the memory is warm */
#define LONG_UPDATE 1	/* seconds: cold memory does not matter to an update of this length */

/*
 * A group commits its records together, and not more often: each is a file to be synced.  Commits
 * take at most this share of the time.
 */
#define COMMIT_SECONDS 1
#define COMMIT_SHARE 0.05

/* A logging interval. */
struct interval {
	double started, committed, commit_took;
	int64_t first;
	bool commits; /* its end */
};

struct trainer {
	struct replica *replicas; /* one of each run */
	int n;
	const struct train_options *options; /* what all runs have in common */
	const struct workload *workload;
	struct params *params;
	struct optimizer *optimizer;
	const struct backend *backend;
	struct ranks *ranks; /* NULL: this process is alone */
	struct update update;
	struct layer_norms norms;
	struct evaluator *evaluator;
	struct evaluation *evaluations; /* by run, the last */
	struct update_audit *audit;	/* NULL: none */
	struct replica *audited; /* of the update that is being made, this run's; NULL: none */
	int64_t audits;		 /* updates that this process has audited */
	uint64_t digest;	 /* of weights and moments after the one that is audited */
	struct optim_reports *reports; /* by run, of the updates last read */
	double *rates;		       /* by run, of the next update */
	int64_t iteration;	       /* the last one that was issued */
	int unsettled;		       /* issued updates whose outcome is not known */
	struct interval interval;
	double tokens_per_second; /* of all runs */
};

/* ----------------------------------------------------------------- creation */

static struct shards *shards(const struct trainer *t)
{
	return t->options->shards;
}

static bool is_leader(const struct trainer *t)
{
	return !t->ranks || t->ranks->rank == 0;
}

static enum status allocate_lists(struct trainer *t, struct error *err)
{
	const size_t n = (size_t)t->n;

	t->replicas = calloc(n, sizeof(*t->replicas));
	t->evaluations = calloc(n, sizeof(*t->evaluations));
	t->reports = calloc(n, sizeof(*t->reports));
	t->rates = calloc(n, sizeof(*t->rates));
	if (t->replicas && t->evaluations && t->reports && t->rates)
		return OK;
	return fail_memory(err, "runs", n * sizeof(*t->replicas));
}

static enum status open_parts(struct trainer *t, struct train_run *runs, struct error *err)
{
	if (allocate_lists(t, err) != OK ||
	    prune_check(&t->options->prune, optimizer_options(t->optimizer), t->params, err) != OK)
		return FAIL;
	for (int i = 0; i < t->n; i++)
		if (replica_open(&t->replicas[i], i, &runs[i], t->params, t->optimizer, err) != OK)
			return FAIL;
	if (update_open(&t->update, runs, t->n, t->params, t->backend, err) != OK ||
	    layer_norms_open(&t->norms, t->params, t->backend, err) != OK ||
	    evaluator_create(&t->evaluator, t->workload, t->n, t->params, t->options->batch,
			     t->backend, &t->options->program, err) != OK)
		return FAIL;
	if (t->options->audited && update_audit_create(&t->audit, t->options->audited, t->params,
						       t->optimizer, shards(t), err) != OK)
		return FAIL;
	for (int i = 0; i < t->n; i++)
		t->replicas[i].audit = t->audit;
	return t->ranks ? evaluator_share(t->evaluator, t->ranks, err) : OK;
}

enum status trainer_create(struct trainer **out, struct train_run *runs, int n,
			   struct params *params, struct optimizer *optimizer,
			   const struct backend *backend, struct error *err)
{
	struct trainer *t = calloc(1, sizeof(*t));

	if (!t)
		return fail_memory(err, "trainer", sizeof(*t));
	t->n = n;
	t->options = &runs[0].options;
	t->workload = &runs[0].workload;
	t->params = params;
	t->optimizer = optimizer;
	t->ranks = t->options->shards ? shards_ranks(t->options->shards) : NULL;
	t->backend = backend;
	t->tokens_per_second = NAN;
	if (open_parts(t, runs, err) != OK) {
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
	update_audit_destroy(t->audit);
	free(t->replicas);
	free(t->evaluations);
	free(t->reports);
	free(t->rates);
	free(t);
}

size_t trainer_arena_bytes(const struct trainer *t)
{
	return program_arena_bytes(t->update.training.p) + evaluator_arena_bytes(t->evaluator);
}

/* --------------------------------------------------------------- run by run */

typedef enum status (*run_step)(struct trainer *t, struct replica *r, struct error *err);

/*
 * Does this for every run that goes on.  What fails ends that run alone, unless the device failed.
 */
static enum status each_run(struct trainer *t, run_step step, struct error *err)
{
	for (int i = 0; i < t->n; i++) {
		struct replica *r = &t->replicas[i];

		if (r->over)
			continue;
		backend_choose(t->backend, i);
		if (step(t, r, &r->run->reason) != OK)
			replica_end(r, TRAIN_FAILED);
	}
	backend_choose(t->backend, REPLICAS_ALL);
	return t->backend->check(t->backend, err);
}

/*
 * The same for a step that writes files, mostly waits for the disk, and reaches the device through
 * the run's checkpoint alone: of several runs at a time.
 */
static enum status write_each_run(struct trainer *t, run_step step, struct error *err)
{
	bool *failed = calloc((size_t)t->n, sizeof(*failed));

	if (!failed)
		return fail_memory(err, "files of runs", (size_t)t->n * sizeof(*failed));
#pragma omp parallel for schedule(dynamic) num_threads(t->update.helpers) if (t->n > 1)
	for (int i = 0; i < t->n; i++) {
		struct replica *r = &t->replicas[i];

		failed[i] = !r->over && step(t, r, &r->run->reason) != OK;
	}
	for (int i = 0; i < t->n; i++)
		if (failed[i])
			replica_end(&t->replicas[i], TRAIN_FAILED);
	free(failed);
	return t->backend->check(t->backend, err);
}

/* Runs that go on. */
static int running(const struct trainer *t)
{
	int n = 0;

	for (int i = 0; i < t->n; i++)
		n += !t->replicas[i].over;
	return n;
}

/* --------------------------------------------------------------- divergence */

/*
 * Runs the update again with the check for NaN, which names the first tensor that is not finite.
 * The other runs get other gradients by this, which the next update overwrites.
 */
static enum status explain_divergence(struct trainer *t, int i, struct error *err)
{
	struct replica *r = &t->replicas[i];
	struct error where;

	backend_choose(t->backend, i);
	program_check_nan(t->update.training.p, true);
	if (update_run(&t->update, r->unexplained, &where) == OK)
		fail(&where, "the gradient's norm overflows");
	program_check_nan(t->update.training.p, t->options->program.check_nan);
	backend_choose(t->backend, REPLICAS_ALL);
	if (t->backend->check(t->backend, err) != OK)
		return FAIL;
	replica_diverge(r, r->unexplained, where.text);
	r->unexplained = 0;
	return OK;
}

static enum status explain_divergences(struct trainer *t, struct error *err)
{
	for (int i = 0; i < t->n; i++)
		if (t->replicas[i].unexplained && explain_divergence(t, i, err) != OK)
			return FAIL;
	return OK;
}

/* --------------------------------------------------------------- evaluation */

static enum status take_evaluation(struct trainer *t, struct replica *r, struct error *err)
{
	return replica_take_evaluation(r, &t->evaluations[r - t->replicas], t->iteration, err);
}

static enum status save_best(struct trainer *t, struct replica *r, struct error *err)
{
	return is_leader(t) ? replica_save_best(r, err) : OK;
}

static enum status conclude(struct trainer *t, struct replica *r, struct error *err)
{
	return replica_conclude(r, t->iteration, err);
}

/* What the workload measures of all runs at once. */
static enum status probe(struct trainer *t, struct error *err)
{
	if (!is_leader(t) || !t->workload->probe)
		return OK;
	return t->workload->probe(t->workload->context, err);
}

/* The losses of all runs.  One that is not finite is a divergence. */
static enum status evaluate_all(struct trainer *t, struct error *err)
{
	struct error where;
	enum status status = evaluate(t->evaluator, t->evaluations, &where);

	if (status == OK && t->options->scoring_tolerance > 0)
		status = evaluator_compare_trained(t->evaluator, &t->update.training,
						   t->evaluations, &where);
	if (t->backend->check(t->backend, err) != OK)
		return FAIL;
	for (int i = 0; i < t->n && status != OK; i++)
		if (!t->replicas[i].over)
			replica_diverge(&t->replicas[i], t->iteration, where.text);
	return status == OK ? probe(t, err) : OK;
}

static enum status evaluate_runs(struct trainer *t, struct error *err)
{
	if (evaluate_all(t, err) != OK)
		return FAIL;
	if (each_run(t, take_evaluation, err) != OK)
		return FAIL;
	phases_enter(t->options->phases, PHASE_RECORDS);
	if (t->options->trained && t->iteration == t->options->iterations)
		t->options->trained(t->options->trained_context);
	return write_each_run(t, save_best, err);
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

static enum status record_norms(struct trainer *t, struct error *err)
{
	if (!is_leader(t))
		return OK;
	if (layer_norms_read(&t->norms, err) != OK)
		return FAIL;
	for (int i = 0; i < t->n; i++)
		if (!t->replicas[i].over)
			layer_norms_record(&t->norms, i, t->replicas[i].run->metrics, t->iteration,
					   t->workload->layer_prefix);
	return OK;
}

/* The evaluation after an update: of the gradient as well. */
static enum status evaluate_update(struct trainer *t, struct error *err)
{
	enum status status;

	phases_enter(t->options->phases, PHASE_EVALUATION);
	if (fetch_gradient(t, err) != OK || record_norms(t, err) != OK ||
	    evaluate_runs(t, err) != OK)
		return FAIL;
	if (t->iteration < t->options->iterations)
		return OK;
	phases_enter(t->options->phases, PHASE_EVALUATION);
	status = each_run(t, conclude, err);
	phases_enter(t->options->phases, PHASE_RECORDS);
	return status;
}

/* ------------------------------------------------------------------ before the loop */

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
	program_check_nan(t->update.training.p, t->options->program.check_nan);
	return OK;
}

/* Of the last rows of this rank. */
static enum status read_first_losses(struct trainer *t, double *nll, struct first_loss *losses,
				     struct error *err)
{
	const struct update_rows rows = update_last_rows(&t->update);
	double *differences = calloc((size_t)t->n, sizeof(*differences));
	enum status status;

	if (!differences)
		return fail_memory(err, "losses", (size_t)t->n * sizeof(*differences));
	update_read_nll(&t->update, nll);
	status = evaluator_compare(t->evaluator, rows.tokens, rows.targets, nll, differences, err);
	for (int i = 0; i < t->n; i++) {
		update_read_last(&t->update, i, nll, &losses[i].trained, &losses[i].mean);
		losses[i].difference = differences[i];
	}
	free(differences);
	return status;
}

/* Every rank gets the losses of the update's last rows, and the largest difference of all. */
static enum status share_first_losses(struct trainer *t, struct first_loss *losses,
				      struct error *err)
{
	const int64_t last = (t->options->accumulate - 1) % t->ranks->size;
	struct first_loss *all = malloc((size_t)t->ranks->size * sizeof(*all));
	enum status status;

	if (!all)
		return fail_memory(err, "ranks", (size_t)t->ranks->size * sizeof(*all));
	status = ranks_gather(t->ranks, losses, all, sizeof(*all), err);
	for (int64_t r = 0; status == OK && r < t->ranks->size; r++)
		all[last].difference = fmax(all[last].difference, all[r].difference);
	if (status == OK)
		*losses = all[last];
	free(all);
	return status;
}

enum status trainer_first_loss(struct trainer *t, struct first_loss *losses, struct error *err)
{
	const size_t bytes = (size_t)t->n * (size_t)update_last_rows(&t->update).n * sizeof(double);
	double *nll = malloc(bytes);
	enum status status;

	if (!nll)
		return fail_memory(err, "losses", bytes);
	status = update_run(&t->update, 1, err);
	if (status == OK)
		status = read_first_losses(t, nll, losses, err);
	free(nll);
	if (t->ranks)
		status = ranks_agree(t->ranks, status, err);
	if (status != OK || (t->ranks && share_first_losses(t, losses, err) != OK))
		return FAIL;
	return t->backend->check(t->backend, err);
}

/* Rank 0 reads the checkpoint and gives every rank its part. */
static enum status load_checkpoint(struct trainer *t, struct replica *r, bool *found,
				   struct progress *progress, struct error *err)
{
	struct optim_scalars scalars;

	if (!is_leader(t) && shards_serve(shards(t), err) != OK)
		return FAIL;
	if (is_leader(t) &&
	    checkpoint_load(&r->checkpoint, &r->state, found, progress_warn, progress, err) != OK)
		return FAIL;
	if (!shards(t))
		return OK;
	scalars = optimizer_scalars(t->optimizer);
	if ((is_leader(t) && shards_done(shards(t), err) != OK) ||
	    ranks_broadcast(t->ranks, 0, found, sizeof(*found), err) != OK ||
	    ranks_broadcast(t->ranks, 0, &r->state, sizeof(r->state), err) != OK ||
	    ranks_broadcast(t->ranks, 0, &scalars, sizeof(scalars), err) != OK)
		return FAIL;
	optimizer_set_scalars(t->optimizer, &scalars);
	return shards_broadcast(shards(t), err);
}

enum status trainer_resume(struct trainer *t, int i, int64_t *iteration, struct progress *progress,
			   struct error *err)
{
	struct replica *r = &t->replicas[i];
	bool found = false;
	enum status status;

	backend_choose(t->backend, i);
	status = load_checkpoint(t, r, &found, progress, err);
	backend_choose(t->backend, REPLICAS_ALL);
	if (status != OK)
		return FAIL;
	r->saved = *iteration = found ? r->state.iteration : -1;
	/* The run may have been killed after it saved and before it pruned. */
	return found && is_leader(t) ? checkpoint_prune(&r->checkpoint, r->saved, err) : OK;
}

/* ------------------------------------------------------------------ an iteration */

static bool due(int64_t iteration, int64_t interval, int64_t last)
{
	return iteration == last || (interval > 0 && iteration % interval == 0);
}

static bool evaluation_due(const struct trainer *t)
{
	return due(t->iteration, t->options->eval_interval, t->options->iterations);
}

static bool checkpoint_due(const struct trainer *t)
{
	return due(t->iteration, t->options->checkpoint_interval, t->options->iterations);
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

/*
 * The first update of a process, those after which there is more to do than the next one, and,
 * of the others, those whose numbers are powers of two.
 */
static bool audit_due(const struct trainer *t, bool logging)
{
	return t->audits == 0 || logging || evaluation_due(t) || checkpoint_due(t) ||
	       (t->iteration & (t->iteration - 1)) == 0;
}

/*
 * Which run's part of this update is audited: the kernels of all are the same, so the runs of a
 * group take turns.
 */
static void choose_audited(struct trainer *t, bool logging)
{
	t->audited = NULL;
	if (!t->audit || !audit_due(t, logging))
		return;
	for (int i = 0; i < t->n && !t->audited; i++) {
		struct replica *r = &t->replicas[(t->audits + i) % t->n];

		if (!r->over)
			t->audited = r;
	}
}

static enum status begin_audit(struct trainer *t, struct error *err)
{
	const struct train_run *run = t->audited->run;
	enum status status = OK;
	struct error why;

	if (update_audit_follow(t->audit, run->options.audited, err) != OK)
		return FAIL;
	backend_choose(t->backend, t->audited->number);
	if ((t->audits == 0 || evaluation_due(t)) &&
	    update_audit_micros(t->audit, &t->update.training, &run->workload, run->options.seed,
				t->iteration, &why) != OK)
		status = t->backend->check(t->backend, err); /* the update will find what else */
	if (status == OK)
		update_audit_before(t->audit);
	backend_choose(t->backend, REPLICAS_ALL);
	return status;
}

/* Between the passes and the optimizer. */
static enum status audit_gradient(struct trainer *t, struct error *err)
{
	enum status status;

	backend_choose(t->backend, t->audited->number);
	status = update_audit_gradient(t->audit, t->iteration, err);
	backend_choose(t->backend, REPLICAS_ALL);
	return status;
}

/* Is the update that was just made the configured one, on as many rows as configured? */
static enum status judge_update(struct trainer *t, struct replica *r, struct error *err)
{
	const int64_t rows = t->iteration * update_audit_rows(t->audit);
	struct error finding;

	if (update_audit_after(t->audit, t->iteration, r->norm, &finding, err) != OK ||
	    replica_sum_rows(r, err) != OK)
		return FAIL;
	if (finding.text[0])
		replica_fail_audit(r, "update", "%s", finding.text);
	else if (r->state.given.rows >= 0 && r->state.given.rows != rows)
		replica_fail_audit(r, "rows",
				   "audit update FAILED: rows: %lld were trained on in %lld "
				   "updates; configured are %lld",
				   (long long)r->state.given.rows, (long long)t->iteration,
				   (long long)rows);
	else if (r->state.tokens != (double)(rows * t->workload->length))
		replica_fail_audit(
			r, "tokens",
			"audit update FAILED: tokens: %.0f were counted in %lld updates; "
			"there were %lld",
			r->state.tokens, (long long)t->iteration,
			(long long)(rows * t->workload->length));
	return OK;
}

static enum status end_audit(struct trainer *t, struct error *err)
{
	enum status status;

	t->audits++;
	if (t->audited->over)
		return OK;
	backend_choose(t->backend, t->audited->number);
	status = judge_update(t, t->audited, err);
	if (status == OK)
		status = update_audit_digest(t->audit, &t->digest, err);
	backend_choose(t->backend, REPLICAS_ALL);
	return status;
}

/* Evaluation, records and checkpoint must have left weights and moments as they were. */
static enum status audit_unchanged(struct trainer *t, struct error *err)
{
	uint64_t digest;
	enum status status;

	if (!t->audited || t->audited->over)
		return OK;
	backend_choose(t->backend, t->audited->number);
	status = update_audit_digest(t->audit, &digest, err);
	backend_choose(t->backend, REPLICAS_ALL);
	if (status == OK && digest != t->digest)
		replica_fail_audit(t->audited, "unchanged",
				   "audit update FAILED: unchanged: after update %lld, evaluation, "
				   "records or checkpoint changed weights or moments",
				   (long long)t->iteration);
	return status;
}

/* What is pruned from this update on, of one run. */
static enum status choose_pruned(struct trainer *t, struct replica *r, struct error *err)
{
	(void)r;
	return prune_choose(&t->options->prune, t->iteration, t->params, t->optimizer, shards(t),
			    err);
}

/* Ask for one update.  Its outcome is known when settle() has read it. */
static enum status step(struct trainer *t, struct error *where)
{
	if (update_run(&t->update, t->iteration, where) != OK)
		return FAIL;
	for (int i = 0; i < t->n; i++) {
		t->rates[i] = schedule_rate(&t->replicas[i].run->options.schedule, t->iteration);
		t->replicas[i].state.tokens += (double)update_tokens(&t->update);
		data_sum_join(&t->replicas[i].given, &t->update.given[i]);
	}
	if (t->audited && audit_gradient(t, where) != OK)
		return FAIL;
	optimizer_ask(t->optimizer, t->iteration, t->rates, t->update.losses,
		      update_losses(&t->update));
	t->unsettled++;
	return OK;
}

/* Wait for the issued updates, and record what they did; `logging`: the last one's losses, too. */
static enum status settle(struct trainer *t, bool logging, struct error *err)
{
	struct loss_parts parts;

	if (!t->unsettled)
		return OK;
	t->unsettled = 0;
	if (optimizer_read_each(t->optimizer, t->reports, err) != OK)
		return FAIL;
	update_read_losses(&t->update);
	if (t->backend->check(t->backend, err) != OK)
		return FAIL;
	for (int i = 0; i < t->n; i++) {
		update_loss_parts(&t->update, i, &parts);
		if (!t->replicas[i].over)
			replica_settle(&t->replicas[i], &t->reports[i], &parts, logging);
	}
	return OK;
}

/* Must the outcome of this iteration be known before the next one? */
static bool must_settle(const struct trainer *t, bool logging)
{
	return logging || !t->backend->is_async || t->unsettled == OPTIM_REPORTS ||
	       evaluation_due(t) || checkpoint_due(t);
}

/* An update whose tensors are not finite.  Only a group of one looks at every tensor. */
static enum status step_failed(struct trainer *t, struct error *err)
{
	if (t->backend->check(t->backend, err) != OK || settle(t, false, err) != OK)
		return FAIL;
	for (int i = 0; i < t->n; i++)
		if (!t->replicas[i].over) {
			t->replicas[i].unexplained = t->iteration;
			replica_end(&t->replicas[i], TRAIN_DIVERGED);
		}
	return OK;
}

static enum status iterate(struct trainer *t, bool logging, struct error *err)
{
	struct error ignored;

	if (prune_due(&t->options->prune, t->iteration) && each_run(t, choose_pruned, err) != OK)
		return FAIL;
	choose_audited(t, logging);
	if (t->audited && begin_audit(t, err) != OK)
		return FAIL;
	if (step(t, &ignored) != OK)
		return step_failed(t, err);
	if (shards(t) && shards_all_gather(shards(t), err) != OK)
		return FAIL;
	if ((t->audited || must_settle(t, logging)) && settle(t, logging, err) != OK)
		return FAIL;
	return t->audited ? end_audit(t, err) : OK;
}

static enum status prepare_save(struct trainer *t, struct replica *r, struct error *err)
{
	if (replica_prepare_save(r, &r->is_unsaved, err) != OK)
		return FAIL;
	if (!r->is_unsaved)
		return OK;
	if (replica_sum_rows(r, err) != OK)
		return FAIL;
	return t->audit ? update_audit_digest(t->audit, &r->state.digest, err) : OK;
}

/* Rank 0 writes what all ranks have. */
static enum status write_checkpoint(struct trainer *t, struct replica *r, struct error *err)
{
	if (!r->is_unsaved)
		return OK;
	if (!is_leader(t) ? shards_serve(shards(t), err) != OK
			  : checkpoint_save(&r->checkpoint, &r->state, err) != OK ||
				    (shards(t) && shards_done(shards(t), err) != OK))
		return FAIL;
	r->saved = r->state.iteration;
	return OK;
}

static enum status save_all(struct trainer *t, struct error *err)
{
	if (each_run(t, prepare_save, err) != OK)
		return FAIL;
	return write_each_run(t, write_checkpoint, err);
}

static enum status log_run(struct trainer *t, struct replica *r, struct error *err)
{
	return replica_log(r, t->iteration, t->tokens_per_second / t->n, 1.0 / t->n,
			   t->interval.commits, err);
}

static enum status log_interval(struct trainer *t, struct error *err)
{
	struct interval *interval = &t->interval;
	const double now = seconds_now();
	const double pause = fmax(COMMIT_SECONDS, interval->commit_took / COMMIT_SHARE);
	const int64_t updates = t->iteration - interval->first;

	t->tokens_per_second =
		(double)(updates * update_tokens(&t->update) * t->n) / (now - interval->started);
	interval->first = t->iteration;
	interval->started = now;
	interval->commits = t->n == 1 || t->iteration == t->options->iterations ||
			    now - interval->committed >= pause;
	if (each_run(t, log_run, err) != OK)
		return FAIL;
	if (interval->commits) {
		interval->committed = seconds_now();
		interval->commit_took = interval->committed - now;
	}
	return OK;
}

static enum status finish_iteration(struct trainer *t, bool logging, struct error *err)
{
	int wanted = true; /* a checkpoint */

	if (evaluation_due(t) && evaluate_update(t, err) != OK)
		return FAIL;
	if (logging && log_interval(t, err) != OK)
		return FAIL;
	if (!running(t))
		return OK;
	if (!checkpoint_due(t) && any_of_ranks(t, signals_save(), &wanted, err) != OK)
		return FAIL;
	if (!wanted)
		return OK;
	return settle(t, false, err) == OK ? save_all(t, err) : FAIL;
}

/* ------------------------------------------------------------------ stopping */

/* The runs stop here, and go on later. */
static enum status interrupt(struct trainer *t, int signal, struct error *err)
{
	if (settle(t, false, err) != OK || save_all(t, err) != OK)
		return FAIL;
	for (int i = 0; i < t->n; i++)
		if (!t->replicas[i].over) {
			fail(&t->replicas[i].run->reason, "signal %d", signal);
			replica_end(&t->replicas[i], TRAIN_INTERRUPTED);
		}
	return OK;
}

/* Rank 0's clock decides. */
static enum status find_budget(struct trainer *t, struct replica *r, struct error *err)
{
	int late = is_leader(t) && replica_out_of_time(r);

	if (r->run->options.seconds_budget > 0 && any_of_ranks(t, late, &late, err) != OK)
		return FAIL;
	r->stops = late || replica_out_of_tokens(r);
	return OK;
}

static bool any_stops(const struct trainer *t)
{
	for (int i = 0; i < t->n; i++)
		if (t->replicas[i].stops && !t->replicas[i].over)
			return true;
	return false;
}

/* A run that its budget ends gets its final evaluation now; an interrupted run gets it later. */
static enum status end_by_budget(struct trainer *t, struct replica *r, struct error *err)
{
	if (!r->stops)
		return OK;
	if (!evaluation_due(t) && (take_evaluation(t, r, err) != OK || save_best(t, r, err) != OK))
		return FAIL;
	if (r->over)
		return OK;
	if (conclude(t, r, err) != OK || prepare_save(t, r, err) != OK ||
	    write_checkpoint(t, r, err) != OK)
		return FAIL;
	replica_end_by_budget(r);
	return OK;
}

static enum status stop_runs(struct trainer *t, struct error *err)
{
	int signal;

	if (find_signal(t, t->iteration, &signal, err) != OK)
		return FAIL;
	if (signal)
		return interrupt(t, signal, err);
	if (each_run(t, find_budget, err) != OK)
		return FAIL;
	if (!any_stops(t))
		return OK;
	if (settle(t, false, err) != OK ||
	    (any_stops(t) && !evaluation_due(t) && evaluate_all(t, err) != OK))
		return FAIL;
	return each_run(t, end_by_budget, err);
}

/* ---------------------------------------------------------------------- the loop */

/* Of all runs that go on, in the mean. */
static struct progress_point progress_of(const struct trainer *t)
{
	struct progress_point p = {
		.iteration = t->iteration,
		.iterations = t->options->iterations,
		.tokens_per_second = t->tokens_per_second,
	};

	for (int i = 0; i < t->n; i++)
		if (!t->replicas[i].over) {
			p.loss += t->replicas[i].loss / running(t);
			p.validation += t->replicas[i].validation / running(t);
		}
	return p;
}

static enum status run_iteration(struct trainer *t, struct progress *progress, struct error *err)
{
	struct progress_point point;
	bool logging;

	t->iteration++;
	logging = due(t->iteration, t->options->log_interval, t->options->iterations);
	phases_enter(t->options->phases, PHASE_TRAINING);
	if (iterate(t, logging, err) != OK)
		return FAIL;
	phases_enter(t->options->phases, PHASE_RECORDS);
	if (running(t) &&
	    (finish_iteration(t, logging, err) != OK || audit_unchanged(t, err) != OK))
		return FAIL;
	if (explain_divergences(t, err) != OK)
		return FAIL;
	point = progress_of(t);
	if (running(t))
		progress_update(progress, &point, logging);
	return OK;
}

/* Do weights and moments begin as they were when the checkpoint was saved? */
static enum status audit_resumed(struct trainer *t, struct replica *r, struct error *err)
{
	uint64_t digest;

	if (r->saved < 0 || !t->audit || !r->state.digest)
		return OK;
	if (update_audit_digest(t->audit, &digest, err) != OK)
		return FAIL;
	if (digest != r->state.digest)
		replica_fail_audit(
			r, "resume",
			"audit update FAILED: resume: weights or moments are not those that were "
			"saved after update %lld",
			(long long)r->state.iteration);
	return OK;
}

/* Were all updates made that are configured? */
static void audit_end(struct trainer *t)
{
	const int64_t total = t->audit ? update_audit_updates(t->audit) : 0;

	for (int i = 0; i < t->n; i++) {
		struct replica *r = &t->replicas[i];

		if (t->audit && !r->over && r->state.iteration != total)
			replica_fail_audit(
				r, "updates",
				"audit update FAILED: updates: the run ends after %lld of %lld",
				(long long)r->state.iteration, (long long)total);
	}
}

/* A run that was saved at iteration 0 has been evaluated there. */
static bool begins(const struct trainer *t)
{
	for (int i = 0; i < t->n; i++)
		if (!t->replicas[i].over)
			return t->replicas[i].saved < 0;
	return false;
}

static enum status train(struct trainer *t, struct progress *progress, struct error *err)
{
	phases_enter(t->options->phases, PHASE_EVALUATION);
	if (each_run(t, audit_resumed, err) != OK || (begins(t) && evaluate_runs(t, err) != OK))
		return FAIL;
	while (running(t) && t->iteration < t->options->iterations) {
		if (stop_runs(t, err) != OK)
			return FAIL;
		if (explain_divergences(t, err) != OK)
			return FAIL;
		if (running(t) && run_iteration(t, progress, err) != OK)
			return FAIL;
	}
	audit_end(t);
	return OK;
}

static void begin(struct trainer *t)
{
	const double now = seconds_now();

	for (int i = 0; i < t->n; i++) {
		struct replica *r = &t->replicas[i];

		r->run->end = TRAIN_DONE;
		r->over = r->run->left_out;
		optimizer_switch(t->optimizer, i, !r->over);
		r->started = now - r->state.seconds;
		if (!r->over)
			t->iteration = r->state.iteration;
	}
	t->interval = (struct interval){ .started = now, .committed = now, .first = t->iteration };
}

/* The last records of runs that ended without a checkpoint. */
static void commit_ends(struct trainer *t)
{
	for (int i = 0; i < t->n; i++) {
		struct train_run *run = t->replicas[i].run;

		if (run->end != TRAIN_DIVERGED && run->end != TRAIN_INVALID)
			continue;
		if (!run->left_out && metrics_commit(run->metrics, &run->reason) != OK)
			run->end = TRAIN_FAILED;
	}
}

enum status trainer_run(struct trainer *t, struct progress *progress, struct error *err)
{
	begin(t);
	if (train(t, progress, err) != OK)
		return FAIL;
	commit_ends(t);
	return OK;
}
