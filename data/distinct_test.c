/* Tests of data/distinct: what repeats is left out, what only resembles stays, the order decides.
 */
#include "data/distinct.h"

#include "core/util/rng.h"
#include "core/util/test_dir.h"

enum { WORDS = 4000 };

/* `from` to `until` of the words of a long text, which its name chooses. */
static void put_words(FILE *file, const char *name, int from, int until)
{
	for (int i = from; i < until; i++)
		fprintf(file, "w%llu ",
			(unsigned long long)rng_below(rng_key(3, name), (uint64_t)i, 5000));
}

static void put_document(const struct test_dir *d, const char *name, const char *first, int words,
			 const char *second)
{
	FILE *file = fopen(test_path(d, name), "wb");

	assert_non_null(file);
	put_words(file, first, 0, words);
	put_words(file, second, words, WORDS);
	assert_int_equal(fclose(file), 0);
}

static struct distinct find(const struct test_dir *d, double share)
{
	char *path = strdup(test_path(d, "in"));
	struct distinct found;
	struct error err;

	if (distinct_find(&path, 1, share, &found, &err))
		fail_msg("%s", err.text);
	free(path);
	return found;
}

static struct test_dir start(void)
{
	struct test_dir d = test_dir_make();
	char command[700];

	snprintf(command, sizeof(command), "mkdir '%s'", test_path(&d, "in"));
	assert_int_equal(system(command), 0);
	return d;
}

static void test_near_duplicates(void **state)
{
	struct test_dir d = start();
	struct distinct found;

	(void)state;
	put_document(&d, "in/0", "text", WORDS, "");
	put_document(&d, "in/1", "text", WORDS * 95 / 100, "other");
	put_document(&d, "in/2", "text", WORDS / 2, "another");
	put_document(&d, "in/3", "alone", WORDS, "");
	test_put_text(&d, "in/4", "short");
	test_put_text(&d, "in/5", "short\n"); /* the same words */
	test_put_text(&d, "in/6", "shorter");
	found = find(&d, 0);
	assert_int_equal(found.documents, 7);
	assert_memory_equal(found.is_left_out, "\0\1\0\0\0\1\0", 7);
	assert_int_equal(found.duplicates, 2);
	assert_int_equal(found.leaks, 0);
	distinct_free(&found);
	test_dir_remove(&d);
}

/* With 60 documents of three quarters of one text each, no validation document may stay. */
static void test_leaks(void **state)
{
	struct test_dir d = start();
	struct distinct found, alone;
	char name[20];

	(void)state;
	for (int i = 0; i < 60; i++) {
		snprintf(name, sizeof(name), "in/%02d", i);
		put_document(&d, name, "text", WORDS * 7 / 10, name);
	}
	found = find(&d, 0.5);
	assert_in_range(found.leaks, 15, 45);
	assert_int_equal(found.duplicates, 0);
	alone = find(&d, 0);
	assert_int_equal(alone.leaks + alone.duplicates, 0);
	distinct_free(&found);
	distinct_free(&alone);
	test_dir_remove(&d);
}

static void test_refusals(void **state)
{
	struct test_dir d = start();
	char *in[] = { (char *)"-" }, *path;
	struct distinct found;
	struct error err;

	(void)state;
	assert_int_equal(distinct_find(in, 1, 0.1, &found, &err), FAIL);
	assert_contains(err.text, "cannot be read twice");
	test_put_text(&d, "in/one.txt", "a single text");
	path = strdup(test_path(&d, "in/one.txt"));
	assert_int_equal(distinct_find(&path, 1, 0.1, &found, &err), FAIL);
	assert_contains(err.text, "several documents");
	free(path);
	test_dir_remove(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_near_duplicates),
		cmocka_unit_test(test_leaks),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
