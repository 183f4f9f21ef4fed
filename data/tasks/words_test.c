/* Tests of data/tasks/words: the distribution after two tokens is the one its header gives. */
#include <math.h>

#include "data/tasks/draw.h"
#include "data/tasks/fixture.h"
#include "data/tasks/words.h"

#define COUNT 50
#define CLUSTERS 3
#define ZIPF 1.3

static struct words open_words(double common, uint64_t seed)
{
	struct words w;
	struct error err;

	assert_int_equal(words_open(&w, COUNT, CLUSTERS, ZIPF, common, rng_key(seed, "test"), &err),
			 OK);
	return w;
}

static double zipf(int rank)
{
	double sum = 0.0;

	for (int i = 1; i <= COUNT; i++)
		sum += pow(i, -ZIPF);
	return pow(rank + 1.0, -ZIPF) / sum;
}

/* A share may be off by the units that rounding moves: COUNT of DRAW_UNITS. */
static void expect_share(uint32_t units, double share)
{
	assert_true(fabs((double)units / DRAW_UNITS - share) <= (double)COUNT / DRAW_UNITS);
}

static int descending(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x < y) - (x > y);
}

static void test_common_words_are_zipfian_in_order(void **state)
{
	struct words w = open_words(1.0, 1);

	(void)state;
	for (int32_t before = -1; before < CLUSTERS; before++)
		for (int i = 0; i < COUNT; i++)
			expect_share(words_after(&w, before, 2)[i], zipf(i));
	words_close(&w);
}

static void test_each_context_has_an_order_of_its_own(void **state)
{
	struct words w = open_words(0.0, 1);
	const uint32_t *first = words_after(&w, 0, 0);

	(void)state;
	for (int32_t before = -1; before < CLUSTERS; before++)
		for (int32_t last = -1; last < CLUSTERS; last++) {
			uint32_t sorted[COUNT];

			memcpy(sorted, words_after(&w, before, last), sizeof(sorted));
			if (before || last)
				assert_memory_not_equal(sorted, first, sizeof(sorted));
			qsort(sorted, COUNT, sizeof(sorted[0]), descending);
			for (int i = 0; i < COUNT; i++)
				expect_share(sorted[i], zipf(i));
		}
	words_close(&w);
}

static void test_words_of_a_cluster_are_one_context(void **state)
{
	struct words w = open_words(0.5, 1);

	(void)state;
	assert_ptr_equal(words_after(&w, 1, 2), words_after(&w, 1 + CLUSTERS, 2 + 5 * CLUSTERS));
	assert_ptr_not_equal(words_after(&w, 1, 2), words_after(&w, 2, 1));
	words_close(&w);
}

static void test_parts_mix(void **state)
{
	struct words own = open_words(0.0, 1), mixed = open_words(0.25, 1);

	(void)state;
	for (int i = 0; i < COUNT; i++)
		expect_share(words_after(&mixed, 0, -1)[i],
			     0.25 * zipf(i) +
				     0.75 * ((double)words_after(&own, 0, -1)[i] / DRAW_UNITS));
	words_close(&own);
	words_close(&mixed);
}

static void test_another_key_is_another_language(void **state)
{
	struct words a = open_words(0.0, 1), b = open_words(0.0, 2);

	(void)state;
	assert_memory_not_equal(words_after(&a, 0, 0), words_after(&b, 0, 0),
				COUNT * sizeof(uint32_t));
	words_close(&a);
	words_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_common_words_are_zipfian_in_order),
		cmocka_unit_test(test_each_context_has_an_order_of_its_own),
		cmocka_unit_test(test_words_of_a_cluster_are_one_context),
		cmocka_unit_test(test_parts_mix),
		cmocka_unit_test(test_another_key_is_another_language),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
