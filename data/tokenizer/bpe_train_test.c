/* Tests of data/bpe_train: merges computed elsewhere, order of the text, too little text. */
#include "data/tokenizer/bpe_train.h"

#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/bpe_cases.h"
#include "core/util/test_dir.h"

static void count(struct word_counts *c, const char *text, size_t size)
{
	struct split *split;
	struct error err;

	assert_int_equal(split_new(&split, &err), OK);
	assert_int_equal(word_counts_add(c, split, (const uint8_t *)text, size, &err), OK);
	split_free(split);
}

static void expect_sample_merges(const struct word_counts *c)
{
	struct test_dir d = test_dir_make();
	struct tokenizer *t;
	struct error err;
	size_t size;
	char *text;

	assert_int_equal(bpe_train(c, SAMPLE_VOCABULARY, &t, &err), OK);
	assert_int_equal(tokenizer_save(t, test_path(&d, "vocab.bpe"), &err), OK);
	text = test_get(&d, "vocab.bpe", &size);
	assert_string_equal(text, SAMPLE_MERGES);
	free(text);
	tokenizer_close(t);
	test_dir_remove(&d);
}

static void test_merges_of_the_sample(void **state)
{
	struct word_counts c = { 0 };

	(void)state;
	count(&c, SAMPLE_TEXT, sizeof(SAMPLE_TEXT) - 1);
	expect_sample_merges(&c);
	word_counts_free(&c);
}

/* Counts of several threads, added in any order, are the counts of the whole text. */
static void test_parts_in_another_order(void **state)
{
	const uint8_t *text = (const uint8_t *)SAMPLE_TEXT;
	size_t size = sizeof(SAMPLE_TEXT) - 1, cut = split_cut(text, size, size / 2);
	struct word_counts first = { 0 }, last = { 0 };
	struct error err;

	(void)state;
	assert_true(cut < size);
	count(&last, SAMPLE_TEXT + cut, size - cut);
	count(&first, SAMPLE_TEXT, cut);
	assert_int_equal(word_counts_merge(&last, &first, &err), OK);
	expect_sample_merges(&last);
	word_counts_free(&first);
	word_counts_free(&last);
}

static void test_sizes(void **state)
{
	struct word_counts c = { 0 };
	struct tokenizer *t;
	struct error err;

	(void)state;
	count(&c, "abab abab", 9);
	assert_int_equal(bpe_train(&c, 256, &t, &err), FAIL);
	assert_contains(err.text, "257 to 65535");
	assert_int_equal(bpe_train(&c, 65536, &t, &err), FAIL);
	assert_int_equal(bpe_train(&c, 257, &t, &err), OK);
	assert_int_equal(tokenizer_vocabulary(t), 257);
	tokenizer_close(t);
	/* a b, ab ab; " abab" occurs once. */
	assert_int_equal(bpe_train(&c, 300, &t, &err), FAIL);
	assert_contains(err.text, "a vocabulary of 259 at most, not 300");
	word_counts_free(&c);
}

/* Runs of one letter, where pairs overlap. */
static void test_overlapping_pairs(void **state)
{
	struct word_counts c = { 0 };
	struct tokenizer *t;
	struct error err;

	(void)state;
	count(&c, "aaaaaaa", 7);
	/* a a (6 times), aa aa (twice, for aa aa aa a); then nothing occurs twice. */
	assert_int_equal(bpe_train(&c, 259, &t, &err), OK);
	assert_memory_equal(tokenizer_text(t, 257), "aaaa", 4);
	tokenizer_close(t);
	assert_int_equal(bpe_train(&c, 260, &t, &err), FAIL);
	word_counts_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_merges_of_the_sample),
		cmocka_unit_test(test_parts_in_another_order),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_overlapping_pairs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
