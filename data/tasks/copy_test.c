/* Tests of the copy task. */
#include "data/tasks/fixture.h"

#define SYMBOLS "CONFIG_COPY_VOCAB=1024\n"

static void test_second_half_repeats_the_first(void **state)
{
	struct fixture f;

	(void)state;
	fixture_open(&f, "copy", 128, SYMBOLS, 1);
	assert_int_equal(f.source.vocab, 1024);
	for (uint64_t i = 0; i < 100; i++) {
		source_train(&f.source, 5, i, &f.row);
		assert_memory_equal(f.row.tokens, f.row.tokens + 64, 64 * sizeof(int32_t));
		assert_memory_equal(f.row.targets, f.row.tokens + 1, 127 * sizeof(int32_t));
		assert_int_equal(f.row.targets[127], -1);
	}
	fixture_close(&f);
}

/* The published floor at T = 128, V = 1024. */
static void test_floor(void **state)
{
	struct fixture f;
	double sum = 0.0;

	(void)state;
	fixture_open(&f, "copy", 128, SYMBOLS, 1);
	expect_near(f.source.floor, 3.4384, 5e-5);
	expect_near(f.source.chance, log(1024.0), 1e-12);
	source_valid(&f.source, 0, &f.row);
	for (int t = 0; t < 127; t++)
		sum += f.row.floor[t];
	expect_near(sum / 127, f.source.floor, 1e-6);
	assert_true(isnan(f.row.floor[127]));
	fixture_close(&f);
}

static void test_tokens_are_uniform(void **state)
{
	struct fixture f;
	int counts[8] = { 0 };

	(void)state;
	fixture_open(&f, "copy", 128, "CONFIG_COPY_VOCAB=8\n", 1);
	for (uint64_t i = 0; i < 500; i++) {
		source_train(&f.source, i, 0, &f.row);
		for (int t = 0; t < 64; t++)
			counts[f.row.tokens[t]]++;
	}
	for (int i = 0; i < 8; i++)
		fixture_expect_share(counts[i], 500 * 64, 1 / 8.0);
	fixture_close(&f);
}

static void test_refusals(void **state)
{
	(void)state;
	fixture_refuses("copy", 127, SYMBOLS, "even");
	fixture_refuses("copy", 128, "CONFIG_COPY_VOCAB=1\n", "COPY_VOCAB=1: must be 2 to 65536");
	fixture_refuses("copy", 128, "", "COPY_VOCAB");
}

static void test_rows_are_known(void **state)
{
	(void)state;
	fixture_expect_hash("copy", 128, SYMBOLS,
			    "429f1d89704bfde54d4fffb6373d7daf19a5df49e9a7df6b23720eaf7bef7320");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_second_half_repeats_the_first),
		cmocka_unit_test(test_floor),
		cmocka_unit_test(test_tokens_are_uniform),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_rows_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
