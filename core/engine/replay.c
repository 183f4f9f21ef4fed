/* Runs work as issued the first time, captures it the second time, and then replays it. */
#include "core/engine/replay.h"

void replay_run(struct replay *r, const struct backend *b, void (*issue)(void *context),
		void *context)
{
	if (!b->capture || !r->warm) {
		issue(context);
		r->warm = true;
		return;
	}
	if (!r->graph) {
		b->capture(b);
		issue(context);
		r->graph = b->captured(b);
	}
	if (r->graph)
		b->replay(b, r->graph);
}

void replay_reset(struct replay *r, const struct backend *b)
{
	if (r->graph)
		b->forget(b, r->graph);
	*r = (struct replay){ 0 };
}
