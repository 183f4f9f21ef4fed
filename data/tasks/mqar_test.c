/* Tests of the mqar task. */
#include "data/tasks/fixture.h"

#define SYMBOLS                                                                     \
	"CONFIG_MQAR_VOCAB=8192\nCONFIG_MQAR_PAIRS=8\nCONFIG_MQAR_POWER=\"0.01\"\n" \
	"CONFIG_MQAR_RANDOM_FILLER=y\n"
#define T 128
#define K 8

static void expect_different(const int32_t *tokens, int stride, int count, int first, int last)
{
	for (int i = 0; i < count; i++) {
		assert_in_range(tokens[i * stride], first, last);
		for (int j = 0; j < i; j++)
			assert_int_not_equal(tokens[i * stride], tokens[j * stride]);
	}
}

static int place_of_query(const struct row *row, int32_t key, int32_t value)
{
	for (int t = 2 * K; t < T; t++)
		if (row->tokens[t] == key && row->targets[t] == value)
			return t;
	return -1;
}

static void test_every_pair_is_asked_once(void **state)
{
	struct fixture f;

	(void)state;
	fixture_open(&f, "mqar", T, SYMBOLS, 1);
	for (uint64_t i = 0; i < 200; i++) {
		int targets = 0;

		source_train(&f.source, i, 3, &f.row);
		expect_different(f.row.tokens, 2, K, 1, 4095);
		expect_different(f.row.tokens + 1, 2, K, 4096, 8191);
		for (int j = 0; j < K; j++)
			assert_int_equal(place_of_query(&f.row, f.row.tokens[2 * j],
							f.row.tokens[2 * j + 1]) %
						 2,
					 0);
		for (int t = 0; t < T; t++)
			if (f.row.targets[t] >= 0) {
				expect_near(f.row.floor[t], 0.0, 0.0);
				targets++;
			}
		assert_int_equal(targets, K);
	}
	expect_near(f.source.chance, log(4096.0), 1e-12);
	assert_true(f.source.accuracy);
	fixture_close(&f);
}

/* With one pair, gap i - 1 has p_i ~ i^(a-1). */
static void test_gaps_follow_the_power_law(void **state)
{
	struct fixture f;
	int counts[31] = { 0 };
	double sum = 0.0;

	(void)state;
	fixture_open(&f, "mqar", 64,
		     "CONFIG_MQAR_VOCAB=64\nCONFIG_MQAR_PAIRS=1\nCONFIG_MQAR_POWER=\"0.01\"\n"
		     "CONFIG_MQAR_RANDOM_FILLER=n\n",
		     1);
	for (uint64_t i = 0; i < 20000; i++) {
		int t = 2;

		source_train(&f.source, i, 0, &f.row);
		while (f.row.targets[t] < 0)
			assert_int_equal(f.row.tokens[t++], 0);
		counts[(t - 2) / 2]++;
	}
	for (int i = 1; i <= 31; i++)
		sum += pow(i, -0.99);
	for (int i = 1; i <= 31; i++)
		fixture_expect_share(counts[i - 1], 20000, pow(i, -0.99) / sum);
	fixture_close(&f);
}

static void test_filler_is_uniform(void **state)
{
	struct fixture f;
	double fillers = 0, upper = 0;

	(void)state;
	fixture_open(&f, "mqar", T, SYMBOLS, 1);
	for (uint64_t i = 0; i < 200; i++) {
		source_valid(&f.source, i, &f.row);
		for (int t = 2 * K; t < T; t++)
			if (f.row.targets[t] < 0) {
				fillers++;
				upper += f.row.tokens[t] >= 4096;
			}
	}
	fixture_expect_share(upper, fillers, 0.5);
	fixture_close(&f);
}

static void test_refusals(void **state)
{
	(void)state;
	fixture_refuses("mqar", 31, SYMBOLS, "MODEL_BLOCK >= 32");
	fixture_refuses("mqar", 128,
			"CONFIG_MQAR_VOCAB=16\nCONFIG_MQAR_PAIRS=8\nCONFIG_MQAR_POWER=\"0.01\"\n"
			"CONFIG_MQAR_RANDOM_FILLER=y\n",
			"8 keys");
	fixture_refuses("mqar", 128,
			"CONFIG_MQAR_VOCAB=64\nCONFIG_MQAR_PAIRS=8\nCONFIG_MQAR_POWER=\"0\"\n"
			"CONFIG_MQAR_RANDOM_FILLER=y\n",
			"MQAR_POWER=0");
	fixture_refuses("mqar", 128,
			"CONFIG_MQAR_VOCAB=64\nCONFIG_MQAR_PAIRS=8\nCONFIG_MQAR_POWER=\"0.01\"\n",
			"MQAR_RANDOM_FILLER");
}

static void test_rows_are_known(void **state)
{
	(void)state;
	fixture_expect_hash("mqar", T, SYMBOLS,
			    "03f7b86720a630d83417ff0ddf464e6c785267729737174902566816a5a7d1a9");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_pair_is_asked_once),
		cmocka_unit_test(test_gaps_follow_the_power_law),
		cmocka_unit_test(test_filler_is_uniform),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_rows_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
