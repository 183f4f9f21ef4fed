/*
 * standard - the three files that every program is started with.
 */
#ifndef CORE_UTIL_STANDARD_H
#define CORE_UTIL_STANDARD_H

#include <stdio.h>

#include "core/util/status.h"

/*
 * A program may be started without them.  The next files that it opens would take their numbers,
 * and its messages would go into these.  So call this first: it puts something in their place that
 * cannot be used.
 */
void standard_occupy(void);

/*
 * A stream to the same place through which no control character passes but newline and tab: what a
 * model writes must not command a terminal.  NULL: out of memory.  fclose() leaves `to` open.
 */
FILE *standard_printable(FILE *to);

/* Call this last: FAIL if not all that was printed has reached its place. */
enum status standard_output_end(struct error *err) MUST_CHECK;

#endif
