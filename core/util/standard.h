/*
 * standard - the three files that every program is started with.
 */
#ifndef CORE_UTIL_STANDARD_H
#define CORE_UTIL_STANDARD_H

#include "core/util/status.h"

/*
 * A program may be started without them.  The next files that it opens would take their numbers,
 * and its messages would go into these.  So call this first: it puts something in their place that
 * cannot be used.
 */
void standard_occupy(void);

/* Call this last: FAIL if not all that was printed has reached its place. */
enum status standard_output_end(struct error *err) MUST_CHECK;

#endif
