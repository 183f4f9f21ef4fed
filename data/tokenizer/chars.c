#include "data/tokenizer/chars.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/json.h"
#include "data/tokenizer/kind.h"

struct chars {
	struct tokenizer base;
	uint16_t next_id[UTF8_SYMBOLS]; /* id + 1, or 0 */
};

void char_set_add(struct char_set *set, const uint8_t *text, size_t size)
{
	const uint8_t *end = text + size;

	while (text < end)
		set->seen[utf8_next(&text, end)] = 1;
}

static enum status unknown_character(uint32_t symbol, size_t place, struct error *err)
{
	uint8_t bytes[4];
	size_t size = utf8_put(symbol, bytes);

	if (symbol >= UTF8_RAW)
		return fail(err, "byte 0x%02x at byte %zu is not in the vocabulary", bytes[0],
			    place);
	return fail(err, "character U+%04X (%.*s) at byte %zu is not in the vocabulary", symbol,
		    symbol < 0x20 ? 0 : (int)size, (char *)bytes, place);
}

static enum status chars_encode(const struct tokenizer *t, void *memory, const uint8_t *text,
				size_t size, struct ids *ids, struct error *err)
{
	const struct chars *c = (const struct chars *)t;
	const uint8_t *p = text, *end = text + size;

	(void)memory;
	while (p < end) {
		const uint8_t *start = p;
		uint32_t symbol = utf8_next(&p, end);

		if (!c->next_id[symbol])
			return unknown_character(symbol, (size_t)(start - text), err);
		ids->id[ids->count++] = (uint16_t)(c->next_id[symbol] - 1);
	}
	return OK;
}

static enum status chars_format(const struct tokenizer *t, char **text, size_t *size,
				struct error *err)
{
	cJSON *root = cJSON_CreateObject();
	cJSON *list = cJSON_AddArrayToObject(root, "characters");
	const struct chars *c = (const struct chars *)t;

	*text = NULL;
	for (uint32_t symbol = 0; list && symbol < UTF8_SYMBOLS; symbol++)
		if (c->next_id[symbol] && !cJSON_AddItemToArray(list, cJSON_CreateNumber(symbol)))
			goto delete_root;
	if (list && cJSON_AddBoolToObject(root, "end_of_text", t->end_of_text >= 0))
		*text = cJSON_PrintUnformatted(root);
delete_root:
	cJSON_Delete(root);
	if (!*text)
		return fail(err, "characters file: out of memory");
	*size = strlen(*text);
	return OK;
}

static void chars_free(struct tokenizer *t)
{
	free(t);
}

static const struct tokenizer_kind CHARS = {
	.name = "characters",
	.file_name = CHARS_FILE,
	.encode = chars_encode,
	.format = chars_format,
	.free = chars_free,
};

static enum status add_symbol(struct chars *c, uint32_t symbol, struct error *err)
{
	uint8_t bytes[4];
	size_t size = utf8_put(symbol, bytes);

	if (tokenizer_add(&c->base, bytes, size, err))
		return FAIL;
	c->next_id[symbol] = (uint16_t)c->base.tokens.count;
	return OK;
}

enum status chars_new(const struct char_set *set, bool end_of_text, struct tokenizer **t,
		      struct error *err)
{
	struct chars *c = calloc(1, sizeof(*c));

	if (!c)
		return fail_memory(err, "tokenizer", sizeof(*c));
	c->base.kind = &CHARS;
	c->base.end_of_text = -1;
	for (uint32_t symbol = 0; symbol < UTF8_SYMBOLS; symbol++)
		if (set->seen[symbol] && add_symbol(c, symbol, err))
			goto close_tokenizer;
	if (c->base.tokens.count == 0) {
		fail(err, "no characters: the text is empty");
		goto close_tokenizer;
	}
	if (end_of_text && tokenizer_add_end_of_text(&c->base, err))
		goto close_tokenizer;
	*t = &c->base;
	return OK;
close_tokenizer:
	tokenizer_close(&c->base);
	return FAIL;
}

static bool is_symbol(double number)
{
	return number >= 0 && number < UTF8_SYMBOLS && number == (uint32_t)number &&
	       (number < 0xd800 || number > 0xdfff) &&
	       (number < UTF8_RAW || number >= UTF8_RAW + 0x80);
}

static enum status read_list(const cJSON *list, struct char_set *set, struct error *err)
{
	const cJSON *item;
	double last = -1;

	cJSON_ArrayForEach (item, list) {
		if (!cJSON_IsNumber(item) || !is_symbol(item->valuedouble))
			return fail(err, "\"characters\" holds something that is not a code point");
		if (item->valuedouble <= last)
			return fail(err, "\"characters\" must ascend");
		last = item->valuedouble;
		set->seen[(uint32_t)last] = 1;
	}
	return OK;
}

enum status chars_parse(const uint8_t *json, size_t size, struct tokenizer **t, struct error *err)
{
	enum status status = FAIL;
	const cJSON *list, *end_of_text;
	struct char_set *set;
	cJSON *root;

	if (json_parse(json, size, &root, err))
		return FAIL;
	list = cJSON_GetObjectItemCaseSensitive(root, "characters");
	end_of_text = cJSON_GetObjectItemCaseSensitive(root, "end_of_text");
	set = calloc(1, sizeof(*set));
	if (!set)
		fail_memory(err, "characters", sizeof(*set));
	else if (!cJSON_IsArray(list) || !cJSON_IsBool(end_of_text))
		fail(err, "not a characters file: \"characters\" and \"end_of_text\" are needed");
	else if (!read_list(list, set, err))
		status = chars_new(set, cJSON_IsTrue(end_of_text), t, err);
	free(set);
	cJSON_Delete(root);
	return status;
}
