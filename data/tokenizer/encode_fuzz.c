/*
 * Fuzz entry: bytes and byte pairs decode what they encode; cutting a text changes no token; and
 * what an encoder remembers of earlier texts changes none.  So an encoder serves all inputs.
 */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/bpe_cases.h"
#include "data/tokenizer/split.h"
#include "data/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check(struct tokenizer *t, struct encoder *e, const uint8_t *bytes, size_t size)
{
	size_t cut = split_cut(bytes, size, size / 2), n;
	struct ids whole = { 0 }, parts = { 0 };
	struct error err;
	uint8_t *text;

	if (encode(e, bytes, size, &whole, &err) || encode(e, bytes, cut, &parts, &err) ||
	    encode(e, bytes + cut, size - cut, &parts, &err) || whole.count != parts.count ||
	    memcmp(whole.id, parts.id, 2 * whole.count) ||
	    decode(t, whole.id, whole.count, &text, &n, &err) || n != size ||
	    memcmp(text, bytes, n))
		abort();
	free(text);
	ids_free(&whole);
	ids_free(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
	static struct tokenizer *by_byte, *by_pair;
	static struct encoder *byte_encoder, *pair_encoder;
	struct error err;

	if (!by_byte &&
	    (tokenizer_open("bytes", &by_byte, &err) ||
	     bpe_parse((const uint8_t *)SAMPLE_MERGES, sizeof(SAMPLE_MERGES) - 1, &by_pair, &err) ||
	     encoder_new(by_byte, &byte_encoder, &err) ||
	     encoder_new(by_pair, &pair_encoder, &err)))
		abort();
	check(by_byte, byte_encoder, bytes, size);
	check(by_pair, pair_encoder, bytes, size);
	return 0;
}
