#include "core/util/json.h"

#include <string.h>

enum status json_parse(const void *text, size_t size, cJSON **root, struct error *err)
{
	const char *start = text, *end = text;

	*root = cJSON_ParseWithLengthOpts(text, size, &end, false);
	while (*root && end < start + size && *end && strchr(" \t\r\n", *end))
		end++;
	if (cJSON_IsObject(*root) && end == start + size)
		return OK;
	cJSON_Delete(*root);
	*root = NULL;
	return fail(err, "not a JSON object (near byte %zu)", (size_t)(end - start));
}
