/*
 * bytes - the tokenizer that needs no vocabulary: id = byte, 256 = end of text.
 */
#include <stdlib.h>

#include "data/tokenizer/kind.h"

static enum status bytes_encode(const struct tokenizer *t, void *memory, const uint8_t *text,
				size_t size, struct ids *ids, struct error *err)
{
	(void)t, (void)memory, (void)err;
	for (size_t i = 0; i < size; i++)
		ids->id[ids->count++] = text[i];
	return OK;
}

static void bytes_free(struct tokenizer *t)
{
	free(t);
}

static const struct tokenizer_kind BYTES = {
	.name = "bytes",
	.encode = bytes_encode,
	.free = bytes_free,
};

enum status bytes_new(struct tokenizer **t, struct error *err)
{
	struct tokenizer *new = calloc(1, sizeof(*new));

	if (!new)
		return fail_memory(err, "tokenizer", sizeof(*new));
	new->kind = &BYTES;
	for (int b = 0; b < 256; b++) {
		uint8_t byte = (uint8_t)b;

		if (tokenizer_add(new, &byte, 1, err))
			goto close_tokenizer;
	}
	if (tokenizer_add_end_of_text(new, err))
		goto close_tokenizer;
	*t = new;
	return OK;
close_tokenizer:
	tokenizer_close(new);
	return FAIL;
}
