/*
 * metrics - what a run records about itself: its journal and its rows in the database.
 *
 * The run directory holds the truth: run.json (what the run is) and
 * journal.jsonl (what happened, a line each).  metrics_commit() appends to the
 * journal and brings it to the disk first; then one transaction puts the same
 * lines into the SQLite database, which is only an index of all journals and
 * can be rebuilt from them (`results rebuild`).  So a database that cannot be
 * written never stops a run: metrics warns once, goes on with the journal alone,
 * and from time to time tries to catch up.
 *
 * Names of values are paths such as "train/loss" (core/util/metric_names.h).  There
 * is one value per iteration and name: the last one counts.
 */
#ifndef CORE_RECORD_METRICS_H
#define CORE_RECORD_METRICS_H

#include <stdint.h>

#include "core/record/line_sum.h"
#include "core/util/metric_names.h"
#include "core/util/status.h"

#define EVENT_DECLARATION "declaration" /* SHA-256 of the experiment's, when the run began */

enum run_state {
	RUN_RUNNING,
	RUN_DONE,
	RUN_INTERRUPTED, /* stopped on request; can be resumed */
	RUN_DIVERGED,
	RUN_FAILED,
	RUN_BUDGET,  /* ended because its time was used up */
	RUN_INVALID, /* an audit failed */
	RUN_STATES
};

const char *run_state_name(enum run_state state);

struct run_symbol {
	const char *name, *value; /* without CONFIG_ */
};

/* What a run is.  A text may be NULL (not known), except those that name the run. */
struct run_record {
	const char *experiment, *step, *identity; /* name the run; identity: hex digits */
	const char *baseline;			  /* the step with which this one is compared */
	int64_t seed, repeat;
	int64_t iterations; /* planned in all */

	/* The environment. */
	const char *git_revision;
	bool git_dirty;
	const char *compiler, *flags, *blas, *machine, *precision, *scale;
	int64_t threads;

	const struct run_symbol *config;
	int symbols;
};

struct metrics_options {
	const char *run_dir;	     /* exists already */
	const char *db_path;	     /* NULL: write only the journal */
	const char *tensorboard_dir; /* gets event files with all values; NULL: none */
	struct run_record record;
	double busy_seconds;  /* how long to wait for another writer; 0: METRICS_BUSY_SECONDS */
	double retry_seconds; /* how soon to try a lost database again; 0: METRICS_RETRY_SECONDS */

	/* Gets one line of text, without newline; NULL: to stderr. */
	void (*warn)(void *context, const char *text);
	void *warn_context;
};

/* A lock that is never released costs a run no more than 1/60 of its time. */
#define METRICS_BUSY_SECONDS 10
#define METRICS_RETRY_SECONDS 600

struct metrics;

/*
 * Begins a run or goes on with it.  resume_iteration is the iteration of the
 * checkpoint; journal and database forget everything about later iterations.  -1: a
 * fresh start forgets everything.  The texts of the options are copied.
 *
 * Fails when the journal cannot be written, when it belongs to another run or is
 * damaged before its end, and when another process has this run open.
 */
enum status metrics_open(struct metrics **m, const struct metrics_options *options,
			 int64_t resume_iteration, struct error *err) MUST_CHECK;

/*
 * Kept until the next commit.  metrics_commit() reports a lack of memory.  Without m, which only
 * one rank of a run has, nothing is kept.
 */
void metrics_value(struct metrics *m, int64_t iteration, const char *name, double value);
void metrics_event(struct metrics *m, int64_t iteration, const char *kind, const char *text);
void metrics_audit(struct metrics *m, const char *audit, const char *subject, bool passed,
		   const char *detail);
void metrics_artifact(struct metrics *m, const char *kind, const char *path, const char *sha256,
		      int64_t bytes);

/*
 * Call this once per logging interval, and before a checkpoint is written: a resume
 * from the checkpoint then finds everything up to it.  Fails only when the journal
 * cannot be written (disk full).  Then nothing is lost: the next commit tries again.
 */
enum status metrics_commit(struct metrics *m, struct error *err) MUST_CHECK;

/* How far the journal had come: the number of its lines, and the sum of the last. */
struct journal_mark {
	int64_t lines;
	struct line_sum sum;
};

/* After a commit: what a checkpoint remembers of the journal. */
struct journal_mark metrics_mark(const struct metrics *m);

/* Does the database have everything that was committed? */
bool metrics_in_database(const struct metrics *m);

/* The last commit, with the final state.  Frees m (or NULL) even on failure. */
enum status metrics_close(struct metrics *m, enum run_state state, const char *exit_reason,
			  struct error *err);

/* Frees m (or NULL) without a last commit, as if the process had been killed. */
void metrics_abandon(struct metrics *m);

#endif
