/* Tests of sampling: greedy, temperature, top-k, and the frequencies of what is drawn. */
#include <math.h>

#include "core/util/rng.h"
#include "core/util/test.h"
#include "tools/kablate/generate.h"

static const double logits[] = { 1.0, 3.0, 2.0, 3.0, -50.0 };
#define VOCAB 5

static void test_zero_temperature_takes_the_first_largest(void **state)
{
	(void)state;
	for (int i = 0; i < 10; i++)
		assert_int_equal(sample_token(logits, VOCAB, 0, 0, i / 10.0), 1);
}

static void test_top_1_is_among_the_largest(void **state)
{
	(void)state;
	for (int i = 0; i < 10; i++) {
		int64_t token = sample_token(logits, VOCAB, 1, 1, i / 10.0);

		assert_true(token == 1 || token == 3);
	}
}

static void test_limits_of_the_draw(void **state)
{
	(void)state;
	assert_int_equal(sample_token(logits, VOCAB, 1, 0, 0), 0);
	assert_in_range(sample_token(logits, VOCAB, 1, 0, 1 - 0x1p-53), 3, 4);
	assert_in_range(sample_token(logits, VOCAB, 1, 3, 1 - 0x1p-53), 1, 3);
}

/* Shares of 100,000 draws against the softmax; five standard deviations are 0.008. */
static void test_frequencies(void **state)
{
	const double temperature = 0.7;
	double count[VOCAB] = { 0 }, sum = 0;
	const int draws = 100000;

	(void)state;
	for (int i = 0; i < draws; i++)
		count[sample_token(logits, VOCAB, temperature, 0,
				   rng_uniform(rng_key(1, "test"), (uint64_t)i))]++;
	for (int i = 0; i < VOCAB; i++)
		sum += exp(logits[i] / temperature);
	for (int i = 0; i < VOCAB; i++)
		assert_true(fabs(count[i] / draws - exp(logits[i] / temperature) / sum) < 0.008);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_zero_temperature_takes_the_first_largest),
		cmocka_unit_test(test_top_1_is_among_the_largest),
		cmocka_unit_test(test_limits_of_the_draw),
		cmocka_unit_test(test_frequencies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
