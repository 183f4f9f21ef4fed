/*
 * memory - how much memory a process may still take, also when runs start together.
 *
 * Three limits count, and the lowest wins: what the machine has free; what the control groups leave
 * (containers, Slurm), this group and all groups above it; what the process may take (ulimit).
 *
 * Two runs that start together would each find the same memory free.  So each run notes in a file
 * of the user how much it is going to take.  Memory that a process has noted and not yet taken is
 * not free for others.  Dead processes do not count, so nothing has to be cleaned up.
 */
#ifndef CORE_UTIL_MEMORY_H
#define CORE_UTIL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "core/util/status.h"

#define MEMORY_WHERE_SIZE 400

/* Where to look; tests give directories of their own. */
struct memory_place {
	const char *root;  /* put before /proc and /sys */
	const char *notes; /* the file of notes; NULL: the file of this user */
};

struct memory_room {
	double bytes;		       /* INFINITY: no limit */
	char where[MEMORY_WHERE_SIZE]; /* which limit this is, in words */
};

/* What the machine and the control groups leave.  Pages that only cache files count as free. */
struct memory_room memory_shared_room(const struct memory_place *place);

/* What the limits of this process on address space and data leave. */
struct memory_room memory_own_room(void);

/*
 * Notes that this process is going to take so many bytes of memory, and `idle` further bytes that
 * it will not touch at the same time: only the limits of the process count these.  FAIL: there is
 * too little memory; err says how much there is, and why.
 */
enum status memory_reserve(const struct memory_place *place, double bytes, double idle,
			   struct error *err) MUST_CHECK;

/* Removes the note: for a process that goes on after its run. */
void memory_release(const struct memory_place *place);

/*
 * This user's file about `what` of the machine, or of a device if that is not NULL, in memory; -1:
 * there is none.
 */
int memory_open_file(const char *what, const char *device);

/* Memory of a device of its own, such as a GPU. */
struct memory_device {
	const char *id;	   /* names the notes: letters and digits */
	const char *notes; /* the file of notes; NULL: that of this user */
	double (*free_bytes)(void *context);
	void *context;
};

/*
 * Note that this process is going to take so many bytes of a device's memory.  FAIL: there is no
 * room.  *starting: others have noted some that they have not taken yet, or not said so; then it
 * may help to ask again.
 */
enum status memory_reserve_device(const struct memory_device *device, double bytes, bool *starting,
				  struct error *err) MUST_CHECK;

/* The reservation has been allocated, except `left` bytes: the rest is no longer free. */
void memory_taken(const struct memory_device *device, double left);

#endif
