/* Fuzz entry: any merges file is refused, or makes a tokenizer that decodes what it encodes. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/bpe.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	struct ids ids = { 0 };
	struct tokenizer *t;
	struct encoder *e;
	struct error err;
	uint8_t *text;
	size_t n;

	if (bpe_parse(bytes, size, &t, &err))
		return 0;
	if (encoder_new(t, &e, &err) || encode(e, bytes, size, &ids, &err) ||
	    decode(t, ids.id, ids.count, &text, &n, &err) || n != size || memcmp(text, bytes, n))
		abort();
	free(text);
	ids_free(&ids);
	encoder_free(e);
	tokenizer_close(t);
	return 0;
}
