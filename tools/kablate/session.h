/*
 * session - the life of a training run: RUNS/EXPERIMENT/STEP-SEED-IDENTITY is
 * made and locked, audits come before the first iteration, training goes on
 * where a checkpoint left it, and the run's journal tells how it ended.
 */
#ifndef TOOLS_KABLATE_SESSION_H
#define TOOLS_KABLATE_SESSION_H

#include "tools/kablate/run_setup.h"
#include "tools/kablate/provenance.h"

struct session_options {
	const char *runs; /* the directory of all runs, and of results.db */
	struct run_names names;
	const char *baseline_program; /* NULL, or that of the step with which this one is compared */
	const char *identity; /* NULL, or how that of the run must begin */
	bool lines;	      /* of progress, also on a terminal */
	bool any_environment; /* go on with a run also where its bits may differ */
};

/*
 * Train until the run ends or a signal stops it; a run that is done already is
 * left as it is.  FAIL: something outside the training went wrong, or an audit
 * failed; the run's journal says so, if there is one yet.
 */
enum status session_run(struct run_setup *setup, const struct session_options *options,
			enum train_end *end, struct error *err) MUST_CHECK;

#endif
