/*
 * session - the life of a training run: it makes and locks the directory
 * RUNS/EXPERIMENT/STEP-SEED-IDENTITY, audits before the first iteration, trains
 * from the last checkpoint on, and records in the journal how the run ended.
 */
#ifndef TOOLS_KABLATE_SESSION_H
#define TOOLS_KABLATE_SESSION_H

#include "tools/kablate/run_setup.h"
#include "tools/kablate/provenance.h"

struct session_options {
	const char *runs; /* the directory of all runs, and of results.db */
	struct run_names names;
	const char *baseline_program; /* NULL, or the program of the baseline */
	const char *identity;	      /* NULL, or how the run's identity must begin */
	bool lines;		      /* of progress, also on a terminal */
	bool any_environment;	      /* go on with a run even if its bits may differ */
	bool journal_only; /* leave results.db alone: another machine may be writing it */
};

/*
 * Trains until the run ends or a signal stops it; leaves a finished run as it is.
 * FAIL: something outside the training went wrong, or an audit failed; the run's
 * journal says so, if there is one yet.
 */
enum status session_run(struct run_setup *setup, const struct session_options *options,
			enum train_end *end, struct error *err) MUST_CHECK;

#endif
