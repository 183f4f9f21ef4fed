/* Tests of data/tasks/draw: exact sums, proportions, and the distributions drawn. */
#include <math.h>

#include "data/tasks/draw.h"
#include "data/tasks/fixture.h"

static struct rng_reader reader(const char *name)
{
	return (struct rng_reader){ .key = rng_key(1, name) };
}

static void test_units_add_up_and_keep_proportions(void **state)
{
	double weights[1000], sum = 0.0;
	uint32_t units[1000], total = 0;

	(void)state;
	for (int i = 0; i < 1000; i++)
		sum += weights[i] = pow(i + 1.0, -1.7);
	draw_quantise(weights, 1000, units);
	for (int i = 0; i < 1000; i++) {
		total += units[i];
		/* One unit each, one of rounding, 1000 taken in proportion; the rest went to the
		 * first. */
		expect_near(units[i], weights[i] / sum * DRAW_UNITS,
			    2.0 + 1000.0 * (i ? weights[i] / sum : 2));
	}
	assert_int_equal(total, DRAW_UNITS);
}

static void test_no_weight_is_lost(void **state)
{
	const double weights[] = { 1e30, 0.0, 1e-30 };
	uint32_t units[3];

	(void)state;
	draw_quantise(weights, 3, units);
	assert_int_equal(units[0], DRAW_UNITS - 2);
	assert_int_equal(units[1], 1);
	assert_int_equal(units[2], 1);
}

static void test_indices_follow_their_units(void **state)
{
	const uint32_t units[] = { 5, 0, 1, 14 };
	struct rng_reader random = reader("index");
	int counts[4] = { 0 };

	(void)state;
	for (int i = 0; i < 20000; i++)
		counts[draw_index(&random, units, 20)]++;
	assert_int_equal(counts[1], 0);
	fixture_expect_share(counts[0], 20000, 5 / 20.0);
	fixture_expect_share(counts[2], 20000, 1 / 20.0);
	fixture_expect_share(counts[3], 20000, 14 / 20.0);
}

/* Two of { 10, 11, 12 }: six outcomes of one probability. */
static void test_distinct_numbers(void **state)
{
	struct rng_reader random = reader("distinct");
	int counts[3][3] = { 0 };
	int32_t pair[2];

	(void)state;
	for (int i = 0; i < 12000; i++) {
		draw_distinct(&random, 10, 3, 2, pair);
		assert_in_range(pair[0], 10, 12);
		assert_in_range(pair[1], 10, 12);
		counts[pair[0] - 10][pair[1] - 10]++;
	}
	for (int i = 0; i < 3; i++)
		for (int j = 0; j < 3; j++)
			if (i == j)
				assert_int_equal(counts[i][j], 0);
			else
				fixture_expect_share(counts[i][j], 12000, 1 / 6.0);
}

static void test_shuffle_makes_every_order(void **state)
{
	struct rng_reader random = reader("shuffle");
	int counts[27] = { 0 }, orders = 0;

	(void)state;
	for (int i = 0; i < 12000; i++) {
		int32_t list[] = { 0, 1, 2 };

		draw_shuffle(&random, list, 3);
		counts[9 * list[0] + 3 * list[1] + list[2]]++;
	}
	for (int i = 0; i < 27; i++)
		if (counts[i]) {
			fixture_expect_share(counts[i], 12000, 1 / 6.0);
			orders++;
		}
	assert_int_equal(orders, 6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_units_add_up_and_keep_proportions),
		cmocka_unit_test(test_no_weight_is_lost),
		cmocka_unit_test(test_indices_follow_their_units),
		cmocka_unit_test(test_distinct_numbers),
		cmocka_unit_test(test_shuffle_makes_every_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
