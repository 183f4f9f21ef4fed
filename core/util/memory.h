/*
 * memory - how much of it a process may still take, and runs that start together.
 *
 * The least of: what the machine has free; what the limits of the control groups leave (containers,
 * Slurm), of this one and of all above it; what the limits of the process leave (ulimit).
 *
 * Two runs that start together would each find the same memory free.  So each notes what it is
 * going to take in a file of the user's.  What a process has noted and not yet taken is not
 * free for others.  A process that died is not counted, so nothing has to be cleaned up.
 */
#ifndef CORE_UTIL_MEMORY_H
#define CORE_UTIL_MEMORY_H

#include <stddef.h>

#include "core/util/status.h"

#define MEMORY_WHERE_SIZE 400

/* Where to look; tests give directories of their own. */
struct memory_place {
	const char *root;  /* what stands before /proc and /sys */
	const char *notes; /* the file of notes; NULL: that of this user */
};

struct memory_room {
	double bytes;		       /* INFINITY: nothing limits it */
	char where[MEMORY_WHERE_SIZE]; /* what limits it, in words */
};

/* What all processes share.  Pages that only cache files count as free. */
struct memory_room memory_shared_room(const struct memory_place *place);

/* What the limits of this process leave: of address space, and of data. */
struct memory_room memory_own_room(void);

/*
 * Note that this process is going to take so many bytes of memory, and `idle` bytes beside them
 * that it will not touch at the same time: only its own limits count these.  FAIL: there is no
 * room; err says how much there is, and why.
 */
enum status memory_reserve(const struct memory_place *place, double bytes, double idle,
			   struct error *err) MUST_CHECK;

/* The note is void: when the run has ended, and its process has not. */
void memory_release(const struct memory_place *place);

#endif
