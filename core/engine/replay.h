/*
 * Work that is issued repeatedly in the same way, captured once and replayed (CUDA graphs).
 *
 * The first time, the work runs as it is issued, so that libraries initialise.  The second time it
 * is captured (backend.h: capture); from then on one call replays all of it.
 */
#ifndef CORE_ENGINE_REPLAY_H
#define CORE_ENGINE_REPLAY_H

#include "core/engine/backend.h"

struct replay {
	bool warm;
	void *graph; /* NULL: not captured yet */
};

/* Runs what issue(context) issues.  It must issue the same work every time, and read no results. */
void replay_run(struct replay *r, const struct backend *b, void (*issue)(void *context),
		void *context);

/* Drops the captured work, so that the next call may issue something else. */
void replay_reset(struct replay *r, const struct backend *b);

#endif
