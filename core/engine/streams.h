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

#define LANES_MOST 8

/* Memory that instruction `user` reads or writes. */
struct lane_use {
	int user;
	const char *at;
	size_t bytes;
	bool writes;
};

/* What is asked for next: an instruction, in its lane, after some of other lanes. */
struct lane_step {
	int instr, lane;
	int n_waits;
	int waits[LANES_MOST]; /* instructions */
	bool awaited;	       /* another lane waits for this one */
};

/*
 * The steps of n instructions, in the order in which they are asked for.  lengths[i]: how long
 * instruction i takes, in any unit.  `uses` are sorted by user.  In the end lane 0 has to wait for
 * ends[lane], -1: for none.
 */
enum status lanes_assign(struct lane_step *steps, int n, int lanes, const int *lengths,
			 const struct lane_use *uses, int n_uses, int ends[LANES_MOST],
			 struct error *err) MUST_CHECK;

#endif
