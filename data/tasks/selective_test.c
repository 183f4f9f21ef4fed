/* Tests of the selective copying task. */
#include "data/tasks/fixture.h"

#define SYMBOLS "CONFIG_SELECTIVE_VOCAB=16\nCONFIG_SELECTIVE_TOKENS=16\n"
#define T 256
#define N 16
#define BLANK 14
#define MARKER 15

static void test_tokens_come_back_in_order(void **state)
{
	struct fixture f;
	double tokens[BLANK] = { 0 }, places[T] = { 0 };

	(void)state;
	fixture_open(&f, "selective", T, SYMBOLS, 1);
	for (uint64_t i = 0; i < 1000; i++) {
		int found = 0;

		source_train(&f.source, i, 0, &f.row);
		assert_int_equal(f.row.tokens[T - N], MARKER);
		for (int t = 0; t < T - N; t++) {
			assert_int_equal(f.row.targets[t], -1);
			if (f.row.tokens[t] == BLANK)
				continue;
			assert_true(found < N);
			assert_int_equal(f.row.targets[T - N + found], f.row.tokens[t]);
			if (found < N - 1)
				assert_int_equal(f.row.tokens[T - N + 1 + found], f.row.tokens[t]);
			found++;
			tokens[f.row.tokens[t]]++;
			places[t]++;
		}
		assert_int_equal(found, N);
	}
	for (int i = 0; i < BLANK; i++)
		fixture_expect_share(tokens[i], 1000 * N, 1.0 / BLANK);
	for (int t = 0; t < T - N; t++)
		fixture_expect_share(places[t], 1000, (double)N / (T - N));
	expect_near(f.source.chance, log(14.0), 1e-12);
	fixture_close(&f);
}

static void test_a_row_without_blanks(void **state)
{
	struct fixture f;

	(void)state;
	fixture_open(&f, "selective", 2 * N, SYMBOLS, 1);
	source_valid(&f.source, 0, &f.row);
	assert_memory_equal(f.row.tokens, f.row.targets + N, N * sizeof(int32_t));
	fixture_close(&f);
}

static void test_refusals(void **state)
{
	(void)state;
	fixture_refuses("selective", 31, SYMBOLS, "MODEL_BLOCK >= 32");
	fixture_refuses("selective", T, "CONFIG_SELECTIVE_VOCAB=2\nCONFIG_SELECTIVE_TOKENS=16\n",
			"SELECTIVE_VOCAB=2");
}

static void test_rows_are_known(void **state)
{
	(void)state;
	fixture_expect_hash("selective", T, SYMBOLS,
			    "1d90633128635d50017e98fb5b9016661cf62c3bca1e10e75e91a582d4e021f4");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tokens_come_back_in_order),
		cmocka_unit_test(test_a_row_without_blanks),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_rows_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
