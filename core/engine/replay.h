/*
 * replay - work that is asked for again and again in the same way.
 *
 * A device that can keep such work (backend.h: capture) does the whole of it at one
 * request.  The first time the work is done as it is asked for, so that libraries
 * load what they need; the second time it is kept.
 */
#ifndef CORE_ENGINE_REPLAY_H
#define CORE_ENGINE_REPLAY_H

#include "core/engine/backend.h"

struct replay {
	bool warm;
	void *kept; /* NULL: not yet */
};

/* Do what ask(context) asks for.  It must ask for the same every time, and read nothing. */
void replay_run(struct replay *r, const struct backend *b, void (*ask)(void *context),
		void *context);

/* Forget it: the next time it may ask for something else. */
void replay_reset(struct replay *r, const struct backend *b);

#endif
