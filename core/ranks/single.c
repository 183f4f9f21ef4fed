#include "core/ranks/single.h"

#include <stdlib.h>
#include <string.h>

static enum status send(struct ranks *r, int to, const void *memory, size_t bytes,
			struct error *err)
{
	(void)r, (void)memory, (void)bytes;
	return fail(err, "there is no rank %d: this process is alone", to);
}

static enum status receive(struct ranks *r, int from, void *memory, size_t bytes, struct error *err)
{
	(void)r, (void)memory, (void)bytes;
	return fail(err, "there is no rank %d: this process is alone", from);
}

/* There is no other rank to send to. */
static enum status nothing(struct ranks *r, struct error *err)
{
	(void)r, (void)err;
	return OK;
}

static enum status broadcast(struct ranks *r, int from, void *memory, size_t bytes,
			     struct error *err)
{
	(void)r, (void)from, (void)memory, (void)bytes, (void)err;
	return OK;
}

static enum status gather(struct ranks *r, const void *mine, void *all, size_t bytes,
			  struct error *err)
{
	(void)r, (void)err;
	memcpy(all, mine, bytes);
	return OK;
}

static void abort_process(struct ranks *r, int status)
{
	(void)r;
	exit(status);
}

static void close_nothing(struct ranks *r)
{
	(void)r;
}

const struct ranks_type ranks_single = {
	.name = "one process",
	.send = send,
	.receive = receive,
	.start = nothing,
	.progress = nothing,
	.wait = nothing,
	.broadcast = broadcast,
	.gather = gather,
	.abort = abort_process,
	.close = close_nothing,
};
