/*
 * worker - trains runs of one step in this process, or of steps that differ in learning rates.
 *
 * Where the backend has replicas (CONFIG_REPLICAS), as many runs as fit train at once, and the next
 * ones after them; elsewhere one after the other.  A run is the same in either case but for its
 * neighbours: it has its own directory, records, checkpoints and end.  Runs that train together
 * begin at the same iteration; the audits of the step are made once, and recorded with every run.
 */
#ifndef TOOLS_KABLATE_WORKER_H
#define TOOLS_KABLATE_WORKER_H

#include "tools/kablate/session.h"

/*
 * Trains until every run has ended or a signal stops them; leaves finished runs as they are.  *end
 * is the worst of their ends: interrupted, failed, invalid, diverged, done.  FAIL: a run that is
 * alone failed, or something that all runs need; the journals say so, if there are any yet.
 */
enum status worker_run(struct run_setup *setup, const struct wanted_run *wanted, int n,
		       const struct session_options *options, enum train_end *end,
		       struct error *err) MUST_CHECK;

#endif
