/* Tests of data/split: against PCRE2 with the published pattern, and places to cut. */
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/util/rng.h"
#include "core/util/test.h"
#include "data/tokenizer/split.h"
#include "data/tokenizer/utf8.h"

/* \s is written out, because PCRE2's own holds U+180E, which is no White_Space. */
#define S "\\p{Z}\\x{9}-\\x{d}\\x{85}"
static const char PATTERN[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" S "\\p{L}\\p{N}]+|"
			      "[" S "]+(?![^" S "])|[" S "]+";

/* What a random text is made of: every class in several lengths, and what the pattern names. */
static const char *const PIECES[] = {
	" ",
	" ",
	"\n",
	"\t",
	"\xc2\xa0",
	"\xe3\x80\x80",
	"\xe2\x80\x83",
	"\xc2\x85",
	"'",
	"s",
	"t",
	"re",
	"ve",
	"m",
	"ll",
	"d",
	"S",
	"'s",
	"'ll",
	"a",
	"bc",
	"1",
	"23",
	"\xc3\xa9",
	"\xd0\xb0",
	"\xe6\x95\xb0",
	"\xc2\xbd",
	"\xe2\x85\xa7",
	"!",
	".",
	"\xe2\x80\x99",
	"\xf0\x9f\x99\x82",
	"\xe1\xa0\x8e",
	"\xe2\x80\x8b",
	"\xcc\x81",
	"\x01",
	"\x80",
	"\xc3",
	"\xe2\x82",
	"\xff",
	"\xed\xa0\x80",
};

enum { TEXTS = 20000, MOST_PIECES = 24, ROOM = 256 };

struct fixture {
	struct split *split;
	pcre2_code *code;
	pcre2_match_data *match;
};

static int set_up(void **state)
{
	static struct fixture f;
	struct error err;
	PCRE2_SIZE place;
	int reason;

	f.code = pcre2_compile((PCRE2_SPTR)PATTERN, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
			       &reason, &place, NULL);
	f.match = pcre2_match_data_create_from_pattern(f.code, NULL);
	*state = &f;
	return f.code && f.match ? (int)split_new(&f.split, &err) : -1;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	pcre2_match_data_free(f->match);
	pcre2_code_free(f->code);
	split_free(f->split);
	return 0;
}

static size_t random_text(uint64_t number, uint8_t text[ROOM])
{
	struct rng_reader r = { .key = rng_key(number, "split") };
	size_t pieces = rng_next_below(&r, MOST_PIECES + 1), size = 0;

	for (size_t i = 0; i < pieces; i++) {
		const char *piece = PIECES[rng_next_below(&r, sizeof(PIECES) / sizeof(*PIECES))];

		memcpy(text + size, piece, strlen(piece));
		size += strlen(piece);
	}
	return size;
}

/* PCRE2 wants UTF-8: a raw byte becomes U+FFFD, of no class as well.  end[] is where it ends here.
 */
static size_t as_utf8(const uint8_t *text, size_t size, uint8_t *out, size_t *end_at)
{
	const uint8_t *p = text;
	size_t used = 0;

	while (p < text + size) {
		uint32_t symbol = utf8_next(&p, text + size);

		used += utf8_put(symbol < UTF8_RAW ? symbol : 0xfffd, out + used);
		end_at[used] = (size_t)(p - text);
	}
	return used;
}

static void check_words(const struct fixture *f, const uint8_t *text, size_t size)
{
	const PCRE2_SIZE *span = pcre2_get_ovector_pointer(f->match);
	size_t end_at[3 * ROOM], at = 0, used;
	const uint8_t *p = text;
	uint8_t clean[3 * ROOM];

	used = as_utf8(text, size, clean, end_at);
	while (at < used) {
		assert_true(pcre2_match(f->code, clean, used, at, 0, f->match, NULL) > 0);
		assert_int_equal(span[0], at);
		at = span[1];
		p = split_next(f->split, p, text + size);
		assert_int_equal(p - text, end_at[at]);
	}
	assert_ptr_equal(p, text + size);
}

static void test_words_are_those_of_the_pattern(void **state)
{
	uint8_t text[ROOM];

	for (uint64_t i = 0; i < TEXTS; i++)
		check_words(*state, text, random_text(i, text));
}

/* Each code point alone, doubled after a letter, and before a letter. */
static void test_every_code_point(void **state)
{
	for (uint32_t c = 0; c < 0x110000; c += c < 0x3100 ? 1 : 7) {
		uint8_t text[16] = "a";
		size_t size = 1;

		if (c >= 0xd800 && c <= 0xdfff)
			continue;
		size += utf8_put(c, text + size);
		size += utf8_put(c, text + size);
		text[size++] = 'b';
		check_words(*state, text, size);
	}
}

/* The words of the parts are the words of the whole. */
static void test_cuts_change_no_word(void **state)
{
	const struct fixture *f = *state;
	uint8_t text[ROOM];
	size_t cuts = 0;

	for (uint64_t i = 0; i < TEXTS; i++) {
		size_t size = random_text(i, text), cut = split_cut(text, size, size / 2);
		const uint8_t *p = text;

		assert_true(cut <= size);
		if (size == 0 || cut == size)
			continue;
		assert_true(cut > 0);
		cuts++;
		while (p < text + cut) {
			const uint8_t *whole = split_next(f->split, p, text + size);

			assert_ptr_equal(split_next(f->split, p, text + cut), whole);
			p = whole;
		}
		assert_ptr_equal(p, text + cut);
	}
	/* Most texts hold such a place; a test that cuts none would show nothing. */
	assert_true(cuts > TEXTS / 4);
}

static void test_cut_prefers_the_part_below_the_limit(void **state)
{
	const uint8_t *text = (const uint8_t *)"one two three four";

	(void)state;
	assert_int_equal(split_cut(text, 18, 18), 18);
	assert_int_equal(split_cut(text, 18, 10), 7);
	assert_int_equal(split_cut(text, 18, 2), 3);
	assert_int_equal(split_cut((const uint8_t *)"onetwothree", 11, 4), 11);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_words_are_those_of_the_pattern),
		cmocka_unit_test(test_every_code_point),
		cmocka_unit_test(test_cuts_change_no_word),
		cmocka_unit_test(test_cut_prefers_the_part_below_the_limit),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
