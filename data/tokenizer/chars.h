/*
 * chars - the tokenizer whose tokens are the characters of a given text.
 *
 * Ids follow the order of the code points.  Bytes that are not valid UTF-8 come last, each one a
 * "character" of its own.  The file is JSON:
 *     {"characters": [10, 32, 33, ...], "end_of_text": false}
 * with code points, and 0x110000 + b for the byte b (data/tokenizer/utf8.h).
 */
#ifndef DATA_TOKENIZER_CHARS_H
#define DATA_TOKENIZER_CHARS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/util/status.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/utf8.h"

#define CHARS_FILE "characters.json"

/* The characters seen so far; start from zero. */
struct char_set {
	uint8_t seen[UTF8_SYMBOLS];
};

void char_set_add(struct char_set *set, const uint8_t *text, size_t size);

/* A text of several documents needs an end of text. */
enum status chars_new(const struct char_set *set, bool end_of_text, struct tokenizer **t,
		      struct error *err) MUST_CHECK;
enum status chars_parse(const uint8_t *json, size_t size, struct tokenizer **t,
			struct error *err) MUST_CHECK;

#endif
