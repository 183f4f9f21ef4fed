/* Fuzz entry: any characters file is refused, or makes a tokenizer. */
#include <stdlib.h>

#include "data/tokenizer/chars.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct tokenizer *t;
	struct error err;

	if (chars_parse(bytes, size, &t, &err))
		return 0;
	if (tokenizer_vocabulary(t) == 0)
		abort();
	tokenizer_close(t);
	return 0;
}
