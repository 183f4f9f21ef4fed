/* Tests of data/intern and data/heap: numbers in order of arrival, growth, and sorting. */
#include <stdlib.h>
#include <string.h>

#include "core/util/rng.h"
#include "core/util/test.h"
#include "data/tokenizer/heap.h"
#include "data/tokenizer/intern.h"

enum { MANY = 5000 };

static void test_strings_are_numbered_in_order(void **state)
{
	struct strings s = { 0 };

	(void)state;
	assert_int_equal(strings_find(&s, (const uint8_t *)"a", 1), INTERN_NONE);
	for (int round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < MANY; i++)
			assert_int_equal(strings_add(&s, (const uint8_t *)&i, 4), i);
	}
	for (uint32_t i = 0; i < MANY; i++) {
		assert_int_equal(strings_find(&s, (const uint8_t *)&i, 4), i);
		assert_int_equal(strings_size(&s, i), 4);
		assert_memory_equal(strings_at(&s, i), &i, 4);
	}
	strings_free(&s);
}

/* Size counts, and so does a zero byte; the empty string is a string. */
static void test_strings_differ_by_size(void **state)
{
	struct strings s = { 0 };

	(void)state;
	assert_int_equal(strings_add(&s, (const uint8_t *)"a\0\0", 1), 0);
	assert_int_equal(strings_add(&s, (const uint8_t *)"a\0\0", 2), 1);
	assert_int_equal(strings_add(&s, (const uint8_t *)"", 0), 2);
	assert_int_equal(strings_add(&s, (const uint8_t *)"a\0\0", 3), 3);
	assert_int_equal(strings_find(&s, (const uint8_t *)"", 0), 2);
	assert_int_equal(strings_find(&s, (const uint8_t *)"b", 1), INTERN_NONE);
	strings_free(&s);
}

static void test_pairs_are_numbered_in_order(void **state)
{
	struct pairs p = { 0 };

	(void)state;
	assert_int_equal(pairs_find(&p, 0), INTERN_NONE);
	for (int round = 0; round < 2; round++)
		for (uint32_t i = 0; i < MANY; i++)
			assert_int_equal(pairs_add(&p, pair_of(i % 71, i / 71)), i);
	for (uint32_t i = 0; i < MANY; i++)
		assert_int_equal(pairs_find(&p, pair_of(i % 71, i / 71)), i);
	assert_int_equal(pairs_find(&p, pair_of(71, 0)), INTERN_NONE);
	pairs_free(&p);
}

static void test_heap_sorts(void **state)
{
	struct rng_key key = rng_key(1, "heap");
	struct heap_item item[MANY], last = { 0, 0 };
	struct heap h = { item, 0 };

	(void)state;
	for (uint64_t i = 0; i < MANY; i++)
		heap_push(&h, (struct heap_item){ rng_below(key, i, 100), rng_u64(key, i) });
	for (int i = 0; i < MANY; i++) {
		struct heap_item next = heap_pop(&h);

		assert_false(heap_before(next, last));
		last = next;
	}
	assert_int_equal(h.count, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_strings_are_numbered_in_order),
		cmocka_unit_test(test_strings_differ_by_size),
		cmocka_unit_test(test_pairs_are_numbered_in_order),
		cmocka_unit_test(test_heap_sorts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
