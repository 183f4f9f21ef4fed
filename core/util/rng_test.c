/*
 * Tests of core/util/rng: known answers, and moments of the streams.
 *
 * A stream is fixed by its key, so a statistical check here either always
 * passes or always fails.  Bounds are five standard deviations of the measured
 * quantity under the claimed distribution: a sound generator misses one with
 * probability 6e-7.
 */
#include <math.h>
#include <stdlib.h>

#include "core/util/rng.h"
#include "core/util/test.h"

enum { DRAWS = 1 << 20 };

static const double SIGMAS = 5.0;

static void assert_near(const char *what, double value, double expected, double sigma)
{
	if (!(fabs(value - expected) <= SIGMAS * sigma))
		fail_msg("%s is %.8g: expected %.8g with sigma %.3g", what, value, expected, sigma);
}

/* Chi-square of equally likely classes has mean and half its variance equal to classes - 1. */
static void assert_equally_likely(const uint64_t *count, int classes)
{
	double expected, chi_square = 0.0, total = 0.0;

	for (int i = 0; i < classes; i++)
		total += (double)count[i];
	expected = total / classes;
	for (int i = 0; i < classes; i++)
		chi_square +=
			((double)count[i] - expected) * ((double)count[i] - expected) / expected;
	assert_near("chi-square", chi_square, classes - 1, sqrt(2.0 * (classes - 1)));
}

/* kat_vectors of the Random123 distribution, "philox4x32 10": zeros, ones, digits of pi. */
static void test_philox_known_answers(void **state)
{
	static const struct {
		uint32_t counter[4];
		struct rng_key key;
		uint32_t out[4];
	} cases[] = {
		{ { 0, 0, 0, 0 },
		  { { 0, 0 } },
		  { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
		{ { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
		  { { 0xffffffff, 0xffffffff } },
		  { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
		{ { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
		  { { 0xa4093822, 0x299f31d0 } },
		  { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
	};
	uint32_t out[4];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		rng_philox(cases[i].counter, cases[i].key, out);
		assert_memory_equal(out, cases[i].out, sizeof(out));
	}
}

static void test_block_number_is_the_low_half_of_the_counter(void **state)
{
	const struct rng_key key = { { 3, 4 } };
	const uint32_t counter[4] = { 0x89abcdef, 0x01234567, 0, 0 };
	uint32_t expected[4], out[4];

	(void)state;
	rng_philox(counter, key, expected);
	rng_block(key, 0x0123456789abcdef, out);
	assert_memory_equal(out, expected, sizeof(out));
}

/* Starts where the counter carries into its second word. */
static void test_many_blocks_are_single_blocks(void **state)
{
	enum { BLOCKS = 75 };
	const struct rng_key key = rng_key(3, "test/blocks");
	const uint64_t first = (7ull << 32) - 40;
	uint32_t out[4 * BLOCKS + 1], expected[4];

	(void)state;
	for (int64_t n = 0; n <= BLOCKS; n += 5) {
		out[4 * n] = 0xdeadbeef;
		rng_blocks(key, first, n, out);
		assert_int_equal(out[4 * n], 0xdeadbeef);
		for (int64_t i = 0; i < n; i++) {
			rng_block(key, first + (uint64_t)i, expected);
			assert_memory_equal(out + 4 * i, expected, sizeof(expected));
		}
	}
}

/* Streams never change: old runs can be repeated.  Values computed in Python. */
static void test_streams_never_change(void **state)
{
	const struct rng_key key = rng_key(1337, "init/wte.weight");

	(void)state;
	assert_int_equal(key.word[0], 0x108e2e70);
	assert_int_equal(key.word[1], 0xb0c207a0);
	assert_true(rng_u64(key, 0) == 0xab9fc1f8eaed1f8b);
	assert_true(rng_u64(key, 1) == 0xc33ee7013a19e493);
	assert_true(rng_u64(key, 1ull << 40) == 0x64b3316a5ead878b);
	assert_true(rng_u64(rng_subkey(key, (1ull << 33) + 5), 7) == 0x37fac17a5e02ec31);
	/* The mathematical functions of another C library may differ in the last bits. */
	assert_true(fabs(rng_normal(key, 0) - 0.7334769806563112) < 1e-15);
	assert_true(fabs(rng_normal(key, 1) + 0.5116187146091675) < 1e-15);
	assert_true(fabs(rng_normal(key, 2) + 0.31027628757990844) < 1e-15);
}

static void test_uniform_is_uniform(void **state)
{
	const struct rng_key key = rng_key(1, "test/uniform");
	uint64_t count[256] = { 0 };
	double sum = 0.0, squares = 0.0;

	(void)state;
	for (uint64_t i = 0; i < DRAWS; i++) {
		double u = rng_uniform(key, i);

		assert_true(u >= 0.0 && u < 1.0);
		count[(int)(u * 256.0)]++;
		sum += u;
		squares += (u - 0.5) * (u - 0.5);
	}
	assert_near("mean", sum / DRAWS, 0.5, sqrt(1.0 / 12.0 / DRAWS));
	/* E(u - 1/2)^4 = 1/80, so the square has variance 1/80 - 1/144 = 1/180. */
	assert_near("variance", squares / DRAWS, 1.0 / 12.0, sqrt(1.0 / 180.0 / DRAWS));
	assert_equally_likely(count, 256);
}

static void test_normal_has_normal_moments(void **state)
{
	const struct rng_key key = rng_key(1, "test/normal");
	double moment[5] = { 0 }, beyond_3 = 0.0;
	const double tail = erfc(3.0 / sqrt(2.0));

	(void)state;
	for (uint64_t i = 0; i < DRAWS; i++) {
		double x = rng_normal(key, i);

		assert_true(isfinite(x));
		for (int k = 1; k <= 4; k++)
			moment[k] += pow(x, k) / DRAWS;
		beyond_3 += fabs(x) > 3.0 ? 1.0 / DRAWS : 0.0;
	}
	/* The k-th power has variance E x^2k - (E x^k)^2, with E x^2,4,6,8 = 1, 3, 15, 105. */
	assert_near("mean", moment[1], 0.0, sqrt(1.0 / DRAWS));
	assert_near("variance", moment[2], 1.0, sqrt(2.0 / DRAWS));
	assert_near("third moment", moment[3], 0.0, sqrt(15.0 / DRAWS));
	assert_near("fourth moment", moment[4], 3.0, sqrt(96.0 / DRAWS));
	assert_near("share beyond 3", beyond_3, tail, sqrt(tail * (1.0 - tail) / DRAWS));
}

/* The two normals of a block share a radius and an angle, and are independent all the same. */
static void test_normals_of_a_pair_are_uncorrelated(void **state)
{
	const struct rng_key key = rng_key(1, "test/pair");
	double product = 0.0, square_product = 0.0, pair[2];

	(void)state;
	for (uint64_t block = 0; block < DRAWS; block++) {
		rng_normal_pair(key, block, pair);
		assert_true(pair[0] == rng_normal(key, 2 * block));
		assert_true(pair[1] == rng_normal(key, 2 * block + 1));
		product += pair[0] * pair[1] / DRAWS;
		square_product += (pair[0] * pair[0] - 1.0) * (pair[1] * pair[1] - 1.0) / DRAWS;
	}
	assert_near("covariance", product, 0.0, sqrt(1.0 / DRAWS));
	/* Each factor x^2 - 1 has variance 2. */
	assert_near("covariance of squares", square_product, 0.0, sqrt(4.0 / DRAWS));
}

static void test_below_is_equally_likely_for_small_n(void **state)
{
	const struct rng_key key = rng_key(1, "test/below");
	uint64_t count[7] = { 0 };

	(void)state;
	for (uint64_t i = 0; i < DRAWS; i++) {
		uint64_t x = rng_below(key, i, 7);

		assert_true(x < 7);
		assert_true(rng_below(key, i, 1) == 0);
		count[x]++;
	}
	assert_equally_likely(count, 7);
}

/*
 * For n = 3/4 of 2^64 one draw in four must be rejected.  Without that, every third
 * value would be twice as likely as the others.
 */
static void test_below_rejects_what_would_be_biased(void **state)
{
	const struct rng_key key = rng_key(1, "test/reject");
	const uint64_t n = 3ull << 62;
	uint64_t count[3] = { 0 };

	(void)state;
	for (uint64_t i = 0; i < DRAWS; i++) {
		uint64_t x = rng_below(key, i, n);

		assert_true(x < n);
		count[x % 3]++;
	}
	assert_equally_likely(count, 3);
}

static void test_reader_walks_along_the_stream(void **state)
{
	struct rng_reader reader = { .key = rng_key(5, "test/reader") };
	const struct rng_key key = reader.key;

	(void)state;
	for (uint64_t i = 0; i < 100; i += 2) {
		assert_true(rng_next_below(&reader, 1000) == rng_below(key, i, 1000));
		assert_true(rng_next_uniform(&reader) == rng_uniform(key, i + 1));
	}
}

static int compare_keys(const void *a, const void *b)
{
	const struct rng_key *x = a, *y = b;

	if (x->word[0] != y->word[0])
		return x->word[0] < y->word[0] ? -1 : 1;
	return (x->word[1] > y->word[1]) - (x->word[1] < y->word[1]);
}

/* 65536 keys of 64 bits: two equal by chance with probability 1e-10. */
static void test_names_seeds_and_subkeys_give_distinct_keys(void **state)
{
	enum { NAMES = 32, SEEDS = 32, SUBKEYS = 64, KEYS = NAMES * SEEDS * SUBKEYS };
	struct rng_key *keys = calloc(KEYS, sizeof(*keys));
	char name[] = "init/h.00.attn";
	size_t n = 0;

	(void)state;
	assert_non_null(keys);
	for (int i = 0; i < NAMES; i++) {
		name[7] = (char)('0' + i / 10);
		name[8] = (char)('0' + i % 10);
		for (uint64_t seed = 0; seed < SEEDS; seed++)
			for (uint64_t sub = 0; sub < SUBKEYS; sub++)
				keys[n++] = rng_subkey(rng_key(seed, name), sub);
	}
	qsort(keys, KEYS, sizeof(*keys), compare_keys);
	for (size_t i = 1; i < KEYS; i++)
		assert_int_not_equal(compare_keys(&keys[i - 1], &keys[i]), 0);
	free(keys);
}

static void assert_uncorrelated(struct rng_key a, struct rng_key b, uint64_t shift)
{
	double sum = 0.0;

	for (uint64_t i = 0; i < DRAWS; i++)
		sum += (rng_uniform(a, i) - 0.5) * (rng_uniform(b, i + shift) - 0.5);
	/* A product of two independent factors of variance 1/12 has variance 1/144. */
	assert_near("covariance", sum / DRAWS, 0.0, sqrt(1.0 / 144.0 / DRAWS));
}

static void test_neighbouring_streams_are_uncorrelated(void **state)
{
	const struct rng_key key = rng_key(1, "init/h.0.attn.c_attn.weight");

	(void)state;
	assert_uncorrelated(key, rng_key(1, "init/h.1.attn.c_attn.weight"), 0);
	assert_uncorrelated(key, rng_key(2, "init/h.0.attn.c_attn.weight"), 0);
	assert_uncorrelated(key, rng_subkey(key, 0), 0);
	assert_uncorrelated(rng_subkey(key, 0), rng_subkey(key, 1), 0);
	assert_uncorrelated(key, key, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_philox_known_answers),
		cmocka_unit_test(test_block_number_is_the_low_half_of_the_counter),
		cmocka_unit_test(test_many_blocks_are_single_blocks),
		cmocka_unit_test(test_streams_never_change),
		cmocka_unit_test(test_uniform_is_uniform),
		cmocka_unit_test(test_normal_has_normal_moments),
		cmocka_unit_test(test_normals_of_a_pair_are_uncorrelated),
		cmocka_unit_test(test_below_is_equally_likely_for_small_n),
		cmocka_unit_test(test_below_rejects_what_would_be_biased),
		cmocka_unit_test(test_reader_walks_along_the_stream),
		cmocka_unit_test(test_names_seeds_and_subkeys_give_distinct_keys),
		cmocka_unit_test(test_neighbouring_streams_are_uncorrelated),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
