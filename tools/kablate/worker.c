#include "tools/kablate/worker.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/backend/cpu/blas.h"
#include "core/train/checkpoint.h"
#include "core/util/memory.h"
#include "core/util/signals.h"
#include "models/audit/initial.h"
#include "tools/kablate/audit_memo.h"
#include "tools/kablate/device_memory.h"
#include "tools/kablate/fingerprint.h"
#include "tools/kablate/run_audit.h"
#include "tools/kablate/run_memory.h"
#include "tools/kablate/run_workload.h"

struct worker {
	struct run_setup
		*setup; /* of the step; where there are replicas, with memory for one run */
	const struct session_options *o;
	const struct wanted_run *wanted;
	struct session *sessions;
	int n;
	char label[300];
	struct progress progress;
	FILE *nowhere; /* output of ranks other than 0 */
	struct description description;
	struct provenance provenance;
	struct phases phases;
	struct audit_report audits; /* of the step */
	bool audited;
	struct error invalid; /* why the step is invalid; empty: it is not */
	int most;	      /* runs at once; 0: not known yet */
};

/* Runs that train together. */
struct group {
	struct worker *w;
	struct run_setup setup; /* with memory for all of them */
	struct session **members;
	struct train_run *runs;
	uint64_t *seeds;
	int n;
	bool opened; /* a device of its own */
	int turn;    /* on the device; -1: it is not ours */
	char label[300];
	struct trainer *trainer;
};

/* ------------------------------------------------------------------- audits */

/* The file for the oracle's findings: the same for all seeds of this program on this machine. */
static enum status memo_path(const struct worker *w, char *path, size_t size, struct error *err)
{
	const struct run_record *r = &w->provenance.record;
	const char *const parts[] = { r->compiler, r->flags, r->blas, r->machine };
	char directory[2048], hex[SHA256_HEX_SIZE];
	struct sha256 hash;

	run_setup_identity(w->setup, 0, hex);
	sha256_init(&hash);
	sha256_add(&hash, hex, sizeof(hex));
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
		if (parts[i])
			sha256_add(&hash, parts[i], strlen(parts[i]) + 1);
	sha256_hex(&hash, hex);
	snprintf(directory, sizeof(directory), "%s/%s/oracle", w->o->runs, w->o->names.experiment);
	snprintf(path, size, "%s/%s-%.12s", directory, w->o->names.step, hex);
	return make_directory(directory, err);
}

/* All audits; the oracle's only once for all seeds of a step. */
static enum status audit_once(struct worker *w, struct audit_report *report, struct error *err)
{
	const bool wanted = w->setup->audit.oracle;
	struct audit_report kept = { .n = 0 };
	enum status status = OK;
	bool known = false;
	char path[2400];

	*report = (struct audit_report){ .n = 0 };
	if (wanted) {
		if (memo_path(w, path, sizeof(path), err) != OK)
			return FAIL;
		known = audit_memo_load(path, &kept);
	}
	w->setup->audit.oracle = wanted && !known;
	status = audit_run(w->setup, report, err);
	w->setup->audit.oracle = wanted;
	for (int i = 0; i < kept.n && status == OK; i++)
		status = audit_add(report, kept.list[i].audit, kept.list[i].subject, true,
				   kept.list[i].detail, err);
	if (status == OK && wanted && !known)
		status = audit_memo_save(path, report, err);
	audit_free(&kept);
	return status;
}

struct pairing {
	struct audit_report *report;
	enum status status;
	struct error *err;
};

static void note_pairing(void *context, const struct audit_finding *f)
{
	struct pairing *p = context;

	if (p->status == OK)
		p->status =
			audit_add(p->report, f->audit, f->subject, f->passed, f->detail, p->err);
}

/* Is this step paired with its baseline, and does it train something else? */
static enum status audit_pairing(struct worker *w, struct run_setup *setup, struct error *err)
{
	struct pairing pairing = { &w->audits, OK, err };

	if (!w->o->baseline_program || !setup->audit.pairing)
		return OK;
	if (fingerprint_compare_program(setup, w->o->baseline_program, note_pairing, &pairing,
					err) != OK)
		return FAIL;
	if (pairing.status == OK && !audit_passed(&w->audits))
		fail(&w->invalid,
		     "an audit failed: this step cannot be compared with its baseline");
	return pairing.status;
}

static void tell_failures(struct worker *w, const struct audit_report *report)
{
	const struct audit_finding *f = report->list;

	for (int i = 0; i < report->n; i++, f++)
		if (!f->passed)
			progress_message(&w->progress, "audit %s FAILED: %s: %s", f->audit,
					 f->subject, f->detail);
}

/* All audits of the step, once for all of its runs: with the seed of the first one.  `setup` has
 * the parameters of one run. */
static enum status audit_step(struct worker *w, struct run_setup *setup, struct error *err)
{
	if (w->audited)
		return OK;
	if (audit_once(w, &w->audits, err) != OK)
		return FAIL;
	if (!audit_passed(&w->audits))
		fail(&w->invalid,
		     "an audit failed: this step is not what its configuration claims");
	else if (audit_pairing(w, setup, err) != OK)
		return FAIL;
	tell_failures(w, &w->audits);
	w->audited = true;
	return OK;
}

/* ------------------------------------------------------------------- memory */

/* Reserves memory of the host, so that runs that start together do not count on the same bytes. */
static enum status reserve_host(struct worker *w, struct error *err)
{
	const double buffers = blas_buffer_bytes(w->setup->backend.threads);
	struct run_memory memory;
	struct error why;

	if (run_memory_measure(w->setup, &w->description, &memory, err) != OK)
		return FAIL;
	if (memory_reserve(NULL, memory.resident, memory.idle + buffers, &why) == OK)
		return OK;
	return fail(err,
		    "%s: %s: make the model, TRAIN_BATCH or MODEL_BLOCK smaller, or run fewer at a "
		    "time (make -j1)",
		    w->label, why.text);
}

/* For *n runs, or as many as there is room for. */
static enum status reserve_device(struct worker *w, int *n, struct error *err)
{
	struct error why;

	if (device_memory_reserve(w->setup, n, &why) == OK)
		return OK;
	return fail(err, "%s: %s", w->label, why.text);
}

/* ------------------------------------------------------------------ a group */

static struct session *member(const struct group *g, int i)
{
	return g->members[i];
}

static bool takes_part(const struct group *g, int i)
{
	return !member(g, i)->over && !g->runs[i].left_out;
}

/* Other ranks wait for this one, so all of them end here. */
static void abort_ranks(const struct worker *w, const struct error *err)
{
	const struct ranks *r = w->setup->ranks;

	if (!r || r->size == 1)
		return;
	fprintf(stderr, "kablate: rank %d: %s\n", r->rank, err->text);
	ranks_abort(w->setup->ranks, 1);
}

/* It fails alone; the others go on. */
static void drop(struct group *g, int i, const struct error *err)
{
	session_fail(member(g, i), err);
	abort_ranks(g->w, err);
	g->runs[i].left_out = true;
}

/* A step for each run that takes part; a failure ends that run alone. */
typedef enum status (*member_step)(struct group *g, int i, struct error *err);

static void each_member(struct group *g, member_step step)
{
	struct error err;

	for (int i = 0; i < g->n; i++) {
		if (!takes_part(g, i))
			continue;
		backend_choose(&g->setup.backend, i);
		if (step(g, i, &err) != OK)
			drop(g, i, &err);
	}
	backend_choose(&g->setup.backend, REPLICAS_ALL);
}

/* The device, and on it parameters, optimizer and trainer. */
static enum status open_backend(struct group *g, struct error *err)
{
	struct device_memory memory;

	if (!g->setup.replicas)
		return OK;
	if (device_memory_predict(g->w->setup, &memory, err) != OK)
		return FAIL;
	if (run_setup_open_replicas(g->w->setup, g->n, memory.each, &g->setup.backend, err) != OK)
		return FAIL;
	g->setup.alone = g->w->setup;
	g->opened = true;
	return OK;
}

static enum status open_group(struct group *g, struct error *err)
{
	struct run_setup *setup = &g->setup;

	if (open_backend(g, err) != OK ||
	    params_create(&setup->params, precision_type(setup->precision), err) != OK ||
	    run_setup_prepare(setup, g->seeds, progress_warn, &g->w->progress, err) != OK)
		return FAIL;
	for (int i = 0; i < g->n; i++) {
		struct run_setup *own = &member(g, i)->setup;

		own->alone = setup->alone;
		own->backend = setup->backend;
		own->params = setup->params;
		own->optimizer = setup->optimizer;
		own->measurer = setup->measurer;
		own->train.shards = setup->train.shards;
		g->runs[i] = run_of(own);
		member(g, i)->run = &g->runs[i];
	}
	return trainer_create(&g->trainer, g->runs, g->n, setup->params, setup->optimizer,
			      &setup->backend, err);
}

static void close_group(struct group *g)
{
	for (int i = 0; i < g->n; i++)
		member(g, i)->run = NULL;
	trainer_destroy(g->trainer);
	run_setup_release(&g->setup);
	if (g->opened)
		g->setup.backend.close(&g->setup.backend);
	free(g->members);
	free(g->runs);
	free(g->seeds);
}

static enum status resume(struct group *g, int i, struct error *err)
{
	struct session *s = member(g, i);

	return trainer_resume(g->trainer, i, &s->resume, &g->w->progress, err);
}

/* Those that go on elsewhere than the first one wait for another group. */
static int64_t agree_on_start(struct group *g)
{
	int64_t start = -1;
	bool found = false;

	for (int i = 0; i < g->n; i++) {
		if (!takes_part(g, i))
			continue;
		if (!found)
			start = member(g, i)->resume;
		found = true;
		g->runs[i].left_out = member(g, i)->resume != start;
	}
	return start;
}

static enum status begin_records(struct group *g, int i, struct error *err)
{
	struct session *s = member(g, i);
	const struct ranks *r = g->setup.ranks;
	char text[60];

	if (!run_setup_leads(&g->setup))
		return OK;
	if (session_begin(s, err) != OK)
		return FAIL;
	snprintf(text, sizeof(text), "%d ranks, %s", r->size, r->type->name);
	if (r->size > 1)
		metrics_event(s->run->metrics, s->resume < 0 ? 0 : s->resume, "ranks", text);
	return OK;
}

/* Are the run's initial weights those that are configured?  Weights from a file are as it says. */
static enum status audit_start(struct group *g, struct session *s, struct error *err)
{
	struct audit_report report = { .n = 0 };
	enum status status;

	if (!s->setup.audit.training || s->setup.init_hash[0])
		return OK;
	status = audit_initial(s->setup.config, s->setup.params, s->setup.seed, &report, err);
	if (status == OK) {
		session_record_audits(s, &report);
		tell_failures(g->w, &report);
	}
	if (status == OK && !audit_passed(&report)) {
		s->failure = RUN_INVALID;
		status = fail(err,
			      "an audit failed: this step is not what its configuration claims");
	}
	audit_free(&report);
	return status;
}

static enum status record_audits(struct group *g, int i, struct error *err)
{
	struct session *s = member(g, i);

	if (session_record_constants(s, &g->w->description, (double)trainer_arena_bytes(g->trainer),
				     err) != OK)
		return FAIL;
	session_record_audits(s, &g->w->audits);
	if (!g->w->invalid.text[0])
		return audit_start(g, s, err);
	s->failure = RUN_INVALID;
	*err = g->w->invalid;
	return FAIL;
}

static enum status audit_losses(struct group *g, struct error *err)
{
	struct first_loss *losses;
	enum status status;

	if (!g->setup.audit.training)
		return OK;
	losses = calloc((size_t)g->n, sizeof(*losses));
	if (!losses)
		return fail_memory(err, "losses", (size_t)g->n * sizeof(*losses));
	status = trainer_first_loss(g->trainer, losses, err);
	for (int i = 0; i < g->n && status == OK; i++) {
		struct error why;

		if (takes_part(g, i) && session_audit_loss(member(g, i), &losses[i], &why) != OK)
			drop(g, i, &why);
	}
	free(losses);
	return status;
}

/* What one run alone has in memory, as far as audits and decoders need it. */
static struct run_setup *setup_of_one(struct group *g)
{
	return g->setup.replicas ? g->w->setup : &member(g, 0)->setup;
}

static enum status audit_group(struct group *g, struct error *err)
{
	phases_enter(&g->w->phases, PHASE_AUDITS);
	if (run_setup_leads(&g->setup)) {
		if (audit_step(g->w, setup_of_one(g), err) != OK)
			return FAIL;
		each_member(g, record_audits);
	}
	return audit_losses(g, err);
}

/* A run that began while these audits were switched off gets them when it goes on. */
static enum status audit_resumed(struct group *g, struct error *err)
{
	bool missing = false, has;

	if (!g->setup.audit.training)
		return OK;
	for (int i = 0; i < g->n && run_setup_leads(&g->setup); i++) {
		if (!takes_part(g, i))
			continue;
		if (session_has_loss_audits(member(g, i), &has, err) != OK)
			return FAIL;
		missing = missing || !has;
	}
	if (ranks_broadcast(g->setup.ranks, 0, &missing, sizeof(missing), err) != OK)
		return FAIL;
	return missing ? audit_losses(g, err) : OK;
}

static int count_members(const struct group *g)
{
	int n = 0;

	for (int i = 0; i < g->n; i++)
		n += takes_part(g, i);
	return n;
}

/* What a group of several, or its only run, is called. */
static void name_group(struct group *g)
{
	const struct run_names *first = &member(g, 0)->names, *last = &member(g, g->n - 1)->names;

	if (g->n == 1)
		snprintf(g->label, sizeof(g->label), "%s", member(g, 0)->label);
	else if (strcmp(first->step, last->step) == 0)
		snprintf(g->label, sizeof(g->label), "%s %s, %d seeds", first->experiment,
			 first->step, count_members(g));
	else
		snprintf(g->label, sizeof(g->label), "%s %s to %s, %d runs", first->experiment,
			 first->step, last->step, count_members(g));
}

static enum status show_estimate(struct group *g, int64_t done, struct error *err)
{
	const struct description *d = &g->w->description;
	char text[PROGRESS_NUMBER_SIZE];
	double seconds;

	if (trainer_estimate(g->trainer, &seconds, err) != OK)
		return FAIL;
	progress_note(
		&g->w->progress, "%s: %lld parameters, %.0f MiB, about %s", g->label,
		(long long)d->parameters,
		(double)g->n *
			(double)(d->weights_bytes + d->gradient_bytes + d->optimizer_bytes +
				 trainer_arena_bytes(g->trainer)) /
			1048576,
		progress_duration(seconds * (double)(g->setup.train.iterations - done), text));
	return OK;
}

static void begin_progress(struct group *g, int64_t first)
{
	struct worker *w = g->w;

	progress_begin(&w->progress, w->nowhere ? w->nowhere : stderr, g->label, w->o->progress,
		       first);
}

/* Between groups: only messages. */
static void idle_progress(struct worker *w)
{
	progress_begin(&w->progress, w->nowhere ? w->nowhere : stderr, w->label, PROGRESS_QUIET, 0);
}

/* How a group ended, in a word for records of progress. */
static const char *end_of(const struct group *g)
{
	bool done = true;

	for (int i = 0; i < g->n; i++) {
		if (takes_part(g, i) && g->runs[i].end == TRAIN_INTERRUPTED)
			return "stopped";
		done = done && (g->runs[i].end == TRAIN_DONE || g->runs[i].end == TRAIN_BUDGET);
	}
	return done ? "done" : "failed";
}

static enum status finish(struct group *g, int i, struct error *err)
{
	(void)err;
	session_finish(member(g, i));
	return OK;
}

static void end_turn(void *group)
{
	struct group *g = group;

	if (g->turn >= 0)
		close(g->turn);
	g->turn = -1;
}

/* The turn ends with the last evaluation: samples and records leave the device mostly idle. */
static enum status train_in_turn(struct group *g, int64_t done, struct error *err)
{
	enum status status = FAIL;

	phases_enter(&g->w->phases, PHASE_START);
	g->turn = device_turn_take(g->w->setup);
	g->runs[0].options.trained = end_turn;
	g->runs[0].options.trained_context = g;
	if (show_estimate(g, done, err) == OK) {
		begin_progress(g, done);
		status = trainer_run(g->trainer, &g->w->progress, err);
	}
	end_turn(g);
	return status;
}

/* The group has its memory. */
static enum status train_group(struct group *g, struct error *err)
{
	int64_t start;

	each_member(g, resume);
	start = agree_on_start(g);
	device_memory_taken(g->w->setup, start < 0);
	each_member(g, begin_records);
	name_group(g);
	begin_progress(g, 0);
	if (start >= 0)
		progress_message(&g->w->progress, "%s: resuming after iteration %lld", g->label,
				 (long long)start);
	if ((start < 0 ? audit_group : audit_resumed)(g, err) != OK)
		return FAIL;
	device_memory_taken(g->w->setup, false);
	if (count_members(g) == 0) {
		progress_end(&g->w->progress, "failed");
		idle_progress(g->w);
		return OK;
	}
	if (train_in_turn(g, start < 0 ? 0 : start, err) != OK)
		return FAIL;
	phases_enter(&g->w->phases, PHASE_RECORDS);
	progress_end(&g->w->progress, end_of(g));
	each_member(g, finish);
	phases_enter(&g->w->phases, PHASE_START);
	idle_progress(g->w);
	return OK;
}

/* Records the failure as far as possible. */
static void fail_group(struct group *g, const struct error *err)
{
	progress_end(&g->w->progress, "failed");
	for (int i = 0; i < g->n; i++)
		if (takes_part(g, i))
			session_fail(member(g, i), err);
	abort_ranks(g->w, err);
}

static enum status allocate_group(struct group *g, int most, struct error *err)
{
	const size_t n = (size_t)most;

	g->members = calloc(n, sizeof(*g->members));
	g->runs = calloc(n, sizeof(*g->runs));
	g->seeds = calloc(n, sizeof(*g->seeds));
	if (g->members && g->runs && g->seeds)
		return OK;
	return fail_memory(err, "runs", n * sizeof(*g->runs));
}

/* ------------------------------------------------------------------- the runs */

static enum status claim(struct worker *w, int i, bool waits, struct error *err)
{
	struct session *s = &w->sessions[i];
	enum claim what = CLAIM_STOPPED;

	if ((run_setup_leads(w->setup) &&
	     session_claim(s, w->wanted[i].identity, waits, &what, err) != OK) ||
	    ranks_broadcast(w->setup->ranks, 0, &what, sizeof(what), err) != OK)
		return FAIL;
	s->claimed = what == CLAIM_TRAIN;
	s->over = what == CLAIM_DONE || what == CLAIM_STOPPED;
	s->end = what == CLAIM_STOPPED ? TRAIN_INTERRUPTED : TRAIN_DONE;
	if (what == CLAIM_DONE)
		progress_message(&w->progress, "%s: is done", s->label);
	return OK;
}

static bool is_unclaimed(const struct session *s)
{
	return !s->over && !s->claimed;
}

static void claim_or_fail(struct worker *w, int i, bool waits)
{
	struct error err;

	if (claim(w, i, waits, &err) == OK)
		return;
	session_fail(&w->sessions[i], &err);
	abort_ranks(w, &err);
}

/* A run that is ours and not over; NULL: there is none. */
static struct session *first_claimed(struct worker *w)
{
	for (int i = 0; i < w->n; i++)
		if (w->sessions[i].claimed && !w->sessions[i].over)
			return &w->sessions[i];
	return NULL;
}

/*
 * Takes the runs that no other process works on.  Where there are none, waits for one: this process
 * has no other then, so no two of them wait for each other.
 */
static struct session *claim_runs(struct worker *w)
{
	for (int i = 0; i < w->n; i++)
		if (is_unclaimed(&w->sessions[i]))
			claim_or_fail(w, i, w->n == 1);
	for (int i = 0; i < w->n && !first_claimed(w); i++)
		if (is_unclaimed(&w->sessions[i]))
			claim_or_fail(w, i, true);
	return first_claimed(w);
}

/* The runs that go on where the first of them does. */
static void choose_members(struct group *g, const struct session *first, int most)
{
	const int64_t start = checkpoint_newest(first->run_dir);
	struct worker *w = g->w;

	for (int i = 0; i < w->n && g->n < most; i++) {
		struct session *s = &w->sessions[i];

		if (s->over || !s->claimed || checkpoint_newest(s->run_dir) != start)
			continue;
		g->seeds[g->n] = s->setup.seed;
		g->members[g->n++] = s;
	}
}

/* What all groups need, once there is a run to train. */
static enum status prepare(struct worker *w, struct error *err)
{
	struct run_setup *setup = w->setup;

	if (w->most)
		return OK;
	if (run_setup_describe(setup, 0, &w->description, err) != OK || reserve_host(w, err) != OK)
		return FAIL;
	provenance_take(&w->provenance, setup, &w->o->names);
	w->most = setup->replicas ? setup->most_replicas : 1;
	if (!setup->replicas)
		return OK;
	return run_setup_start(setup, &setup->seed, progress_warn, &w->progress, err);
}

static enum status run_group(struct group *g, const struct session *first, struct error *err)
{
	int fit;

	if (allocate_group(g, g->w->most, err) != OK)
		return FAIL;
	choose_members(g, first, g->w->most);
	fit = g->n;
	if (reserve_device(g->w, &fit, err) != OK)
		return FAIL;
	g->n = fit;
	return open_group(g, err) == OK ? train_group(g, err) : FAIL;
}

static enum status train_some(struct worker *w, const struct session *first, struct error *err)
{
	struct group g = { .w = w, .setup = *w->setup, .turn = -1 };
	enum status status;

	g.setup.params = NULL; /* it gets its own */
	status = run_group(&g, first, err);
	if (status != OK)
		fail_group(&g, err);
	close_group(&g);
	return status;
}

static enum status train_all(struct worker *w, struct error *err)
{
	struct session *first;

	while (!signals_stop() && (first = claim_runs(w))) {
		if (prepare(w, err) == OK && train_some(w, first, err) == OK)
			continue;
		if (!first->over)
			session_fail(first, err);
		abort_ranks(w, err);
		return FAIL;
	}
	for (int i = 0; i < w->n; i++)
		if (!w->sessions[i].over)
			w->sessions[i].end = TRAIN_INTERRUPTED;
	return OK;
}

/* The other processes of a run are joined after signals were: none of them ends it unsaved. */
static enum status join_and_train(struct worker *w, struct error *err)
{
	if (run_setup_join_ranks(w->setup, err) != OK)
		return FAIL;
	for (int i = 0; i < w->n; i++)
		w->sessions[i].setup.ranks = w->setup->ranks;
	if (!run_setup_leads(w->setup)) {
		w->nowhere = fopen("/dev/null", "w");
		if (!w->nowhere)
			return fail_errno(err, "cannot open /dev/null");
		idle_progress(w);
	}
	return train_all(w, err);
}

/* Every run has a journal, a lock and the database open. */
static void allow_files(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) != 0)
		return;
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
}

static enum status open_worker(struct worker *w, struct error *err)
{
	const struct run_names *names = &w->o->names;

	snprintf(w->label, sizeof(w->label), "%s %s", names->experiment, names->step);
	idle_progress(w);
	w->sessions = calloc((size_t)w->n, sizeof(*w->sessions));
	if (!w->sessions)
		return fail_memory(err, "runs", (size_t)w->n * sizeof(*w->sessions));
	for (int i = 0; i < w->n; i++)
		if (session_open(&w->sessions[i], w->setup, &w->wanted[i], w->o, &w->progress,
				 err) != OK)
			return FAIL;
	return OK;
}

static void close_worker(struct worker *w)
{
	for (int i = 0; i < w->n && w->sessions; i++)
		session_close(&w->sessions[i]);
	memory_release(NULL);
	device_memory_taken(w->setup, false);
	if (w->nowhere)
		fclose(w->nowhere);
	audit_free(&w->audits);
	free(w->sessions);
	free(w);
}

/* From the best to the worst. */
static const enum train_end severity[] = { TRAIN_DONE,	  TRAIN_BUDGET, TRAIN_DIVERGED,
					   TRAIN_INVALID, TRAIN_FAILED, TRAIN_INTERRUPTED };

static int rank_of(enum train_end end)
{
	int rank = 0;

	while (severity[rank] != end)
		rank++;
	return rank;
}

/* Have all runs the same failure, such as a device that is lost? */
static bool failed_alike(const struct worker *w)
{
	for (int i = 0; i < w->n; i++)
		if (w->sessions[i].end != TRAIN_FAILED ||
		    strcmp(w->sessions[i].reason.text, w->sessions[0].reason.text) != 0)
			return false;
	return true;
}

/* A failure of all runs is returned, and reported once. */
static enum status summarise(struct worker *w, enum train_end *end, struct error *err)
{
	*end = TRAIN_DONE;
	if (failed_alike(w)) {
		*err = w->sessions[0].reason;
		return FAIL;
	}
	for (int i = 0; i < w->n; i++) {
		const struct session *s = &w->sessions[i];

		if (rank_of(s->end) > rank_of(*end))
			*end = s->end;
		if (s->end == TRAIN_FAILED)
			progress_message(&w->progress, "%s: %s", s->label, s->reason.text);
	}
	return OK;
}

enum status worker_run(struct run_setup *setup, const struct wanted_run *wanted, int n,
		       const struct session_options *options, enum train_end *end,
		       struct error *err)
{
	struct worker *w = calloc(1, sizeof(*w));
	enum status status = FAIL;

	if (!w)
		return fail_memory(err, "worker", sizeof(*w));
	w->setup = setup;
	w->o = options;
	w->wanted = wanted;
	w->n = n;
	setup->train.phases = &w->phases;
	phases_enter(&w->phases, PHASE_START);
	signals_install();
	if (n > 1)
		allow_files();
	if (open_worker(w, err) == OK && join_and_train(w, err) == OK)
		status = summarise(w, end, err);
	progress_end(&w->progress, "done");
	phases_enter(&w->phases, PHASE_START);
	if (options->times)
		phases_print(&w->phases, stdout);
	setup->train.phases = NULL;
	close_worker(w);
	return status;
}
