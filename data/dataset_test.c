/* Tests of data/dataset: a written file reads back; a damaged file is refused. */
#define _GNU_SOURCE /* asprintf() */
#include "data/dataset.h"

#include <stdlib.h>
#include <string.h>

#include "core/util/test_dir.h"

static struct dataset sample(void)
{
	const struct shard_info shard = { "train-000000.bin", 123456789012, "abc" };
	struct dataset d = {
		.tokenizer = "bpe",
		.tokenizer_file = "vocab.bpe",
		.unicode = "14.0.0",
		.vocabulary = 50257,
		.end_of_text = 50256,
		.divided = true,
		.valid_share = 0.0005,
		.source_files = 3,
		.source_bytes = 1ull << 52,
		.source_sha256 = "def",
		.split[SPLIT_TRAIN] = { .documents = 1,
					.bytes = 4000000001,
					.tokens = 123456789012 },
	};
	struct error err;

	assert_int_equal(split_add_shard(&d.split[SPLIT_TRAIN], &shard, &err), OK);
	return d;
}

static void test_round_trip(void **state)
{
	struct test_dir dir = test_dir_make();
	struct dataset a = sample(), b;
	struct error err;

	(void)state;
	assert_int_equal(dataset_write(&a, dir.path, &err), OK);
	assert_int_equal(dataset_read(dir.path, &b, &err), OK);
	assert_string_equal(b.tokenizer, a.tokenizer);
	assert_string_equal(b.tokenizer_file, a.tokenizer_file);
	assert_string_equal(b.unicode, a.unicode);
	assert_string_equal(b.source_sha256, a.source_sha256);
	assert_int_equal(b.vocabulary, a.vocabulary);
	assert_int_equal(b.end_of_text, a.end_of_text);
	assert_true(b.divided);
	assert_true(b.valid_share == a.valid_share);
	assert_int_equal(b.source_files, a.source_files);
	assert_int_equal(b.source_bytes, a.source_bytes);
	assert_int_equal(b.split[SPLIT_TRAIN].bytes, 4000000001);
	assert_int_equal(b.split[SPLIT_TRAIN].shard[0].tokens, 123456789012);
	assert_int_equal(b.split[SPLIT_VALID].shards, 0);
	assert_non_null(dataset_find(&b, "train-000000.bin"));
	assert_null(dataset_find(&b, "train-000001.bin"));
	dataset_free(&a);
	dataset_free(&b);
	test_dir_remove(&dir);
}

/* Replace one part of the text by another and expect a refusal. */
static void expect_refusal(const char *text, const char *part, const char *other,
			   const char *reason)
{
	const char *at = strstr(text, part);
	struct dataset d;
	struct error err;
	char *bad;

	assert_non_null(at);
	assert_true(asprintf(&bad, "%.*s%s%s", (int)(at - text), text, other, at + strlen(part)) >
		    0);
	if (!dataset_parse((const uint8_t *)bad, strlen(bad), &d, &err))
		fail_msg("accepted: %s for %s", other, part);
	assert_contains(err.text, reason);
	free(bad);
}

static void test_damage(void **state)
{
	struct test_dir dir = test_dir_make();
	struct dataset a = sample();
	struct error err;
	size_t size;
	char *text;

	(void)state;
	assert_int_equal(dataset_write(&a, dir.path, &err), OK);
	text = test_get(&dir, DATASET_FILE, &size);
	expect_refusal(text, "{", "", "not a JSON");
	expect_refusal(text, "kablate tokens 1", "kablate tokens 2", "format");
	expect_refusal(text, "\"vocabulary\"", "\"Vocabulary\"", "\"vocabulary\" is missing");
	expect_refusal(text, "50257", "65536", "\"vocabulary\" is out of range");
	expect_refusal(text, "50257", "0", "\"vocabulary\" is out of range");
	expect_refusal(text, "50256", "\"x\"", "\"end_of_text\" is missing or not a number");
	expect_refusal(text, "vocab.bpe", "../vocab.bpe", "plain file name");
	expect_refusal(text, "train-000000.bin", "/etc/passwd", "plain file name");
	expect_refusal(text, "123456789012", "-1", "\"tokens\" is out of range");
	expect_refusal(text, "123456789012", "1.5", "not a whole number");
	expect_refusal(text, "\"train\"", "\"other\"", "\"train\" has no list of shards");
	expect_refusal(text, "\"abc\"",
		       "\"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdefg\"",
		       "too long");
	free(text);
	dataset_free(&a);
	test_dir_remove(&dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_damage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
