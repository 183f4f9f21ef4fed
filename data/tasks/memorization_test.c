/* Tests of the memorization task. */
#include "data/tasks/fixture.h"

#define SYMBOLS "CONFIG_MEMORIZATION_VOCAB=256\n"
#define T 32
#define KEYS 127

static void expect_row(const struct row *row, int32_t map[KEYS], double *counts)
{
	for (int t = 0; t < T; t += 2) {
		int32_t key = row->tokens[t], value = row->targets[t + 1];

		assert_in_range(key, 0, KEYS - 1);
		assert_int_equal(row->tokens[t + 1], 255);
		assert_int_equal(row->targets[t], -1);
		assert_in_range(value, KEYS, 254);
		expect_near(row->floor[t + 1], 0.0, 0.0);
		if (map[key] < 0)
			map[key] = value;
		assert_int_equal(value, map[key]);
		counts[key]++;
	}
}

/* Seeds and purposes share the map; no two keys share a value. */
static void test_one_map_for_all(void **state)
{
	double counts[KEYS] = { 0 };
	int32_t map[KEYS];

	(void)state;
	memset(map, -1, sizeof(map));
	for (uint64_t seed = 1; seed <= 2; seed++) {
		struct fixture f;

		fixture_open(&f, "memorization", T, SYMBOLS, seed);
		for (uint64_t i = 0; i < 500; i++) {
			source_train(&f.source, i, 0, &f.row);
			expect_row(&f.row, map, counts);
		}
		source_valid(&f.source, 0, &f.row);
		expect_row(&f.row, map, counts);
		expect_near(f.source.chance, log(KEYS), 1e-12);
		fixture_close(&f);
	}
	for (int i = 0; i < KEYS; i++) {
		fixture_expect_share(counts[i], 2 * 501 * T / 2, 1.0 / KEYS);
		for (int j = 0; j < i; j++)
			assert_int_not_equal(map[i], map[j]);
	}
}

static void test_refusals(void **state)
{
	(void)state;
	fixture_refuses("memorization", 31, SYMBOLS, "even");
	fixture_refuses("memorization", T, "CONFIG_MEMORIZATION_VOCAB=2\n", "MEMORIZATION_VOCAB=2");
}

static void test_rows_are_known(void **state)
{
	(void)state;
	fixture_expect_hash("memorization", T, SYMBOLS,
			    "fb9739df992f92281f9ceab359d65d4311550b4d550adbed03c14dfbf7aac778");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_map_for_all),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_rows_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
