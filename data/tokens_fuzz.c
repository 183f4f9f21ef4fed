/* Fuzz entry: any token file is refused, or its ids lie within the file. */
#include <stdlib.h>

#include "data/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	const struct shard_info listed = { .tokens = 3 };
	const uint16_t *id;
	struct error err;
	uint64_t count;

	if (!tokens_parse(bytes, size, NULL, &id, &count, &err) &&
	    (const uint8_t *)(id + count) != bytes + size)
		abort();
	if (!tokens_parse(bytes, size, &listed, &id, &count, &err) && count != 3)
		abort();
	return 0;
}
