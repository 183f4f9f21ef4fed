#include "data/tokenizer/split.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "data/tokenizer/utf8.h"

enum char_class { OTHER, LETTER, NUMBER, SPACE };

struct split {
	uint8_t class_of[UTF8_SYMBOLS];
};

/* One group for each class.  White_Space is Z with U+0009..000D and U+0085 (Unicode's PropList). */
static const char CLASSES[] = "(\\p{L}+)|(\\p{N}+)|([\\p{Z}\\x{9}-\\x{d}\\x{85}]+)";

/* All code points as one text; returns its size. */
static size_t put_all(uint8_t *text)
{
	size_t size = 0;

	for (uint32_t c = 0; c < UTF8_RAW; c++)
		if (c < 0xd800 || c > 0xdfff)
			size += utf8_put(c, text + size);
	return size;
}

static void mark(struct split *split, const uint8_t *from, const uint8_t *to, enum char_class class)
{
	while (from < to)
		split->class_of[utf8_next(&from, to)] = (uint8_t) class;
}

static enum status classify(struct split *split, pcre2_code *code, pcre2_match_data *match,
			    const uint8_t *text, size_t size, struct error *err)
{
	const PCRE2_SIZE *span = pcre2_get_ovector_pointer(match);
	size_t at = 0;
	int group;

	while ((group = pcre2_match(code, text, size, at, PCRE2_NO_UTF_CHECK, match, NULL)) > 0) {
		/* One more than the highest group that matched: 2 letter, 3 number, 4 space. */
		mark(split, text + span[0], text + span[1], (enum char_class)(group - 1));
		at = span[1];
	}
	if (group != PCRE2_ERROR_NOMATCH)
		return fail(err, "PCRE2 cannot classify Unicode (error %d)", group);
	return OK;
}

static enum status classify_all(struct split *split, struct error *err)
{
	enum status status = FAIL;
	pcre2_match_data *match;
	pcre2_code *code;
	uint8_t *text;
	PCRE2_SIZE place;
	int reason;

	code = pcre2_compile((PCRE2_SPTR)CLASSES, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
			     &reason, &place, NULL);
	if (!code)
		return fail(err, "PCRE2 cannot compile the Unicode classes (error %d)", reason);
	/* Without just-in-time compilation matching is slower and gives the same result. */
	pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
	match = pcre2_match_data_create_from_pattern(code, NULL);
	text = malloc(4 * UTF8_RAW);
	if (match && text)
		status = classify(split, code, match, text, put_all(text), err);
	else
		fail_memory(err, "Unicode classes", 4ull * UTF8_RAW);
	free(text);
	pcre2_match_data_free(match);
	pcre2_code_free(code);
	return status;
}

enum status split_new(struct split **split, struct error *err)
{
	struct split *new = calloc(1, sizeof(*new));

	if (!new)
		return fail_memory(err, "Unicode classes", sizeof(*new));
	if (classify_all(new, err)) {
		split_free(new);
		return FAIL;
	}
	*split = new;
	return OK;
}

void split_free(struct split *split)
{
	free(split);
}

static enum char_class next_class(const struct split *split, const uint8_t **p, const uint8_t *end)
{
	return split->class_of[utf8_next(p, end)];
}

/* The end of the symbols of one class from p on. */
static const uint8_t *run(const struct split *split, const uint8_t *p, const uint8_t *end,
			  enum char_class class)
{
	for (const uint8_t *next = p; p < end; p = next)
		if (next_class(split, &next, end) != class)
			break;
	return p;
}

/* White space leaves its last symbol to the word that follows, unless it is the only one. */
static const uint8_t *space_run(const struct split *split, const uint8_t *p, const uint8_t *end)
{
	const uint8_t *first = p, *last = p, *next = p;

	for (; p < end; last = p, p = next)
		if (next_class(split, &next, end) != SPACE)
			return last == first ? p : last;
	return end;
}

/* The length of 's 't 'm 'd 're 've 'll at p, or 0. */
static size_t contraction(const uint8_t *p, const uint8_t *end)
{
	if (end - p >= 2 && (p[1] == 's' || p[1] == 't' || p[1] == 'm' || p[1] == 'd'))
		return 2;
	if (end - p >= 3 &&
	    (!memcmp(p + 1, "re", 2) || !memcmp(p + 1, "ve", 2) || !memcmp(p + 1, "ll", 2)))
		return 3;
	return 0;
}

const uint8_t *split_next(const struct split *split, const uint8_t *p, const uint8_t *end)
{
	const uint8_t *rest = p;
	enum char_class class = next_class(split, &rest, end);
	size_t length;

	if (*p == '\'' && (length = contraction(p, end)))
		return p + length;
	if (*p == ' ' && rest < end)
		class = next_class(split, &rest, end);
	if (class == SPACE)
		return space_run(split, p, end);
	return run(split, rest, end, class);
}

static bool is_ascii_space(uint8_t b)
{
	return b == ' ' || (b >= '\t' && b <= '\r');
}

/*
 * No word holds white space after another symbol, so a word starts at white space that follows
 * another symbol.  Unicode's other spaces are U+0085, U+00A0, U+1680, U+2000..U+205F and U+3000:
 * in UTF-8 they start with C2, or with E1..E3 and 80, 81 or 9A.
 */
static bool may_cut(const uint8_t *text, size_t at)
{
	if (!is_ascii_space(text[at]) || is_ascii_space(text[at - 1]))
		return false;
	if (text[at - 1] < 0x80)
		return true;
	if (at < 3 || text[at - 2] == 0xc2)
		return false;
	return text[at - 3] < 0xe1 || text[at - 3] > 0xe3 ||
	       (text[at - 2] != 0x80 && text[at - 2] != 0x81 && text[at - 2] != 0x9a);
}

size_t split_cut(const uint8_t *text, size_t size, size_t limit)
{
	if (size <= limit)
		return size;
	for (size_t at = limit; at > 0; at--)
		if (may_cut(text, at))
			return at;
	for (size_t at = limit + 1; at < size; at++)
		if (may_cut(text, at))
			return at;
	return size;
}

void split_unicode_version(char version[24])
{
	/* PCRE2 documents 24 as enough for this text. */
	if (pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, NULL) > 24 ||
	    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version) < 0)
		strcpy(version, "unknown");
}
