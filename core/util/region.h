/*
 * region - memory that is given back all at once.
 *
 * Graphs and programs are built from many small objects that die together;
 * a region spares each of them its own free() and every error path its list.
 */
#ifndef CORE_UTIL_REGION_H
#define CORE_UTIL_REGION_H

#include <stdarg.h>
#include <stddef.h>

#include "core/util/status.h"

struct region {
	struct region_chunk *chunks;
};

/* Zeroed memory, or NULL. */
void *region_alloc(struct region *r, size_t size);

/* Formatted text, or NULL. */
char *region_printf(struct region *r, const char *format, ...) PRINTF_LIKE(2, 3);
char *region_vprintf(struct region *r, const char *format, va_list args);

void region_free(struct region *r);

#endif
