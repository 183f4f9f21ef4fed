/*
 * progress - how far a run is, for the person who waits.
 *
 * On a terminal, one live line that fits its width; elsewhere (a log file, a
 * pipe) one line per logging interval.
 */
#ifndef CORE_TRAIN_PROGRESS_H
#define CORE_TRAIN_PROGRESS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/util/status.h"

enum progress_mode {
	PROGRESS_AUTO,	/* live on a terminal, else lines */
	PROGRESS_LINES, /* also on a terminal: for several runs side by side */
	PROGRESS_QUIET, /* nothing but progress_message() */
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
	bool live, quiet;
	bool drawn;		  /* a live line stands on the terminal */
	int64_t first;		  /* iteration at which the clock was started */
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

/* Clear the live line. */
void progress_end(struct progress *p);

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
