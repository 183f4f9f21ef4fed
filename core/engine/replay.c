#include "core/engine/replay.h"

void replay_run(struct replay *r, const struct backend *b, void (*ask)(void *context),
		void *context)
{
	if (!b->capture || !r->warm) {
		ask(context);
		r->warm = true;
		return;
	}
	if (!r->kept) {
		b->capture(b);
		ask(context);
		r->kept = b->captured(b);
	}
	if (r->kept)
		b->replay(b, r->kept);
}

void replay_reset(struct replay *r, const struct backend *b)
{
	if (r->kept)
		b->forget(b, r->kept);
	*r = (struct replay){ 0 };
}
