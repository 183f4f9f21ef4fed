/*
 * Assigns the instructions of a program to streams, so that independent ones run concurrently.
 *
 * A backend with streams runs the work of one stream in the order of issue, and that of different
 * streams in any order, unless one waits for an event of another.  Two instructions that use the
 * same memory, of which at least one writes it, keep their order.  So the results are those of one
 * stream, bit for bit.
 *
 * List scheduling: of the instructions whose predecessors are scheduled, the next one is the one
 * that can start first; of several, the one that begins the longest chain.
 */
#ifndef CORE_ENGINE_STREAMS_H
#define CORE_ENGINE_STREAMS_H

#include <stdbool.h>
#include <stddef.h>

#include "core/util/status.h"

#define MAX_STREAMS 8

/* Memory that instruction `user` reads or writes. */
struct stream_use {
	int user;
	const char *at;
	size_t bytes;
	bool writes;
};

/*
 * One step of the schedule: an instruction, its stream, and the instructions of other streams that
 * it waits for.
 */
struct stream_step {
	int instr, stream;
	int n_waits;
	int waits[MAX_STREAMS]; /* instructions */
	bool records_event;	/* another stream waits for this instruction */
};

/*
 * Schedules n instructions: steps[] in the order of issue.  lengths[i] is the duration of
 * instruction i, in any unit.  `uses` are sorted by user.  At the end stream 0 must wait for
 * instruction ends[stream] of every stream; -1: it need not.
 */
enum status streams_assign(struct stream_step *steps, int n, int streams, const int *lengths,
			   const struct stream_use *uses, int n_uses, int ends[MAX_STREAMS],
			   struct error *err) MUST_CHECK;

#endif
