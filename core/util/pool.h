/*
 * pool - memory that is given back all at once.
 *
 * Graphs and programs are built from many small objects that die together.
 * With a pool no object needs its own free(), and no error path a list of them.
 */
#ifndef CORE_UTIL_POOL_H
#define CORE_UTIL_POOL_H

#include <stdarg.h>
#include <stddef.h>

#include "core/util/status.h"

struct pool {
	struct pool_chunk *chunks;
};

/* Zeroed memory, or NULL. */
void *pool_alloc(struct pool *r, size_t size);

/* Formatted text, or NULL. */
char *pool_printf(struct pool *r, const char *format, ...) PRINTF_LIKE(2, 3);
char *pool_vprintf(struct pool *r, const char *format, va_list args);

void pool_free(struct pool *r);

#endif
