/* Tests of the compression task. */
#include "data/tasks/fixture.h"

#define SYMBOLS "CONFIG_COMPRESSION_VOCAB=16\n"
#define T 32

static void test_targets_are_the_tokens_before_the_marker(void **state)
{
	double tokens[15] = { 0 };
	struct fixture f;

	(void)state;
	fixture_open(&f, "compression", T, SYMBOLS, 1);
	expect_near(f.source.chance, log(15.0), 1e-12);
	assert_true(f.source.task->reconstructs);
	for (uint64_t i = 0; i < 1000; i++) {
		source_train(&f.source, i, 0, &f.row);
		for (int t = 0; t < T - 1; t++) {
			assert_in_range(f.row.tokens[t], 0, 14);
			assert_int_equal(f.row.targets[t], f.row.tokens[t]);
			tokens[f.row.tokens[t]]++;
		}
		assert_int_equal(f.row.tokens[T - 1], 15);
		assert_int_equal(f.row.targets[T - 1], -1);
	}
	for (int i = 0; i < 15; i++)
		fixture_expect_share(tokens[i], 1000 * (T - 1), 1.0 / 15);
	fixture_close(&f);
}

static void test_refusals(void **state)
{
	(void)state;
	fixture_refuses("compression", T, "CONFIG_COMPRESSION_VOCAB=2\n", "COMPRESSION_VOCAB=2");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_targets_are_the_tokens_before_the_marker),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
