/*
 * session - one training run and its records: it makes and locks the directory
 * RUNS/EXPERIMENT/STEP-SEED-IDENTITY, opens the journal, and records in it what
 * was found before the first iteration and how the run ended.
 *
 * worker.h trains it, with other runs of its step or alone.
 */
#ifndef TOOLS_KABLATE_SESSION_H
#define TOOLS_KABLATE_SESSION_H

#include "tools/kablate/run_setup.h"
#include "tools/kablate/provenance.h"

struct session_options {
	const char *runs; /* the directory of all runs, and of results.db */
	struct run_names names;
	const char *baseline_program; /* NULL, or the program of the baseline */
	enum progress_mode progress;
	bool any_environment; /* resume a run even if its bits may differ */
	bool journal_only;    /* leave results.db alone: another machine may be writing it */
	bool times;	      /* print what the time goes to */
	bool keep_diverged;   /* a divergence is a result: such a run is done */
};

/* A run that is asked for. */
struct wanted_run {
	uint64_t seed;
	const char *identity;	       /* NULL, or how it must begin */
	const char *step;	       /* NULL: that of the options */
	const char *rate, *least_rate; /* NULL: the configured ones */
};

struct session {
	const struct session_options *o;
	struct run_names names;
	struct config *varied; /* NULL: the setup's own */
	struct run_setup setup;
	char run_dir[4096], done[4200]; /* done: make's target, exists when the run has ended */
	int lock;
	char label[300];
	struct progress *progress;
	struct provenance provenance;
	struct train_run *run; /* its place among those that train with it; NULL: it has none yet */
	int64_t resume;	       /* the iteration after which it goes on; negative: from the start */
	enum run_state failure; /* what the run is when it fails now */
	bool claimed;		/* it is this process's */
	bool over;		/* nothing is left to do for it */
	enum train_end end;	/* how it ended then */
	struct error reason;	/* why, unless it is TRAIN_DONE */
};

/* It may be there already. */
enum status make_directory(const char *path, struct error *err) MUST_CHECK;

/* session_close() is due also after a failure. */
enum status session_open(struct session *s, const struct run_setup *setup,
			 const struct wanted_run *wanted, const struct session_options *options,
			 struct progress *progress, struct error *err) MUST_CHECK;
void session_close(struct session *s);

/* What is to be done with the run. */
enum claim { CLAIM_TRAIN, CLAIM_DONE, CLAIM_STOPPED, CLAIM_BUSY };

/*
 * Takes the run directory, unless the run is done already.  `identity`: NULL, or how the run's must
 * begin.  Only one process at a time works on a run: another waits for it, or with !waits finds it
 * CLAIM_BUSY.
 */
enum status session_claim(struct session *s, const char *identity, bool waits, enum claim *what,
			  struct error *err) MUST_CHECK;

/* Opens the records where the run goes on: s->resume, s->run. */
enum status session_begin(struct session *s, struct error *err) MUST_CHECK;

/* What is known before the first iteration. */
enum status session_record_constants(struct session *s, const struct description *d,
				     double arena_bytes, struct error *err) MUST_CHECK;
void session_record_audits(struct session *s, const struct audit_report *report);

/*
 * Is the loss that is trained the mean over the scored targets?  Without dropout: do the run's own
 * programs, which train and evaluate, score targets alike?
 */
enum status session_audit_loss(struct session *s, const struct first_loss *loss,
			       struct error *err) MUST_CHECK;

/* Has the run's journal what session_audit_loss() finds? */
enum status session_has_loss_audits(const struct session *s, bool *has,
				    struct error *err) MUST_CHECK;

/* The end of the training, as s->run says; its replica must be the chosen one. */
void session_finish(struct session *s);

/* Ends the run with this error, and records it as far as possible. */
void session_fail(struct session *s, const struct error *err);

#endif
