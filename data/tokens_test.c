/* Tests of data/tokens: the two forms, several shards, and every kind of broken file. */
#include "data/tokens.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/util/test_dir.h"

enum { VOCABULARY = 1000, HEADER = 1024 };

/* A file as llm.c writes it, with the header given. */
static void put_shard(const struct test_dir *d, const char *name, int32_t magic, int32_t version,
		      int32_t count, const uint16_t *id, size_t ids)
{
	int32_t word[256] = { magic, version, count };
	uint8_t data[HEADER + 64];

	assert_true(2 * ids <= 64);
	memcpy(data, word, HEADER);
	memcpy(data + HEADER, id, 2 * ids);
	test_put(d, name, data, HEADER + 2 * ids);
}

/* Two shards and their side file, as the preparation writes them. */
static void put_dataset(const struct test_dir *d, const uint16_t *id, size_t ids, uint64_t limit)
{
	struct dataset set = { .tokenizer = "bytes", .vocabulary = 257, .end_of_text = 256 };
	struct token_writer *w;
	struct error err;

	assert_int_equal(token_writer_new(d->path, "train", limit, &w, &err), OK);
	assert_int_equal(token_writer_add(w, id, ids, &set.split[SPLIT_TRAIN], &err), OK);
	assert_int_equal(token_writer_finish(w, &set.split[SPLIT_TRAIN], &err), OK);
	token_writer_free(w);
	assert_int_equal(dataset_write(&set, d->path, &err), OK);
	dataset_free(&set);
}

static void expect_tokens(const struct test_dir *d, const char *pattern, const uint16_t *id,
			  size_t ids)
{
	struct tokens *t;
	struct error err;
	int32_t out[32];

	if (tokens_open(test_path(d, pattern), VOCABULARY, 1, &t, &err))
		fail_msg("%s", err.text);
	assert_int_equal(tokens_count(t), ids);
	for (size_t start = 0; start <= ids; start++) {
		for (size_t n = 0; n <= ids - start; n++) {
			tokens_copy(t, start, n, out);
			for (size_t i = 0; i < n; i++)
				assert_int_equal(out[i], id[start + i]);
		}
	}
	tokens_close(t);
}

static void expect_refusal(const struct test_dir *d, const char *pattern, const char *reason)
{
	struct tokens *t;
	struct error err;

	if (!tokens_open(test_path(d, pattern), VOCABULARY, 3, &t, &err))
		fail_msg("opened, though it should say \"%s\"", reason);
	assert_contains(err.text, reason);
	assert_contains(err.text, "make data");
}

static const uint16_t ID[] = { 7, 0, 999, 5, 6, 7, 8, 9, 10, 11 };
static const uint16_t SMALL[] = { 7, 0, 99, 5, 6, 7, 8, 9, 10, 11 };

static void test_both_forms(void **state)
{
	struct test_dir d = test_dir_make();

	(void)state;
	test_put(&d, "raw.bin", ID, sizeof(ID));
	expect_tokens(&d, "raw.bin", ID, 10);
	put_shard(&d, "shard.bin", 20240520, 1, 10, ID, 10);
	expect_tokens(&d, "shard.bin", ID, 10);
	test_dir_remove(&d);
}

/* Shards follow each other in the order of their names, whatever their forms and sizes. */
static void test_several_shards(void **state)
{
	struct test_dir d = test_dir_make();

	(void)state;
	put_shard(&d, "t-2.bin", 20240520, 1, 3, ID + 7, 3);
	put_shard(&d, "t-0.bin", 20240520, 1, 1, ID, 1);
	test_put(&d, "t-1.bin", ID + 1, 12);
	expect_tokens(&d, "t-*.bin", ID, 10);
	test_dir_remove(&d);
}

/* The hash depends on tokens and shards, not on names or forms. */
static void test_hash_is_of_the_tokens(void **state)
{
	struct test_dir d = test_dir_make();
	struct tokens *a, *b, *c;
	struct error err;

	(void)state;
	test_put(&d, "a.bin", ID, sizeof(ID));
	put_shard(&d, "b.bin", 20240520, 1, 10, ID, 10);
	test_put(&d, "c.bin", SMALL, sizeof(SMALL));
	assert_int_equal(tokens_open(test_path(&d, "a.bin"), VOCABULARY, 1, &a, &err), OK);
	assert_int_equal(tokens_open(test_path(&d, "b.bin"), VOCABULARY, 1, &b, &err), OK);
	assert_int_equal(tokens_open(test_path(&d, "c.bin"), VOCABULARY, 1, &c, &err), OK);
	assert_string_equal(tokens_hash(a), tokens_hash(b));
	assert_string_not_equal(tokens_hash(a), tokens_hash(c));
	assert_null(tokens_dataset(a));
	assert_string_equal(tokens_directory(a), d.path);
	tokens_close(a);
	tokens_close(b);
	tokens_close(c);
	test_dir_remove(&d);
}

static void test_broken_files(void **state)
{
	struct test_dir d = test_dir_make();

	(void)state;
	expect_refusal(&d, "x.bin", "no file matches");
	test_put(&d, "x.bin", ID, 0);
	expect_refusal(&d, "x.bin", "the file is empty");
	test_put(&d, "x.bin", ID, 4);
	expect_refusal(&d, "x.bin", "too short: 2 tokens, at least 3");
	test_put(&d, "x.bin", ID, 7);
	expect_refusal(&d, "x.bin", "wrong size: 7 bytes");
	put_shard(&d, "x.bin", 20240801, 7, 10, ID, 10);
	expect_refusal(&d, "x.bin", "wrong magic number 20240801");
	put_shard(&d, "x.bin", 20240520, 2, 10, ID, 10);
	expect_refusal(&d, "x.bin", "version 2");
	put_shard(&d, "x.bin", 20240520, 1, 9, ID, 10);
	expect_refusal(&d, "x.bin", "promises 9 tokens, 20 bytes follow");
	put_shard(&d, "x.bin", 20240520, 1, 11, ID, 10);
	expect_refusal(&d, "x.bin", "promises 11 tokens");
	put_shard(&d, "x.bin", 20240520, 1, -1, ID, 10);
	expect_refusal(&d, "x.bin", "promises -1 tokens");
	put_shard(&d, "x.bin", 20240520, 1, 0, ID, 0);
	expect_refusal(&d, "x.bin", "too short: 0 tokens");
	test_put(&d, "x.bin", &(int32_t[]){ 20240520, 1, 3 }, 12);
	expect_refusal(&d, "x.bin", "12 bytes do not hold the header");
	put_shard(&d, "x.bin", 20240520, 1, 3, (const uint16_t[]){ 1, 1000, 2 }, 3);
	expect_refusal(&d, "x.bin", "token 1 is 1000, beyond the vocabulary of 1000");
	assert_int_equal(mkdir(test_path(&d, "y.bin"), 0777), 0);
	expect_refusal(&d, "y.bin", "not a regular file");
	test_dir_remove(&d);
}

/* Root can read every file; other users are refused. */
static void test_unreadable_file(void **state)
{
	struct test_dir d = test_dir_make();

	(void)state;
	if (geteuid() == 0) {
		assert_int_equal(symlink("nowhere", test_path(&d, "x.bin")), 0);
		expect_refusal(&d, "x.b*", "cannot open");
	} else {
		test_put(&d, "x.bin", ID, sizeof(ID));
		assert_int_equal(chmod(test_path(&d, "x.bin"), 0), 0);
		expect_refusal(&d, "x.bin", "Permission denied");
	}
	test_dir_remove(&d);
}

static void test_vocabulary_must_fit_16_bits(void **state)
{
	struct tokens *t;
	struct error err;

	(void)state;
	assert_int_equal(tokens_open("x", 65536, 1, &t, &err), FAIL);
	assert_contains(err.text, "not 65536");
	assert_int_equal(tokens_open("x", 0, 1, &t, &err), FAIL);
}

static void test_our_shards(void **state)
{
	struct test_dir d = test_dir_make();
	struct tokens *t;
	struct error err;

	(void)state;
	put_dataset(&d, SMALL, 10, 4);
	expect_tokens(&d, "train-*.bin", SMALL, 10);
	expect_tokens(&d, "train-000001.bin", SMALL + 4, 4);
	assert_int_equal(tokens_open(test_path(&d, "train-*.bin"), 257, 1, &t, &err), OK);
	assert_int_equal(tokens_dataset(t)->split[SPLIT_TRAIN].shards, 3);
	tokens_close(t);
	assert_int_equal(tokens_open(test_path(&d, "train-*.bin"), 256, 1, &t, &err), FAIL);
	assert_contains(err.text, "the data has a vocabulary of 257, the model one of 256");
	test_dir_remove(&d);
}

static void test_shards_that_differ_from_the_side_file(void **state)
{
	const uint16_t changed[] = { 6, 7, 8, 10 };
	struct test_dir d = test_dir_make();

	(void)state;
	put_dataset(&d, SMALL, 10, 4);
	put_shard(&d, "train-000001.bin", 20240520, 1, 4, changed, 4);
	expect_refusal(&d, "train-*.bin", "train-000001.bin: changed since it was prepared");
	put_shard(&d, "train-000001.bin", 20240520, 1, 3, changed, 3);
	expect_refusal(&d, "train-*.bin", "3 tokens, but data.json lists 4");
	test_put(&d, "train-000001.bin", changed, 8);
	expect_refusal(&d, "train-*.bin", "too short: 8 bytes do not hold the header");
	assert_int_equal(unlink(test_path(&d, "train-000001.bin")), 0);
	expect_refusal(&d, "train-*.bin", "train-000001.bin is missing");
	put_dataset(&d, SMALL, 10, 4);
	put_shard(&d, "train-000003.bin", 20240520, 1, 4, changed, 4);
	expect_refusal(&d, "train-*.bin", "train-000003.bin is not listed");
	test_put_text(&d, "data.json", "{}");
	expect_refusal(&d, "train-*.bin", "data.json: ");
	test_dir_remove(&d);
}

/* The caller allows more ids than the side file does. */
static void test_ids_beyond_the_side_file(void **state)
{
	const uint16_t id[] = { 1, 2, 257 };
	struct test_dir d = test_dir_make();

	(void)state;
	put_dataset(&d, id, 3, 2);
	expect_refusal(&d, "train-*.bin",
		       "train-000001.bin: token 0 is 257, beyond the vocabulary of 257");
	test_dir_remove(&d);
}

/* A side file describes its own directory only, whichever comes first. */
static void test_several_directories(void **state)
{
	struct test_dir d = test_dir_make(), a = d, b = d;

	(void)state;
	strcat(a.path, "/a");
	strcat(b.path, "/bb");
	assert_int_equal(mkdir(a.path, 0777), 0);
	assert_int_equal(mkdir(b.path, 0777), 0);
	put_dataset(&a, SMALL, 10, 10);
	expect_tokens(&d, "*/train-*.bin", SMALL, 10);
	put_shard(&b, "train-000000.bin", 20240520, 1, 10, SMALL, 10);
	expect_refusal(&d, "*/train-*.bin", "/a/train-000000.bin and ");
	expect_refusal(&d, "*/train-*.bin", "/bb/train-000000.bin: name those of one");
	assert_int_equal(rename(test_path(&a, "data.json"), test_path(&b, "data.json")), 0);
	expect_refusal(&d, "*/train-*.bin", "several directories");
	test_dir_remove(&d);
}

/* The path of the directory may be spelled in any way. */
static void test_missing_shard_behind_a_double_slash(void **state)
{
	struct test_dir d = test_dir_make();

	(void)state;
	put_dataset(&d, SMALL, 10, 4);
	expect_tokens(&d, "/train-*.bin", SMALL, 10);
	assert_int_equal(unlink(test_path(&d, "train-000001.bin")), 0);
	expect_refusal(&d, "/train-*.bin", "train-000001.bin is missing");
	expect_refusal(&d, "./train-*.bin", "train-000001.bin is missing");
	expect_tokens(&d, "/train-000000.bin", SMALL, 4);
	test_dir_remove(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_both_forms),
		cmocka_unit_test(test_several_shards),
		cmocka_unit_test(test_hash_is_of_the_tokens),
		cmocka_unit_test(test_broken_files),
		cmocka_unit_test(test_unreadable_file),
		cmocka_unit_test(test_vocabulary_must_fit_16_bits),
		cmocka_unit_test(test_our_shards),
		cmocka_unit_test(test_shards_that_differ_from_the_side_file),
		cmocka_unit_test(test_ids_beyond_the_side_file),
		cmocka_unit_test(test_several_directories),
		cmocka_unit_test(test_missing_shard_behind_a_double_slash),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
