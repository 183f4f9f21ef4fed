/*
 * progress - how far a run is, for the user.
 *
 * On a terminal, one live line that fits its width; elsewhere (a log file, a
 * pipe) one line per logging interval.  Where runs train side by side, one other
 * process draws them all (tools/results/live.py) and gets records:
 *
 *     0x1e LABEL \t ITERATION \t ITERATIONS \t NUMBERS \n
 *     0x1e LABEL \t WORD \n
 *
 * The first when a run begins (0 of 0) and as it goes on, the second when it has ended: done,
 * stopped or failed.
 */
#ifndef CORE_TRAIN_PROGRESS_H
#define CORE_TRAIN_PROGRESS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/util/status.h"

enum progress_mode {
	PROGRESS_AUTO,	  /* live on a terminal, else lines */
	PROGRESS_LINES,	  /* also on a terminal */
	PROGRESS_RECORDS, /* for the process that draws several runs */
	PROGRESS_QUIET,	  /* nothing but progress_message() */
};

struct progress_point {
	int64_t iteration, iterations;
	double loss, validation;  /* NAN: not known yet */
	double tokens_per_second; /* NAN: not known yet */
	double eta;		  /* seconds; filled in by progress_update() */
};

struct progress {
	FILE *stream;
	const char *label; /* "ra-score step 2 seed 1": kept by the caller */
	bool live, quiet, records;
	bool drawn;		  /* a live line stands on the terminal */
	int64_t first;		  /* iteration at which the clock was started */
	int64_t last;		  /* newest iteration that is over */
	double started, drawn_at; /* monotonic seconds */
};

/* `first`: the iteration at which this process starts or resumes. */
void progress_begin(struct progress *p, FILE *stream, const char *label, enum progress_mode mode,
		    int64_t first);

/* After every iteration; `interval`: a logging interval ends here. */
void progress_update(struct progress *p, const struct progress_point *point, bool interval);

/* A line of its own, above the live one; also when quiet. */
void progress_message(struct progress *p, const char *format, ...) PRINTF_LIKE(2, 3);

/* As a callback for warnings (metrics_options.warn); `p` is a struct progress. */
void progress_warn(void *p, const char *text);

/* A message that repeats what a record says: PROGRESS_RECORDS leaves it out. */
void progress_note(struct progress *p, const char *format, ...) PRINTF_LIKE(2, 3);

/* Clear the live line.  `how` the run ended, in a word for records. */
void progress_end(struct progress *p, const char *how);

/* ---------------------------------------------------------------- pure */

#define PROGRESS_NUMBER_SIZE 24

/* "12 s", "3 min 05 s", "2 h 07 min", "3 d 04 h"; "?" when not finite or negative. */
const char *progress_duration(double seconds, char text[PROGRESS_NUMBER_SIZE]);

/* "950", "12.3k", "4.56M" per second; "?" when not finite or negative. */
const char *progress_rate(double per_second, char text[PROGRESS_NUMBER_SIZE]);

/* One line of at most `width` columns (and `size` - 1 bytes), with or without a bar. */
void progress_format(const struct progress_point *point, const char *label, bool bar, int width,
		     char *text, size_t size);

#endif
