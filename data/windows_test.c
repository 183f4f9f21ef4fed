/* Tests of data/windows: pure, within the text, covering it, disjoint. */
#include "data/windows.h"

#include <string.h>

#include "core/util/test.h"

enum { COUNT = 60, T = 8 };

static void test_train_is_pure_and_keyed(void **state)
{
	struct rng_key key = rng_key(1, "train/windows"), other = rng_key(2, "train/windows");
	uint64_t first = window_train_start(key, 3, 5, 1000000, T);
	int same = 0;

	(void)state;
	for (uint64_t i = 0; i < 100; i++)
		window_train_start(key, i, 0, 1000000, T);
	assert_int_equal(window_train_start(key, 3, 5, 1000000, T), first);
	for (uint64_t i = 0; i < 100; i++) {
		uint64_t start = window_train_start(key, i, 7, 1000000, T);

		same += start == window_train_start(other, i, 7, 1000000, T);
		same += start == window_train_start(key, i, 8, 1000000, T);
		same += start == window_train_start(key, i + 1, 7, 1000000, T);
	}
	/* 300 pairs meet by chance with probability 3e-4. */
	assert_int_equal(same, 0);
}

/* Every start that leaves T + 1 tokens, each about equally often. */
static void test_train_covers(void **state)
{
	struct rng_key key = rng_key(1, "train/windows");
	int seen[COUNT] = { 0 };

	(void)state;
	for (uint64_t i = 0; i < 1000; i++)
		for (uint64_t row = 0; row < 52; row++)
			seen[window_train_start(key, i, row, COUNT, T)]++;
	/* 1000 expected, standard deviation 31.3: five of them. */
	for (int i = 0; i < COUNT; i++)
		assert_in_range(seen[i] + 1, i < COUNT - T ? 844 : 1, i < COUNT - T ? 1157 : 1);
	assert_int_equal(window_train_start(key, 9, 9, T + 1, T), 0);
}

/* For every size of text and number of windows: in range, disjoint, evenly spread. */
static void test_valid_is_disjoint_and_spread(void **state)
{
	(void)state;
	for (uint64_t count = 0; count < 100; count++) {
		uint64_t most = window_valid_number(count, T);

		assert_true(most * T + 1 <= count || most == 0);
		assert_true((most + 1) * T + 1 > count);
		for (uint64_t number = 1; number <= most; number++) {
			uint64_t smallest = UINT64_MAX, largest = 0, last = 0;

			assert_int_equal(window_valid_start(0, number, count, T), 0);
			for (uint64_t i = 1; i < number; i++) {
				uint64_t start = window_valid_start(i, number, count, T);

				smallest = start - last < smallest ? start - last : smallest;
				largest = start - last > largest ? start - last : largest;
				assert_true(start >= last + T && start + T + 1 <= count);
				last = start;
			}
			assert_true(number == 1 || largest - smallest <= T);
		}
	}
}

/* Together they predict each token once, except the first and a rest shorter than T. */
static void test_all_valid_windows_cover(void **state)
{
	uint64_t number = window_valid_number(COUNT, T);
	int predicted[COUNT] = { 0 };

	(void)state;
	for (uint64_t i = 0; i < number; i++)
		for (uint64_t j = 1; j <= T; j++)
			predicted[window_valid_start(i, number, COUNT, T) + j]++;
	for (uint64_t i = 0; i < COUNT; i++)
		assert_int_equal(predicted[i], i >= 1 && i <= number * T);
	assert_int_equal(number, 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_train_is_pure_and_keyed),
		cmocka_unit_test(test_train_covers),
		cmocka_unit_test(test_valid_is_disjoint_and_spread),
		cmocka_unit_test(test_all_valid_windows_cover),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
