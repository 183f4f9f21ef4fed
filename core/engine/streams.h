/*
 * lanes - which instructions of a program are done beside each other.
 *
 * A backend with lanes does the work of one lane in the order in which it is asked for, and that of
 * different lanes in any order, unless a lane waits for another.  Here the instructions of a
 * program are spread over lanes.  Those that share memory which one of them writes keep their
 * order.  So all results are the same as in one lane, bit by bit.
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

/* What is asked for next: an instruction, in its lane, after some of other lanes. */
struct stream_step {
	int instr, stream;
	int n_waits;
	int waits[MAX_STREAMS]; /* instructions */
	bool records_event;	/* another lane waits for this one */
};

/*
 * The steps of n instructions, in the order in which they are asked for.  lengths[i]: how long
 * instruction i takes, in any unit.  `uses` are sorted by user.  In the end lane 0 has to wait for
 * ends[lane], -1: for none.
 */
enum status streams_assign(struct stream_step *steps, int n, int streams, const int *lengths,
			   const struct stream_use *uses, int n_uses, int ends[MAX_STREAMS],
			   struct error *err) MUST_CHECK;

#endif
