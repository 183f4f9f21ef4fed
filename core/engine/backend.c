#include "core/engine/backend.h"

#include <stdio.h>

enum status fail_alloc(const struct backend *b, const char *what, size_t bytes, struct error *err)
{
	char where[200];

	if (b->check(b, err) != OK)
		return FAIL;
	snprintf(where, sizeof(where), "%s%s", what, b->memory ? " on the GPU" : "");
	return fail_memory(err, where, bytes);
}
