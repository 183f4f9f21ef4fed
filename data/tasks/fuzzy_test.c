/* Tests of the fuzzy task. */
#include "data/tasks/fixture.h"

#define SYMBOLS "CONFIG_FUZZY_VOCAB=16\nCONFIG_FUZZY_MOTIF=3\n"
#define T 128
#define HALF 8

struct part {
	int start, size;
};

/* The run of keys (or of values) that starts at a place. */
static struct part run(const struct row *row, int start)
{
	struct part p = { .start = start };

	while (start + p.size < T &&
	       (row->tokens[start + p.size] < HALF) == (row->tokens[start] < HALF))
		p.size++;
	return p;
}

static bool same(const struct row *row, struct part a, struct part b)
{
	return a.size == b.size && !memcmp(row->tokens + a.start, row->tokens + b.start,
					   (size_t)a.size * sizeof(row->tokens[0]));
}

static void expect_motif(const struct row *row, struct part p)
{
	assert_in_range(p.size, 1, 3);
	for (int i = 0; i < p.size; i++)
		for (int j = 0; j < i; j++)
			assert_int_not_equal(row->tokens[p.start + i], row->tokens[p.start + j]);
}

/* Checks maps and targets and counts sizes, up to a last pair that the row may cut. */
static void expect_row(const struct row *row, bool training, double key_sizes[4],
		       double value_sizes[4])
{
	struct part keys[T], values[T];
	int pairs = 0;

	for (int t = 0; t < T; pairs++) {
		struct part key = run(row, t), value = { 0 };
		bool seen = false;

		if (key.start + key.size == T)
			break;
		value = run(row, key.start + key.size);
		t = value.start + value.size;
		if (t == T)
			break;
		expect_motif(row, key);
		expect_motif(row, value);
		for (int i = 0; i < pairs && !seen; i++)
			if (same(row, keys[i], key)) {
				assert_true(same(row, values[i], value));
				seen = true;
			}
		for (int i = value.start; i < value.start + value.size; i++)
			assert_int_equal(row->targets[i - 1],
					 training || seen ? row->tokens[i] : -1);
		for (int i = key.start; i < key.start + key.size; i++)
			if (i > 0)
				assert_int_equal(row->targets[i - 1],
						 training ? row->tokens[i] : -1);
		keys[pairs] = key;
		values[pairs] = value;
		key_sizes[key.size]++;
		if (!seen)
			value_sizes[value.size]++;
	}
}

static void test_training_rows(void **state)
{
	double keys[4] = { 0 }, values[4] = { 0 };
	struct fixture f;

	(void)state;
	fixture_open(&f, "fuzzy", T, SYMBOLS, 1);
	for (uint64_t i = 0; i < 300; i++) {
		source_train(&f.source, i, 0, &f.row);
		expect_row(&f.row, true, keys, values);
	}
	for (int size = 1; size <= 3; size++)
		assert_true(keys[size] > 0.3 * (keys[1] + keys[2] + keys[3]));
	/* New values only: of many keys of one token, few are new. */
	for (int size = 1; size <= 3; size++)
		fixture_expect_share(values[size], values[1] + values[2] + values[3], 1 / 3.0);
	fixture_close(&f);
}

static void test_validation_asks_in_every_row(void **state)
{
	double keys[4] = { 0 }, values[4] = { 0 };
	struct fixture f;

	(void)state;
	fixture_open(&f, "fuzzy", T, SYMBOLS, 1);
	for (uint64_t i = 0; i < 300; i++) {
		int targets = 0;

		source_valid(&f.source, i, &f.row);
		expect_row(&f.row, false, keys, values);
		for (int t = 0; t < T; t++)
			targets += f.row.targets[t] >= 0;
		assert_true(targets > 0);
	}
	assert_true(keys[3] > 0 && keys[1] == 0 && keys[2] == 0);
	expect_near(f.source.chance, log(HALF), 1e-12);
	assert_true(f.source.accuracy);
	fixture_close(&f);
}

static void test_refusals(void **state)
{
	(void)state;
	fixture_refuses("fuzzy", 11, SYMBOLS, "MODEL_BLOCK >= 12");
	fixture_refuses("fuzzy", T, "CONFIG_FUZZY_VOCAB=15\nCONFIG_FUZZY_MOTIF=3\n", "even");
	fixture_refuses("fuzzy", T, "CONFIG_FUZZY_VOCAB=16\nCONFIG_FUZZY_MOTIF=9\n",
			"FUZZY_MOTIF=9");
}

static void test_rows_are_known(void **state)
{
	(void)state;
	fixture_expect_hash("fuzzy", T, SYMBOLS,
			    "b82e32340378d994109787452627e5e959ea926f866d0bae26a755aedace4791");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_training_rows),
		cmocka_unit_test(test_validation_asks_in_every_row),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_rows_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
