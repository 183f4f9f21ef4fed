/* Fuzz entry: reads or refuses any JSON line. */
#include <stdlib.h>
#include <string.h>

#include "data/input.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	char *line = malloc(size + 1);
	struct error err;
	uint8_t *text;
	size_t n;

	if (!line)
		return 0;
	memcpy(line, bytes, size);
	if (!jsonl_text(line, size, &text, &n, &err) && text && n > size)
		abort();
	free(text);
	free(line);
	return 0;
}
