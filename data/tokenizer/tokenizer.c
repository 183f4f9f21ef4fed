#include "data/tokenizer/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/chars.h"
#include "core/util/file.h"
#include "data/tokenizer/kind.h"

struct encoder {
	const struct tokenizer *tokenizer;
	void *memory;
};

enum status ids_reserve(struct ids *ids, size_t more, struct error *err)
{
	size_t room = ids->room ? ids->room : 64;
	uint16_t *id;

	if (ids->id && ids->room - ids->count >= more)
		return OK;
	while (room - ids->count < more)
		room *= 2;
	id = realloc(ids->id, room * sizeof(*id));
	if (!id)
		return fail_memory(err, "token ids", room * sizeof(*id));
	ids->id = id;
	ids->room = room;
	return OK;
}

void ids_free(struct ids *ids)
{
	free(ids->id);
	*ids = (struct ids){ 0 };
}

enum status tokenizer_open(const char *what, struct tokenizer **t, struct error *err)
{
	struct mapping file;
	enum status status;

	if (!strcmp(what, "bytes"))
		return bytes_new(t, err);
	if (file_map(what, &file, err))
		return FAIL;
	if (file.size && file.data[0] == '{')
		status = chars_parse(file.data, file.size, t, err);
	else if (file.size && file.data[0] == '#')
		status = bpe_parse(file.data, file.size, t, err);
	else
		status = fail(err, "neither merges (\"#version: 0.2\") nor characters ({...})");
	if (status)
		fail_prefix(err, "%s", what);
	file_unmap(&file);
	return status;
}

void tokenizer_close(struct tokenizer *t)
{
	if (!t)
		return;
	strings_free(&t->tokens);
	t->kind->free(t);
}

enum status tokenizer_save(const struct tokenizer *t, const char *path, struct error *err)
{
	enum status status;
	size_t size;
	char *text;

	if (!t->kind->format)
		return fail(err, "the tokenizer %s has no file to save", t->kind->name);
	if (t->kind->format(t, &text, &size, err))
		return FAIL;
	status = file_write(path, text, size, err);
	free(text);
	return status;
}

const char *tokenizer_kind(const struct tokenizer *t)
{
	return t->kind->name;
}

const char *tokenizer_file_name(const struct tokenizer *t)
{
	return t->kind->file_name;
}

uint32_t tokenizer_vocabulary(const struct tokenizer *t)
{
	return t->tokens.count;
}

int32_t tokenizer_end_of_text(const struct tokenizer *t)
{
	return t->end_of_text;
}

size_t tokenizer_bytes(const struct tokenizer *t, uint32_t id)
{
	assert(id < t->tokens.count);
	return strings_size(&t->tokens, id);
}

const uint8_t *tokenizer_text(const struct tokenizer *t, uint32_t id)
{
	assert(id < t->tokens.count);
	return strings_at(&t->tokens, id);
}

enum status tokenizer_add(struct tokenizer *t, const uint8_t *bytes, size_t size, struct error *err)
{
	uint32_t id = t->tokens.count;

	if (id >= TOKENIZER_MAX_VOCABULARY)
		return fail(err, "more than %d tokens: ids have 16 bits", TOKENIZER_MAX_VOCABULARY);
	if (strings_add(&t->tokens, bytes, size) == INTERN_NONE)
		return fail_memory(err, "vocabulary", size);
	if (t->tokens.count == id)
		return fail(err, "a token occurs twice");
	return OK;
}

enum status tokenizer_add_end_of_text(struct tokenizer *t, struct error *err)
{
	t->end_of_text = (int32_t)t->tokens.count;
	return tokenizer_add(t, (const uint8_t *)"", 0, err);
}

enum status encoder_new(const struct tokenizer *t, struct encoder **e, struct error *err)
{
	struct encoder *new = calloc(1, sizeof(*new));

	if (!new)
		return fail_memory(err, "encoder", sizeof(*new));
	new->tokenizer = t;
	if (t->kind->memory_new) {
		new->memory = t->kind->memory_new();
		if (!new->memory) {
			free(new);
			return fail(err, "encoder: out of memory");
		}
	}
	*e = new;
	return OK;
}

void encoder_free(struct encoder *e)
{
	if (!e)
		return;
	if (e->memory)
		e->tokenizer->kind->memory_free(e->memory);
	free(e);
}

enum status encode(struct encoder *e, const uint8_t *text, size_t size, struct ids *ids,
		   struct error *err)
{
	if (ids_reserve(ids, size, err))
		return FAIL;
	return e->tokenizer->kind->encode(e->tokenizer, e->memory, text, size, ids, err);
}

enum status decode(const struct tokenizer *t, const uint16_t *id, size_t count, uint8_t **text,
		   size_t *size, struct error *err)
{
	size_t total = 0;
	uint8_t *out;

	for (size_t i = 0; i < count; i++) {
		if (id[i] >= t->tokens.count)
			return fail(err, "token %zu is %d, beyond the vocabulary of %u", i, id[i],
				    t->tokens.count);
		total += strings_size(&t->tokens, id[i]);
	}
	out = malloc(total ? total : 1);
	if (!out)
		return fail_memory(err, "decoded text", total);
	*text = out;
	*size = total;
	for (size_t i = 0; i < count; i++) {
		size_t bytes = strings_size(&t->tokens, id[i]);

		memcpy(out, strings_at(&t->tokens, id[i]), bytes);
		out += bytes;
	}
	return OK;
}
