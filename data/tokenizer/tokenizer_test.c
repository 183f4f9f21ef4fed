/* Tests of data/tokenizer: bytes, characters, broken files. */
#include "data/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "core/util/rng.h"
#include "data/tokenizer/chars.h"
#include "core/util/test_dir.h"

static void check_round_trip(const struct tokenizer *t, const void *text, size_t size)
{
	struct ids ids = { 0 };
	struct encoder *e;
	struct error err;
	uint8_t *back;
	size_t back_size;

	assert_int_equal(encoder_new(t, &e, &err), OK);
	assert_int_equal(encode(e, text, size, &ids, &err), OK);
	assert_int_equal(decode(t, ids.id, ids.count, &back, &back_size, &err), OK);
	assert_int_equal(back_size, size);
	assert_memory_equal(back, text, size);
	free(back);
	ids_free(&ids);
	encoder_free(e);
}

static enum status new_chars(const char *text, size_t size, bool end_of_text, struct tokenizer **t,
			     struct error *err)
{
	struct char_set *set = calloc(1, sizeof(*set));
	enum status status;

	assert_non_null(set);
	char_set_add(set, (const uint8_t *)text, size);
	status = chars_new(set, end_of_text, t, err);
	free(set);
	return status;
}

static void test_bytes(void **state)
{
	uint8_t all[256];
	struct tokenizer *t;
	struct error err;

	(void)state;
	assert_int_equal(tokenizer_open("bytes", &t, &err), OK);
	assert_int_equal(tokenizer_vocabulary(t), 257);
	assert_int_equal(tokenizer_end_of_text(t), 256);
	assert_int_equal(tokenizer_bytes(t, 65), 1);
	assert_int_equal(tokenizer_bytes(t, 256), 0);
	assert_null(tokenizer_file_name(t));
	for (int i = 0; i < 256; i++)
		all[i] = (uint8_t)i;
	check_round_trip(t, all, sizeof(all));
	check_round_trip(t, "", 0);
	assert_int_equal(tokenizer_save(t, "/nonexistent", &err), FAIL);
	tokenizer_close(t);
}

/* Ids follow the code points, which is nanoGPT's sorted(set(text)); raw bytes come last. */
static void test_characters(void **state)
{
	const char text[] = "b\xc3\xa9"
			    "a\n\xff"
			    "b\xf0\x9f\x99\x82";
	const uint16_t expected[] = { 2, 3, 1, 0, 5, 2, 4 };
	struct ids ids = { 0 };
	struct tokenizer *t;
	struct encoder *e;
	struct error err;

	(void)state;
	assert_int_equal(new_chars(text, sizeof(text) - 1, false, &t, &err), OK);
	assert_int_equal(tokenizer_vocabulary(t), 6);
	assert_int_equal(tokenizer_end_of_text(t), -1);
	assert_int_equal(tokenizer_bytes(t, 3), 2);
	assert_int_equal(encoder_new(t, &e, &err), OK);
	assert_int_equal(encode(e, (const uint8_t *)text, sizeof(text) - 1, &ids, &err), OK);
	assert_int_equal(ids.count, 7);
	assert_memory_equal(ids.id, expected, sizeof(expected));
	check_round_trip(t, text, sizeof(text) - 1);
	encoder_free(e);
	ids_free(&ids);
	tokenizer_close(t);
}

static void test_unknown_characters_are_named(void **state)
{
	struct ids ids = { 0 };
	struct tokenizer *t;
	struct encoder *e;
	struct error err;

	(void)state;
	assert_int_equal(new_chars("abc", 3, false, &t, &err), OK);
	assert_int_equal(encoder_new(t, &e, &err), OK);
	assert_int_equal(encode(e, (const uint8_t *)"ab\xc3\xa9", 4, &ids, &err), FAIL);
	assert_string_equal(err.text,
			    "character U+00E9 (\xc3\xa9) at byte 2 is not in the vocabulary");
	assert_int_equal(encode(e, (const uint8_t *)"\xa9", 1, &ids, &err), FAIL);
	assert_string_equal(err.text, "byte 0xa9 at byte 0 is not in the vocabulary");
	encoder_free(e);
	ids_free(&ids);
	tokenizer_close(t);
	assert_int_equal(new_chars("", 0, false, &t, &err), FAIL);
}

static void test_characters_are_saved(void **state)
{
	struct test_dir d = test_dir_make();
	struct tokenizer *t, *again;
	struct error err;

	(void)state;
	for (int end_of_text = 0; end_of_text < 2; end_of_text++) {
		assert_int_equal(new_chars("x\0\xc3\xa9\xfe", 5, end_of_text, &t, &err), OK);
		assert_int_equal(tokenizer_save(t, test_path(&d, "c.json"), &err), OK);
		assert_int_equal(tokenizer_open(test_path(&d, "c.json"), &again, &err), OK);
		assert_int_equal(tokenizer_vocabulary(again), 4 + end_of_text);
		assert_int_equal(tokenizer_end_of_text(again), end_of_text ? 4 : -1);
		check_round_trip(again, "\xfe\xc3\xa9x\0x", 6);
		tokenizer_close(again);
		tokenizer_close(t);
	}
	test_dir_remove(&d);
}

static void test_bad_files(void **state)
{
	static const struct {
		const char *text, *reason;
	} bad[] = {
		{ "", "neither merges" },
		{ "hello", "neither merges" },
		{ "{", "not a JSON" },
		{ "{}", "are needed" },
		{ "{\"characters\": [1]}", "are needed" },
		{ "{\"Characters\": [1], \"end_of_text\": true}", "are needed" },
		{ "{\"characters\": [], \"end_of_text\": true}", "empty" },
		{ "{\"characters\": [2, 1], \"end_of_text\": true}", "ascend" },
		{ "{\"characters\": [1, 1], \"end_of_text\": true}", "ascend" },
		{ "{\"characters\": [1.5], \"end_of_text\": true}", "not a code point" },
		{ "{\"characters\": [-1], \"end_of_text\": true}", "not a code point" },
		{ "{\"characters\": [55296], \"end_of_text\": true}", "not a code point" },
		{ "{\"characters\": [1114112], \"end_of_text\": true}", "not a code point" },
		{ "{\"characters\": [1e300], \"end_of_text\": true}", "not a code point" },
		{ "{\"characters\": [\"a\"], \"end_of_text\": true}", "not a code point" },
		{ "#version: 0.1\n", "first line" },
	};
	struct test_dir d = test_dir_make();
	struct tokenizer *t;
	struct error err;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		test_put_text(&d, "bad", bad[i].text);
		assert_int_equal(tokenizer_open(test_path(&d, "bad"), &t, &err), FAIL);
		assert_contains(err.text, bad[i].reason);
		assert_contains(err.text, "/bad: ");
	}
	assert_int_equal(tokenizer_open(test_path(&d, "absent"), &t, &err), FAIL);
	assert_contains(err.text, "No such file");
	assert_int_equal(tokenizer_open(d.path, &t, &err), FAIL);
	assert_contains(err.text, "not a regular file");
	test_dir_remove(&d);
}

static void test_decode_refuses_ids_beyond_the_vocabulary(void **state)
{
	const uint16_t id[] = { 1, 257 };
	struct tokenizer *t;
	struct error err;
	uint8_t *text;
	size_t size;

	(void)state;
	assert_int_equal(tokenizer_open("bytes", &t, &err), OK);
	assert_int_equal(decode(t, id, 2, &text, &size, &err), FAIL);
	assert_string_equal(err.text, "token 1 is 257, beyond the vocabulary of 257");
	tokenizer_close(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_characters),
		cmocka_unit_test(test_unknown_characters_are_named),
		cmocka_unit_test(test_characters_are_saved),
		cmocka_unit_test(test_bad_files),
		cmocka_unit_test(test_decode_refuses_ids_beyond_the_vocabulary),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
