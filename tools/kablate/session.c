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

#include "core/backend/cpu/blas.h"
#include "core/train/checkpoint.h"
#include "core/record/journal.h"
#include "core/util/memory.h"
#include "core/util/signals.h"
#include "tools/kablate/audit_memo.h"
#include "tools/kablate/device_memory.h"
#include "tools/kablate/fingerprint.h"
#include "tools/kablate/run_audit.h"
#include "tools/kablate/run_memory.h"
#include "tools/kablate/run_workload.h"

#define LOCK_MICROSECONDS 200000 /* between two looks at a run of another process */

struct session {
	struct run_setup *setup;
	const struct session_options *o;
	char run_dir[4096], done[4200]; /* done: make's target, exists when the run has ended */
	int lock;
	char label[300];
	struct progress progress;
	FILE *nowhere; /* what ranks other than 0 tell */
	struct provenance provenance;
	struct metrics *metrics;
	struct trainer *trainer;
	struct description description;
	enum run_state failure; /* what the run is when it fails now */
};

/* ---------------------------------------------------------------- directory */

static enum status make_directory(const char *path, struct error *err)
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
	snprintf(path, sizeof(path), "%s/%s", o->runs, o->names.experiment);
	if (make_directory(path, err) != OK)
		return FAIL;
	snprintf(s->run_dir, sizeof(s->run_dir), "%s/%s-%" PRIu64 "-%.12s", path, o->names.step,
		 s->setup->seed, s->setup->identity);
	snprintf(s->done, sizeof(s->done), "%s/done", s->run_dir);
	return make_directory(s->run_dir, err);
}

/*
 * Only one process at a time works on a run.  A second process waits, and then finds
 * the run done or takes it over.  File systems without locks are accepted.
 */
static enum status lock_run_dir(struct session *s, struct error *err)
{
	bool told = false;

	s->lock = open(s->run_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->lock < 0)
		return fail_errno(err, "cannot open %s", s->run_dir);
	while (!signals_stop() && flock(s->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
		if (!told)
			progress_message(&s->progress,
					 "%s: waiting for the process that works on it", s->label);
		told = true;
		usleep(LOCK_MICROSECONDS);
	}
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
		"reproduced.  'make rerun RUN=%s' begins anew, 'make ANY_ENVIRONMENT=1' goes on",
		s->label, change->text, s->run_dir);
}

static enum status open_metrics(struct session *s, int64_t resume, struct error *err)
{
	struct error change = { "" };
	char db[2048], tensorboard[4200];
	struct metrics_options options = {
		.run_dir = s->run_dir,
		.db_path = s->o->journal_only ? NULL : db,
		.tensorboard_dir = s->setup->tensorboard ? tensorboard : NULL,
		.warn = progress_warn,
		.warn_context = &s->progress,
	};

	provenance_take(&s->provenance, s->setup, &s->o->names);
	options.record = s->provenance.record;
	snprintf(db, sizeof(db), "%s/results.db", s->o->runs);
	snprintf(tensorboard, sizeof(tensorboard), "%s/tensorboard", s->run_dir);
	if (resume >= 0 && check_environment(s, &change, err) != OK)
		return FAIL;
	if (metrics_open(&s->metrics, &options, resume, err) != OK)
		return FAIL;
	if (change.text[0])
		metrics_event(s->metrics, resume, "environment", change.text);
	return OK;
}

/* What is known before the first iteration. */
static void record_constants(struct session *s)
{
	const struct description *d = &s->description;
	const struct source *source = &s->setup->source;
	const char *const *names = source->task->components;
	char name[60];

	metrics_value(s->metrics, 0, METRIC_PARAMETERS, (double)d->parameters);
	metrics_value(s->metrics, 0, METRIC_FLOPS_PER_TOKEN, description_flops(d));
	if (isfinite(d->decode_token_bytes))
		metrics_value(s->metrics, 0, METRIC_DECODE_TOKEN_BYTES, d->decode_token_bytes);
	metrics_value(s->metrics, 0, METRIC_ARENA_MEGABYTES,
		      (double)trainer_arena_bytes(s->trainer) / 1048576);
	if (source->accuracy)
		metrics_value(s->metrics, 0, METRIC_JUDGED_BY_ACCURACY, 1);
	if (isfinite(source->chance))
		metrics_value(s->metrics, 0, METRIC_CHANCE, source->chance);
	for (int i = 0; names && names[i]; i++) {
		snprintf(name, sizeof(name), METRIC_CHANCE "/%s", names[i]);
		if (isfinite(source->component_chance[i]))
			metrics_value(s->metrics, 0, name, source->component_chance[i]);
	}
}

/* ------------------------------------------------------------------- checks */

static void record_finding(struct session *s, const struct audit_finding *f)
{
	metrics_audit(s->metrics, f->audit, f->subject, f->passed, f->detail);
	if (!f->passed)
		progress_message(&s->progress, "audit %s FAILED: %s: %s", f->audit, f->subject,
				 f->detail);
}

/* The file for the oracle's findings: the same for all seeds of this program on this machine. */
static enum status memo_path(const struct session *s, char *path, size_t size, struct error *err)
{
	const struct run_record *r = &s->provenance.record;
	const char *const parts[] = { r->compiler, r->flags, r->blas, r->machine };
	char directory[2048], hex[SHA256_HEX_SIZE];
	struct sha256 hash;

	run_setup_identity(s->setup, 0, hex);
	sha256_init(&hash);
	sha256_add(&hash, hex, sizeof(hex));
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
		if (parts[i])
			sha256_add(&hash, parts[i], strlen(parts[i]) + 1);
	sha256_hex(&hash, hex);
	snprintf(directory, sizeof(directory), "%s/%s/oracle", s->o->runs, s->o->names.experiment);
	snprintf(path, size, "%s/%s-%.12s", directory, s->o->names.step, hex);
	return make_directory(directory, err);
}

/* All audits; the oracle's only once for all seeds of a step. */
static enum status audit_once(struct session *s, struct audit_report *report, struct error *err)
{
	const bool wanted = s->setup->audit.oracle;
	struct audit_report kept = { .n = 0 };
	enum status status = OK;
	bool known = false;
	char path[2400];

	*report = (struct audit_report){ .n = 0 };
	if (wanted) {
		if (memo_path(s, path, sizeof(path), err) != OK)
			return FAIL;
		known = audit_memo_load(path, &kept);
	}
	s->setup->audit.oracle = wanted && !known;
	status = audit_run(s->setup, report, err);
	s->setup->audit.oracle = wanted;
	for (int i = 0; i < kept.n && status == OK; i++)
		status = audit_add(report, kept.list[i].audit, kept.list[i].subject, true,
				   kept.list[i].detail, err);
	if (status == OK && wanted && !known)
		status = audit_memo_save(path, report, err);
	audit_free(&kept);
	return status;
}

static enum status audit_first(struct session *s, struct error *err)
{
	struct audit_report report;
	enum status status = audit_once(s, &report, err);

	for (int i = 0; i < report.n; i++)
		record_finding(s, &report.list[i]);
	if (status == OK && report.declared_leak)
		metrics_event(s->metrics, 0, "leak", "this arm is declared to see the future");
	if (status == OK && !audit_passed(&report)) {
		s->failure = RUN_INVALID;
		status = fail(err,
			      "an audit failed: this step is not what its configuration claims");
	}
	audit_free(&report);
	return status;
}

static void note_pairing(void *context, const struct audit_finding *f)
{
	struct session *s = context;

	record_finding(s, f);
	if (!f->passed)
		s->failure = RUN_INVALID;
}

/* Is this step paired with its baseline, and does it train something else? */
static enum status audit_pairing(struct session *s, struct error *err)
{
	if (!s->o->baseline_program || !s->setup->audit.pairing)
		return OK;
	if (fingerprint_compare_program(s->setup, s->o->baseline_program, note_pairing, s, err) !=
	    OK)
		return FAIL;
	if (s->failure == RUN_INVALID)
		return fail(err, "an audit failed: this step cannot be compared with its baseline");
	return OK;
}

#define LOSS_TOLERANCE 1e-3 /* of a sum of floats in another order; bfloat16 included */

/* Is the loss that is trained the mean over the scored targets? */
static enum status audit_loss(struct session *s, struct error *err)
{
	struct audit_finding f = { .audit = "training", .subject = "loss" };
	double trained, mean;

	if (!s->setup->audit.training)
		return OK;
	if (trainer_first_loss(s->trainer, &trained, &mean, err) != OK)
		return FAIL;
	f.passed = fabs(trained - mean) <= LOSS_TOLERANCE * fabs(mean);
	snprintf(f.detail, sizeof(f.detail), "it is %.6g, the mean over scored targets is %.6g",
		 trained, mean);
	record_finding(s, &f);
	if (f.passed || !run_setup_leads(s->setup))
		return OK;
	s->failure = RUN_INVALID;
	return fail(err, "an audit failed: the trained loss is not the mean over scored targets");
}

/* Reserves memory, so that runs that start together do not count on the same bytes. */
static enum status reserve_memory(struct session *s, struct error *err)
{
	const double buffers = blas_buffer_bytes(s->setup->backend.threads);
	struct run_memory memory;
	struct error why;

	if (run_memory_measure(s->setup, &s->description, &memory, err) != OK)
		return FAIL;
	if (memory_reserve(NULL, memory.resident, memory.idle + buffers, &why) == OK) {
		if (device_memory_reserve(s->setup, &why) == OK)
			return OK;
		return fail(err, "%s: %s", s->label, why.text);
	}
	return fail(err,
		    "%s: %s: make the model, TRAIN_BATCH or MODEL_BLOCK smaller, or run fewer at a "
		    "time (make -j1)",
		    s->label, why.text);
}

static enum status show_estimate(struct session *s, int64_t done, struct error *err)
{
	const struct train_options *o = &s->setup->train;
	char text[PROGRESS_NUMBER_SIZE];
	double seconds;

	if (trainer_estimate(s->trainer, &seconds, err) != OK)
		return FAIL;
	progress_message(&s->progress, "%s: %lld parameters, %.0f MiB, about %s", s->label,
			 (long long)s->description.parameters,
			 (double)(s->description.weights_bytes + s->description.gradient_bytes +
				  s->description.optimizer_bytes +
				  trainer_arena_bytes(s->trainer)) /
				 1048576,
			 progress_duration(seconds * (double)(o->iterations - done), text));
	return OK;
}

/* ----------------------------------------------------------------- training */

/* `resume` is the iteration after which it goes on; negative: from the start. */
static enum status prepare(struct session *s, int64_t *resume, struct error *err)
{
	struct run_setup *setup = s->setup;
	struct workload workload = run_workload(setup);

	if (run_setup_describe(setup, 0, &s->description, err) != OK ||
	    reserve_memory(s, err) != OK ||
	    run_setup_prepare(setup, progress_warn, &s->progress, err) != OK)
		return FAIL;
	setup->train.run_dir = s->run_dir;
	if (trainer_create(&s->trainer, &workload, &setup->train, setup->params, setup->optimizer,
			   &setup->backend, err) != OK ||
	    trainer_resume(s->trainer, resume, &s->progress, err) != OK)
		return FAIL;
	device_memory_taken(setup, *resume < 0);
	return run_setup_leads(setup) ? open_metrics(s, *resume, err) : OK;
}

static void begin_progress(struct session *s, int64_t first)
{
	progress_begin(&s->progress, s->nowhere ? s->nowhere : stderr, s->label,
		       s->o->lines ? PROGRESS_LINES : PROGRESS_AUTO, first);
}

static enum status close_metrics(struct session *s, enum run_state state, const char *reason,
				 struct error *err)
{
	struct metrics *metrics = s->metrics;

	s->metrics = NULL;
	return metrics ? metrics_close(metrics, state, reason, err) : OK;
}

static enum status save_final(struct session *s, struct error *err)
{
	char path[4200], hex[SHA256_HEX_SIZE];
	struct stat info;

	snprintf(path, sizeof(path), "%s/weights.safetensors", s->run_dir);
	if (params_hash(s->setup->params, hex, err) != OK)
		return FAIL;
	weights_record_add_hash(&s->setup->record, hex);
	if (weights_save(s->setup->params, path, s->setup->record.pair, err) != OK)
		return FAIL;
	if (stat(path, &info) != 0)
		return fail_errno(err, "cannot see %s", path);
	metrics_artifact(s->metrics, "weights", path, hex, (int64_t)info.st_size);
	return OK;
}

static enum status finish(struct session *s, enum train_end end, const struct error *reason,
			  struct error *err)
{
	static const enum run_state states[] = {
		[TRAIN_DONE] = RUN_DONE,	 [TRAIN_INTERRUPTED] = RUN_INTERRUPTED,
		[TRAIN_DIVERGED] = RUN_DIVERGED, [TRAIN_BUDGET] = RUN_BUDGET,
		[TRAIN_INVALID] = RUN_INVALID,
	};
	const bool ended = end == TRAIN_DONE || end == TRAIN_BUDGET;

	progress_end(&s->progress);
	if (!run_setup_leads(s->setup))
		return OK;
	if (end != TRAIN_DONE)
		progress_message(&s->progress, "%s: %s", s->label, reason->text);
	if (ended && save_final(s, err) != OK)
		return FAIL;
	if (close_metrics(s, states[end], end == TRAIN_DONE ? NULL : reason->text, err) != OK)
		return FAIL;
	return ended ? mark_done(s, err) : OK;
}

static void tell_ranks(struct session *s, int64_t iteration)
{
	const struct ranks *r = s->setup->ranks;
	char text[60];

	snprintf(text, sizeof(text), "%d ranks, %s", r->size, r->type->name);
	if (r->size > 1)
		metrics_event(s->metrics, iteration, "ranks", text);
}

/* What was declared before the run, so that a later change shows. */
static enum status record_declaration(struct session *s, struct error *err)
{
	char path[4200], hex[SHA256_HEX_SIZE];

	snprintf(path, sizeof(path), "%s/%s/" DECLARATION_FILE, s->o->runs, s->o->names.experiment);
	if (access(path, F_OK) != 0)
		return OK;
	if (sha256_file(path, hex, err) != OK)
		return FAIL;
	metrics_event(s->metrics, 0, EVENT_DECLARATION, hex);
	return OK;
}

/* What one rank finds out for all. */
static enum status audit_alone(struct session *s, struct error *err)
{
	record_constants(s);
	if (record_declaration(s, err) != OK || audit_first(s, err) != OK)
		return FAIL;
	return audit_pairing(s, err);
}

static enum status train(struct session *s, enum train_end *end, struct error *err)
{
	struct error reason = { "" };
	int64_t resume = -1;

	if (prepare(s, &resume, err) != OK)
		return FAIL;
	tell_ranks(s, resume < 0 ? 0 : resume);
	if (resume < 0) {
		if (run_setup_leads(s->setup) && audit_alone(s, err) != OK)
			return FAIL;
		if (audit_loss(s, err) != OK)
			return FAIL;
	} else {
		progress_message(&s->progress, "%s: resuming after iteration %lld", s->label,
				 (long long)resume);
	}
	device_memory_taken(s->setup, false);
	if (show_estimate(s, resume < 0 ? 0 : resume, err) != OK)
		return FAIL;
	begin_progress(s, resume < 0 ? 0 : resume);
	if (trainer_run(s->trainer, s->metrics, &s->progress, end, &reason, err) != OK)
		return FAIL;
	return finish(s, *end, &reason, err);
}

/* What is to be done with the run. */
enum claim { CLAIM_TRAIN, CLAIM_DONE, CLAIM_STOPPED };

static enum status claim(struct session *s, enum claim *what, struct error *err)
{
	const char *wanted = s->o->identity;

	if (wanted && strncmp(s->setup->identity, wanted, strlen(wanted)) != 0)
		return fail(
			err,
			"%s: this program has another configuration than the run %s: another make "
			"rebuilt it, so call make again",
			s->label, wanted);
	if (make_run_dir(s, err) != OK || lock_run_dir(s, err) != OK)
		return FAIL;
	*what = signals_stop()		     ? CLAIM_STOPPED
		: access(s->done, F_OK) != 0 ? CLAIM_TRAIN
					     : CLAIM_DONE;
	return OK;
}

/* Takes the run directory, unless the run is done already.  Rank 0 finds out. */
static enum status claim_and_train(struct session *s, enum train_end *end, struct error *err)
{
	enum claim what = CLAIM_STOPPED;

	if ((run_setup_leads(s->setup) && claim(s, &what, err) != OK) ||
	    ranks_broadcast(s->setup->ranks, 0, &what, sizeof(what), err) != OK)
		return FAIL;
	*end = TRAIN_INTERRUPTED;
	if (what == CLAIM_TRAIN)
		return train(s, end, err);
	if (what == CLAIM_DONE) {
		*end = TRAIN_DONE;
		progress_message(&s->progress, "%s: is done", s->label);
	}
	return OK;
}

/* Records the failure as far as possible.  Other ranks wait for this one, so all of them end here.
 */
static void record_failure(struct session *s, const struct error *err)
{
	struct error another;

	progress_end(&s->progress);
	if (close_metrics(s, s->failure, err->text, &another) != OK)
		progress_warn(&s->progress, another.text);
	if (!s->setup->ranks || s->setup->ranks->size == 1)
		return;
	fprintf(stderr, "kablate: rank %d: %s\n", s->setup->ranks->rank, err->text);
	ranks_abort(s->setup->ranks, 1);
}

/* The other processes of the run are joined after signals were: none of them ends it unsaved. */
static enum status join_and_train(struct session *s, enum train_end *end, struct error *err)
{
	if (run_setup_join_ranks(s->setup, err) != OK)
		return FAIL;
	if (!run_setup_leads(s->setup)) {
		s->nowhere = fopen("/dev/null", "w");
		if (!s->nowhere)
			return fail_errno(err, "cannot open /dev/null");
		begin_progress(s, 0);
	}
	return claim_and_train(s, end, err);
}

enum status session_run(struct run_setup *setup, const struct session_options *options,
			enum train_end *end, struct error *err)
{
	struct session *s = calloc(1, sizeof(*s));
	enum status status;

	if (!s)
		return fail_memory(err, "session", sizeof(*s));
	s->setup = setup;
	s->o = options;
	s->lock = -1;
	s->failure = RUN_FAILED;
	snprintf(s->label, sizeof(s->label), "%s %s seed %" PRIu64, options->names.experiment,
		 options->names.step, setup->seed);
	signals_install();
	begin_progress(s, 0);
	status = join_and_train(s, end, err);
	if (status != OK)
		record_failure(s, err);
	trainer_destroy(s->trainer);
	metrics_abandon(s->metrics);
	memory_release(NULL);
	device_memory_taken(setup, false);
	if (s->lock >= 0)
		close(s->lock);
	if (s->nowhere)
		fclose(s->nowhere);
	free(s);
	return status;
}
