/*
 * phases - what the time of a training process goes to.
 *
 * On a device that works while the host goes on, waiting for it counts as the phase that waits.
 */
#ifndef CORE_TRAIN_PHASES_H
#define CORE_TRAIN_PHASES_H

#include <stdio.h>

enum phase {
	PHASE_START, /* device, memory, programs, starting weights */
	PHASE_AUDITS,
	PHASE_DATA, /* rows */
	PHASE_TRAINING,
	PHASE_EVALUATION, /* and measurements */
	PHASE_RECORDS,	  /* journals, checkpoints, final weights, samples */
	PHASES
};

struct phases {
	double seconds[PHASES];
	enum phase now;
	double since; /* on the monotonic clock; 0: it has not begun */
};

/* From now on the time belongs to this phase; returns the one before.  NULL: not measured. */
enum phase phases_enter(struct phases *p, enum phase next);

/* As JSON, in one line. */
void phases_print(const struct phases *p, FILE *file);

#endif
