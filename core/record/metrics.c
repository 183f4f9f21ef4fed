#include "core/record/metrics.h"

#include <assert.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/record/database.h"
#include "core/record/journal.h"
#include "core/util/process.h"
#include "core/record/tensorboard.h"

struct metrics {
	struct journal journal;
	struct database *database; /* has every committed line; NULL: only the journal is written */
	int64_t run;
	char *run_dir, *db_path;
	double busy_seconds, retry_seconds;
	double retry_at; /* monotonic seconds */
	bool warned;
	struct tensorboard *tensorboard; /* NULL: none, or it could not be written */
	void (*warn)(void *context, const char *text);
	void *warn_context;
};

const char *run_state_name(enum run_state state)
{
	static const char *const names[RUN_STATES] = {
		[RUN_RUNNING] = "running",	   [RUN_DONE] = "done",
		[RUN_INTERRUPTED] = "interrupted", [RUN_DIVERGED] = "diverged",
		[RUN_FAILED] = "failed",	   [RUN_BUDGET] = "budget",
		[RUN_INVALID] = "invalid",
	};

	return names[state];
}

static double clock_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --------------------------------------------------------------- the database */

static void warn_on_stderr(void *context, const char *text)
{
	(void)context;
	fprintf(stderr, "warning: %s\n", text);
}

static void warn_about_database(struct metrics *m, const char *what, const char *why)
{
	char text[2 * ERROR_TEXT_SIZE], path[ERROR_TEXT_SIZE];

	snprintf(path, sizeof(path), "%s", m->db_path);
	snprintf(text, sizeof(text),
		 "%s (%s); `results rebuild %s` will bring the database up to date", what, why,
		 dirname(path));
	m->warn(m->warn_context, text);
}

static void lose_database(struct metrics *m, const struct error *why)
{
	database_close(m->database);
	m->database = NULL;
	m->retry_at = clock_seconds() + m->retry_seconds;
	if (!m->warned)
		warn_about_database(m,
				    "the database cannot be written, this run continues with its "
				    "journal alone",
				    why->text);
	m->warned = true;
}

/* Opens the database and imports the journal. */
static enum status catch_up(struct metrics *m, struct error *err)
{
	database_close(m->database);
	if (database_open(&m->database, m->db_path, m->busy_seconds, err))
		return FAIL;
	return database_import(m->database, m->run_dir, true, &m->run, err);
}

static void try_to_catch_up(struct metrics *m)
{
	struct error err;

	if (catch_up(m, &err))
		lose_database(m, &err);
}

/* The file may have been moved or made anew: then opening it again helps. */
static void append_to_database(struct metrics *m)
{
	const struct journal *j = &m->journal;
	struct error err;

	if (database_append(m->database, m->run, j->pending, j->pending_size,
			    j->lines - j->pending_lines + 1, &err) == OK)
		return;
	if (database_was_busy(m->database))
		lose_database(m, &err);
	else
		try_to_catch_up(m);
}

/* --------------------------------------------------------------- TensorBoard */

/* The event file is a view of the run, not its record: if it fails, the run goes on without it. */
static void lose_tensorboard(struct metrics *m, const struct error *why)
{
	char text[2 * ERROR_TEXT_SIZE];
	struct error ignored;

	tensorboard_close(m->tensorboard, &ignored);
	m->tensorboard = NULL;
	snprintf(text, sizeof(text), "no more points for TensorBoard: %s", why->text);
	m->warn(m->warn_context, text);
}

static void start_tensorboard(struct metrics *m, const char *directory, int64_t resume_iteration)
{
	struct error err;

	if (tensorboard_open(&m->tensorboard, directory, resume_iteration, &err)) {
		m->tensorboard = NULL;
		lose_tensorboard(m, &err);
	}
}

static void flush_tensorboard(struct metrics *m)
{
	struct error err;

	if (m->tensorboard && tensorboard_flush(m->tensorboard, &err))
		lose_tensorboard(m, &err);
}

/* --------------------------------------------------------------- open and close */

/* Journal first: so the journal always has what the database has. */
static enum status commit(struct metrics *m, bool try_now, struct error *err)
{
	flush_tensorboard(m);
	if (journal_commit(&m->journal, err))
		return FAIL;
	if (m->database)
		append_to_database(m);
	else if (m->db_path && (try_now || clock_seconds() >= m->retry_at))
		try_to_catch_up(m);
	journal_forget_pending(&m->journal);
	return OK;
}

static enum status copy_text(const char *text, char **copy, struct error *err)
{
	*copy = text ? strdup(text) : NULL;
	return text && !*copy ? fail_memory(err, text, strlen(text)) : OK;
}

static bool same_run(const struct run_record *a, const struct run_record *b)
{
	return !strcmp(a->identity, b->identity) && !strcmp(a->experiment, b->experiment) &&
	       !strcmp(a->step, b->step);
}

/* Before any change: does the directory belong to this run?  A run that goes on has a record. */
static enum status check_record(const struct metrics *m, const struct run_record *r, bool fresh,
				struct error *err)
{
	struct record_file file;
	enum status status = OK;

	if (record_read(&file, m->run_dir, err))
		return fresh ? OK
			     : fail_prefix(err,
					   "%s cannot continue ('make rerun RUN=%s' starts over)",
					   m->run_dir, m->run_dir);
	if (!same_run(&file.record, r))
		status = fail(err, "%s holds another run: step %s of %s, identity %s", m->run_dir,
			      file.record.step, file.record.experiment, file.record.identity);
	record_free(&file);
	return status;
}

static enum status start(struct metrics *m, const char *identity, int64_t resume_iteration,
			 struct error *err)
{
	struct process self;

	process_self(&self);
	journal_add(&m->journal,
		    (struct entry){ .kind = ENTRY_START,
				    .iteration = resume_iteration < 0 ? 0 : resume_iteration,
				    .number = self.pid,
				    .subject = self.host,
				    .text = self.birth,
				    .run = identity });
	return commit(m, true, err);
}

static enum status prepare(struct metrics *m, const struct metrics_options *o,
			   int64_t resume_iteration, struct error *err)
{
	m->journal.fd = -1;
	m->busy_seconds = o->busy_seconds > 0 ? o->busy_seconds : METRICS_BUSY_SECONDS;
	m->retry_seconds = o->retry_seconds > 0 ? o->retry_seconds : METRICS_RETRY_SECONDS;
	m->warn = o->warn ? o->warn : warn_on_stderr;
	m->warn_context = o->warn_context;
	if (o->db_path && database_check_path(o->db_path, err))
		return FAIL;
	if (copy_text(o->run_dir, &m->run_dir, err) || copy_text(o->db_path, &m->db_path, err) ||
	    check_record(m, &o->record, resume_iteration < 0, err) ||
	    journal_open(&m->journal, m->run_dir, o->record.identity, resume_iteration, err))
		return FAIL;
	/* An existing record stays: it holds the environment in which the run began. */
	if (resume_iteration < 0 && record_write(&o->record, m->run_dir, err))
		return FAIL;
	if (o->tensorboard_dir)
		start_tensorboard(m, o->tensorboard_dir, resume_iteration);
	return start(m, o->record.identity, resume_iteration, err);
}

enum status metrics_open(struct metrics **m, const struct metrics_options *options,
			 int64_t resume_iteration, struct error *err)
{
	assert(options->record.experiment && options->record.step && options->record.identity);
	*m = calloc(1, sizeof(**m));
	if (!*m)
		return fail_memory(err, "metrics", sizeof(**m));
	if (prepare(*m, options, resume_iteration, err)) {
		metrics_abandon(*m);
		*m = NULL;
		return fail_prefix(err, "the record of the run");
	}
	return OK;
}

void metrics_abandon(struct metrics *m)
{
	struct error ignored;

	if (!m)
		return;
	tensorboard_close(m->tensorboard, &ignored);
	database_close(m->database);
	journal_close(&m->journal);
	free(m->run_dir);
	free(m->db_path);
	free(m);
}

enum status metrics_close(struct metrics *m, enum run_state state, const char *exit_reason,
			  struct error *err)
{
	const bool was_there = m && m->database;
	enum status status;

	if (!m)
		return OK;
	journal_add(&m->journal, (struct entry){ .kind = ENTRY_END,
						 .name = run_state_name(state),
						 .text = exit_reason });
	status = commit(m, true, err);
	/* Lost at the last moment, and no later one will try again: what was wrong may be over. */
	if (status == OK && was_there && !m->database)
		try_to_catch_up(m);
	if (status == OK && m->db_path && !m->database)
		warn_about_database(m, "the database lacks this run or a part of it",
				    "it could not be written");
	metrics_abandon(m);
	return status;
}

bool metrics_in_database(const struct metrics *m)
{
	return m->database;
}

/* --------------------------------------------------------------- what happens */

void metrics_value(struct metrics *m, int64_t iteration, const char *name, double value)
{
	if (!m)
		return;
	journal_add(&m->journal, (struct entry){ .kind = ENTRY_VALUE,
						 .iteration = iteration,
						 .name = name,
						 .value = value });
	if (m->tensorboard)
		tensorboard_value(m->tensorboard, iteration, name, value);
}

void metrics_event(struct metrics *m, int64_t iteration, const char *kind, const char *text)
{
	if (!m)
		return;
	journal_add(&m->journal, (struct entry){ .kind = ENTRY_EVENT,
						 .iteration = iteration,
						 .name = kind,
						 .text = text });
}

void metrics_audit(struct metrics *m, const char *audit, const char *subject, bool passed,
		   const char *detail)
{
	if (!m)
		return;
	journal_add(&m->journal, (struct entry){ .kind = ENTRY_AUDIT,
						 .name = audit,
						 .subject = subject,
						 .number = passed,
						 .text = detail });
}

void metrics_artifact(struct metrics *m, const char *kind, const char *path, const char *sha256,
		      int64_t bytes)
{
	journal_add(&m->journal, (struct entry){ .kind = ENTRY_ARTIFACT,
						 .name = kind,
						 .subject = path,
						 .text = sha256,
						 .number = bytes });
}

struct journal_mark metrics_mark(const struct metrics *m)
{
	return journal_mark(&m->journal);
}

enum status metrics_commit(struct metrics *m, struct error *err)
{
	return m ? commit(m, false, err) : OK;
}
