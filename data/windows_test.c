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

/* For every number of windows: each once per round, in the text, disjoint; another round is another
 * order. */
static void test_once(void **state)
{
	struct rng_key key = rng_key(1, "train/windows"), other = rng_key(2, "train/windows");
	int same = 0, to_other = 0, moved = 0;

	(void)state;
	for (uint64_t count = T + 1; count < 700; count += 7) {
		const uint64_t places = window_valid_number(count, T);

		for (uint64_t round = 0; round < 3; round++) {
			const uint64_t first = window_once_start(key, round * places, count, T) % T;
			uint8_t seen[100] = { 0 };

			for (uint64_t n = 0; n < places; n++) {
				uint64_t start =
					window_once_start(key, round * places + n, count, T);

				assert_true(start + T + 1 <= count);
				assert_int_equal(start % T, first);
				assert_int_equal(seen[start / T]++, 0);
				if (count < 600)
					continue;
				same += start == window_once_start(key, n, count, T) && round > 0;
				to_other += start ==
					    window_once_start(other, round * places + n, count, T);
				moved += start / T == n;
			}
		}
	}
	/* Rounds, seeds and the order of the text agree about once in a round by chance. */
	assert_in_range(same, 0, 60);
	assert_in_range(to_other, 0, 90);
	assert_in_range(moved, 0, 90);
}

/* Every order of three windows is about equally frequent; large texts and late windows are as good.
 */
static void test_once_is_fair(void **state)
{
	int seen[27] = { 0 };

	(void)state;
	for (uint64_t seed = 0; seed < 6000; seed++) {
		struct rng_key key = rng_key(seed, "train/windows");
		uint64_t order = 0;

		for (uint64_t n = 0; n < 3; n++)
			order = 3 * order + window_once_start(key, n, 3 * T + 1, T) / T;
		seen[order]++;
	}
	/* 1000 expected, standard deviation 28.9: five of them. */
	for (int i = 0; i < 27; i++)
		assert_true(seen[i] == 0 || (seen[i] > 855 && seen[i] < 1145));
	for (uint64_t n = UINT64_MAX / 2; n < UINT64_MAX / 2 + 100; n++)
		assert_true(window_once_start(rng_key(1, ""), n, 3000000000, 1024) <
			    3000000000 - 1024);
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
		cmocka_unit_test(test_once),
		cmocka_unit_test(test_once_is_fair),
		cmocka_unit_test(test_valid_is_disjoint_and_spread),
		cmocka_unit_test(test_all_valid_windows_cover),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
