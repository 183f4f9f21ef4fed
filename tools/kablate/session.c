#include "tools/kablate/session.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/record/journal.h"
#include "core/train/checkpoint.h"
#include "core/util/signals.h"
#include "models/audit/graphs.h"
#include "tools/kablate/run_workload.h"

#define LOCK_MICROSECONDS 200000 /* between two looks at a run of another process */

/* ---------------------------------------------------------------- directory */

enum status make_directory(const char *path, struct error *err)
{
	if (mkdir(path, 0777) != 0 && errno != EEXIST)
		return fail_errno(err, "cannot make the directory %s", path);
	return OK;
}

static enum status make_run_dir(struct session *s, struct error *err)
{
	const struct session_options *o = s->o;
	char path[2048];

	if (make_directory(o->runs, err) != OK)
		return FAIL;
	snprintf(path, sizeof(path), "%s/%s", o->runs, s->names.experiment);
	if (make_directory(path, err) != OK)
		return FAIL;
	snprintf(s->run_dir, sizeof(s->run_dir), "%s/%s-%" PRIu64 "-%.12s", path, s->names.step,
		 s->setup.seed, s->setup.identity);
	snprintf(s->done, sizeof(s->done), "%s/done", s->run_dir);
	s->setup.train.run_dir = s->run_dir;
	return make_directory(s->run_dir, err);
}

/* A second process waits, and then finds the run done or takes it over.  File systems without locks
 * are accepted. */
static enum status lock_run_dir(struct session *s, bool waits, bool *busy, struct error *err)
{
	bool told = false;

	*busy = false;
	s->lock = open(s->run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->lock < 0)
		return fail_errno(err, "cannot open %s", s->run_dir);
	while (!signals_stop() && flock(s->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
		if (!waits) {
			*busy = true;
			return OK;
		}
		if (!told)
			progress_message(s->progress,
					 "%s: waiting for the process that works on it", s->label);
		told = true;
		usleep(LOCK_MICROSECONDS);
	}
	return OK;
}

static void unlock(struct session *s)
{
	if (s->lock >= 0)
		close(s->lock);
	s->lock = -1;
}

enum status session_claim(struct session *s, const char *identity, bool waits, enum claim *what,
			  struct error *err)
{
	bool busy;

	if (identity && strncmp(s->setup.identity, identity, strlen(identity)) != 0)
		return fail(
			err,
			"%s: this program has another configuration than the run %s: another make "
			"rebuilt it, so call make again",
			s->label, identity);
	if (make_run_dir(s, err) != OK || lock_run_dir(s, waits, &busy, err) != OK)
		return FAIL;
	*what = busy			     ? CLAIM_BUSY
		: signals_stop()	     ? CLAIM_STOPPED
		: access(s->done, F_OK) != 0 ? CLAIM_TRAIN
					     : CLAIM_DONE;
	if (*what != CLAIM_TRAIN)
		unlock(s);
	return OK;
}

static enum status mark_done(const struct session *s, struct error *err)
{
	FILE *file = fopen(s->done, "w");

	if (!file || fclose(file) != 0)
		return fail_errno(err, "cannot write %s", s->done);
	return OK;
}

/* ------------------------------------------------------------------ records */

/* A run must end in the bits of the environment in which it began. */
static enum status check_environment(struct session *s, struct error *change, struct error *err)
{
	struct record_file then;

	if (record_read(&then, s->run_dir, err) != OK)
		return OK; /* metrics_open() will report what is wrong */
	record_environment_differs(&then.record, &s->provenance.record, change);
	record_free(&then);
	if (!change->text[0] || s->o->any_environment)
		return OK;
	return fail(
		err,
		"%s: the run began in another environment (%s), so its result could not be "
		"reproduced.  'make rerun RUN=%s' starts over, 'make ANY_ENVIRONMENT=1' continues",
		s->label, change->text, s->run_dir);
}

enum status session_begin(struct session *s, struct error *err)
{
	struct error change = { "" };
	char db[2048], tensorboard[4200];
	struct metrics_options options = {
		.run_dir = s->run_dir,
		.db_path = s->o->journal_only ? NULL : db,
		.tensorboard_dir = s->setup.tensorboard ? tensorboard : NULL,
		.warn = progress_warn,
		.warn_context = s->progress,
	};

	provenance_take(&s->provenance, &s->setup, &s->names);
	options.record = s->provenance.record;
	snprintf(db, sizeof(db), "%s/results.db", s->o->runs);
	snprintf(tensorboard, sizeof(tensorboard), "%s/tensorboard", s->run_dir);
	if (s->resume >= 0 && check_environment(s, &change, err) != OK)
		return FAIL;
	if (metrics_open(&s->run->metrics, &options, s->resume, err) != OK)
		return FAIL;
	if (change.text[0])
		metrics_event(s->run->metrics, s->resume, "environment", change.text);
	return OK;
}

/* What was declared before the run, so that a later change shows. */
static enum status record_declaration(struct session *s, struct error *err)
{
	char path[4200], hex[SHA256_HEX_SIZE];

	snprintf(path, sizeof(path), "%s/%s/" DECLARATION_FILE, s->o->runs, s->names.experiment);
	if (access(path, F_OK) != 0)
		return OK;
	if (sha256_file(path, hex, err) != OK)
		return FAIL;
	metrics_event(s->run->metrics, 0, EVENT_DECLARATION, hex);
	return OK;
}

enum status session_record_constants(struct session *s, const struct description *d,
				     double arena_bytes, struct error *err)
{
	const struct source *source = &s->setup.source;
	const char *const *names = source->components;
	struct metrics *m = s->run->metrics;
	char name[60];

	metrics_value(m, 0, METRIC_PARAMETERS, (double)d->parameters);
	metrics_value(m, 0, METRIC_FLOPS_PER_TOKEN, description_flops(d));
	if (isfinite(d->decode_token_bytes))
		metrics_value(m, 0, METRIC_DECODE_TOKEN_BYTES, d->decode_token_bytes);
	metrics_value(m, 0, METRIC_ARENA_MEGABYTES, arena_bytes / 1048576);
	if (source->accuracy)
		metrics_value(m, 0, METRIC_JUDGED_BY_ACCURACY, 1);
	if (isfinite(source->chance))
		metrics_value(m, 0, METRIC_CHANCE, source->chance);
	for (int i = 0; names && names[i]; i++) {
		snprintf(name, sizeof(name), METRIC_CHANCE "/%s", names[i]);
		if (isfinite(source->component_chance[i]))
			metrics_value(m, 0, name, source->component_chance[i]);
	}
	return record_declaration(s, err);
}

/* ------------------------------------------------------------------- audits */

void session_record_audits(struct session *s, const struct audit_report *report)
{
	const struct audit_finding *f = report->list;

	for (int i = 0; i < report->n; i++, f++)
		metrics_audit(s->run->metrics, f->audit, f->subject, f->passed, f->detail);
	if (report->declared_leak)
		metrics_event(s->run->metrics, 0, "leak", "this arm is declared to see the future");
}

#define LOSS "loss"
#define PROGRAMS "programs"
#define LOSS_TOLERANCE 1e-3 /* of a sum of floats in another order; bfloat16 included */

static enum status judge(struct session *s, const char *subject, bool passed, const char *detail,
			 const char *reason, struct error *err)
{
	metrics_audit(s->run->metrics, "training", subject, passed, detail);
	if (passed || !run_setup_leads(&s->setup))
		return OK;
	progress_message(s->progress, "audit training FAILED: %s: %s", subject, detail);
	s->failure = RUN_INVALID;
	return fail(err, "an audit failed: %s", reason);
}

static enum status audit_mean(struct session *s, const struct first_loss *loss, struct error *err)
{
	char detail[160];

	snprintf(detail, sizeof(detail), "it is %.6g, the mean over scored targets is %.6g",
		 loss->trained, loss->mean);
	return judge(s, LOSS, fabs(loss->trained - loss->mean) <= LOSS_TOLERANCE * fabs(loss->mean),
		     detail, "the trained loss is not the mean over scored targets", err);
}

static bool has_dropout(const struct session *s)
{
	return s->setup.model->dropout > 0;
}

static enum status audit_programs(struct session *s, const struct first_loss *loss,
				  struct error *err)
{
	const enum precision precision = s->setup.precision;
	const double allowed = scoring_tolerance(precision_type(precision), precision);
	char detail[160];

	snprintf(detail, sizeof(detail),
		 "those that train and evaluate score a target differently by %.1e; %g is allowed",
		 loss->difference, allowed);
	return judge(s, PROGRAMS, loss->difference <= allowed, detail,
		     "what is evaluated is not what is trained", err);
}

enum status session_audit_loss(struct session *s, const struct first_loss *loss, struct error *err)
{
	if (audit_mean(s, loss, err) != OK)
		return FAIL;
	return has_dropout(s) ? OK : audit_programs(s, loss, err);
}

struct audit_search {
	const char *subject;
	bool found;
};

static enum status find_audit(void *context, const struct entry *e, struct error *err)
{
	struct audit_search *search = context;

	(void)err;
	if (e->kind == ENTRY_AUDIT && strcmp(e->name, "training") == 0 && e->subject &&
	    strcmp(e->subject, search->subject) == 0)
		search->found = true;
	return OK;
}

enum status session_has_loss_audits(const struct session *s, bool *has, struct error *err)
{
	struct audit_search search = { .subject = has_dropout(s) ? LOSS : PROGRAMS };
	enum status status;
	size_t size;
	char *text;

	if (journal_read(s->run_dir, s->setup.identity, &text, &size, err) != OK)
		return FAIL;
	status = journal_visit(text, size, 1, find_audit, &search, err);
	free(text);
	*has = search.found;
	return status;
}

/* ----------------------------------------------------------- begin and end */

/* Rates that Muon keeps in proportion are the optimizer's, which all runs share. */
static enum status vary_rates(struct session *s, const struct wanted_run *wanted, struct error *err)
{
	const struct config *c = s->setup.config;
	struct config *rate;

	if (config_raw(c, "MUON_LEARNING_RATE"))
		return fail(err,
			    "--rates: with Muon, runs of several rates need programs of their own");
	if (config_vary(&rate, c, "LEARNING_RATE", wanted->rate, err))
		return FAIL;
	s->varied = rate;
	if (!wanted->least_rate)
		return OK;
	return config_set(rate, "MIN_LEARNING_RATE", wanted->least_rate, err);
}

/* The ranges that Kconfig has of them. */
static enum status check_rates(struct config *c, const struct wanted_run *wanted, struct error *err)
{
	if (config_check(c, err) != OK)
		return FAIL;
	if (!(config_real(c, "LEARNING_RATE") > 0))
		return fail(err, "--rates: a rate of %s is not above 0", wanted->rate);
	if (wanted->least_rate && !(config_real(c, "MIN_LEARNING_RATE") >= 0))
		return fail(err, "--rates: a lowest rate of %s is below 0", wanted->least_rate);
	return OK;
}

enum status session_open(struct session *s, const struct run_setup *setup,
			 const struct wanted_run *wanted, const struct session_options *options,
			 struct progress *progress, struct error *err)
{
	*s = (struct session){
		.o = options,
		.names = options->names,
		.setup = *setup,
		.lock = -1,
		.failure = RUN_FAILED,
		.progress = progress,
	};
	s->setup.record = (struct weights_record){ 0 };
	if (wanted->step)
		s->names.step = s->names.baseline = wanted->step;
	snprintf(s->label, sizeof(s->label), "%s %s seed %" PRIu64, s->names.experiment,
		 s->names.step, wanted->seed);
	if (wanted->rate && vary_rates(s, wanted, err) != OK)
		return FAIL;
	if (run_setup_vary(&s->setup, setup, wanted->seed, s->varied ? s->varied : setup->config,
			   err) != OK)
		return FAIL;
	return s->varied ? check_rates(s->varied, wanted, err) : OK;
}

static enum status close_metrics(struct session *s, enum run_state state, const char *reason,
				 struct error *err)
{
	struct metrics *metrics = s->run ? s->run->metrics : NULL;

	if (!metrics)
		return OK;
	s->run->metrics = NULL;
	return metrics_close(metrics, state, reason, err);
}

void session_close(struct session *s)
{
	if (s->run)
		metrics_abandon(s->run->metrics);
	unlock(s);
	weights_record_free(&s->setup.record);
	config_free(s->varied);
}

static enum status save_final(struct session *s, struct error *err)
{
	char path[4200], hex[SHA256_HEX_SIZE];
	struct stat info;

	snprintf(path, sizeof(path), "%s/weights.safetensors", s->run_dir);
	if (params_hash(s->setup.params, hex, err) != OK)
		return FAIL;
	weights_record_add_hash(&s->setup.record, hex);
	if (weights_save(s->setup.params, path, s->setup.record.pair, err) != OK)
		return FAIL;
	if (stat(path, &info) != 0)
		return fail_errno(err, "cannot see %s", path);
	metrics_artifact(s->run->metrics, "weights", path, hex, (int64_t)info.st_size);
	return OK;
}

static enum status finish(struct session *s, struct error *err)
{
	static const enum run_state states[] = {
		[TRAIN_DONE] = RUN_DONE,	 [TRAIN_INTERRUPTED] = RUN_INTERRUPTED,
		[TRAIN_DIVERGED] = RUN_DIVERGED, [TRAIN_BUDGET] = RUN_BUDGET,
		[TRAIN_INVALID] = RUN_INVALID,
	};
	const enum train_end end = s->run->end;
	const char *reason = end == TRAIN_DONE ? NULL : s->run->reason.text;
	const bool saves = end == TRAIN_DONE || end == TRAIN_BUDGET;

	if (end == TRAIN_INTERRUPTED)
		progress_message(s->progress,
				 "%s: saved after iteration %lld of %lld; 'make' continues",
				 s->label, (long long)s->progress->last,
				 (long long)s->setup.train.iterations);
	else if (reason)
		progress_message(s->progress, "%s: %s", s->label, reason);
	if (saves && save_final(s, err) != OK)
		return FAIL;
	if (close_metrics(s, states[end], reason, err) != OK)
		return FAIL;
	return saves || (end == TRAIN_DIVERGED && s->o->keep_diverged) ? mark_done(s, err) : OK;
}

static void end(struct session *s, enum train_end end, const struct error *reason)
{
	s->over = true;
	s->end = end;
	s->reason = *reason;
	unlock(s);
}

void session_finish(struct session *s)
{
	struct error err;

	if (s->run->end == TRAIN_FAILED)
		session_fail(s, &s->run->reason);
	else if (run_setup_leads(&s->setup) && finish(s, &err) != OK)
		session_fail(s, &err);
	else
		end(s, s->run->end, &s->run->reason);
}

void session_fail(struct session *s, const struct error *err)
{
	struct error another;

	if (close_metrics(s, s->failure, err->text, &another) != OK)
		progress_warn(s->progress, another.text);
	end(s, TRAIN_FAILED, err);
}
