/* Tests of the recall and noisy tasks, which share data/tasks/pairs. */
#include "data/tasks/fixture.h"

#define RECALL "CONFIG_RECALL_VOCAB=16\n"
#define NOISY "CONFIG_NOISY_VOCAB=32\nCONFIG_NOISY_TOKENS=16\nCONFIG_NOISY_PERCENT=20\n"
#define T 128
#define HALF 8

struct counts {
	double places, noise, keys[HALF], values[HALF], scored;
};

/* Reads the row pair by pair and says what each target and floor must be. */
static void expect_row(const struct fixture *f, bool training, double q, struct counts *c)
{
	const struct row *row = &f->row;
	int32_t map[HALF];
	float key_cost = (float)-log((1.0 - q) / HALF), noise_cost = (float)-log(q / 16.0);
	int32_t key = -1;

	memset(map, -1, sizeof(map));
	for (int t = 0; t <= T; t++) {
		/* The token after the last place is a target only; in validation it may be unknown.
		 */
		int32_t token = t < T ? row->tokens[t] : row->targets[t - 1], expected = token;
		float cost = 0.0f;

		if (token < 0)
			return;
		if (key < 0) {
			c->places++;
			c->noise += token >= 2 * HALF;
			cost = token >= 2 * HALF ? noise_cost : key_cost;
			expected = training ? token : -1;
			if (token < 2 * HALF) {
				assert_in_range(token, 0, HALF - 1);
				c->keys[key = token]++;
			}
		} else {
			assert_in_range(token, HALF, 2 * HALF - 1);
			if (map[key] < 0) {
				c->values[token - HALF]++;
				map[key] = token;
				cost = (float)log(HALF);
				expected = training ? token : -1;
			} else {
				c->scored++;
			}
			assert_int_equal(token, map[key]);
			key = -1;
		}
		if (t == 0)
			continue;
		assert_int_equal(row->targets[t - 1], expected);
		if (expected >= 0)
			expect_near(row->floor[t - 1], cost, 1e-6);
		else
			assert_true(isnan(row->floor[t - 1]));
	}
}

static void expect_task(const char *task, const char *symbols, double q)
{
	struct counts c = { 0 };
	struct fixture f;
	double keys = 0, values = 0;

	fixture_open(&f, task, T, symbols, 1);
	for (uint64_t i = 0; i < 300; i++) {
		source_train(&f.source, i, 1, &f.row);
		expect_row(&f, true, q, &c);
		source_valid(&f.source, i, &f.row);
		expect_row(&f, false, q, &c);
	}
	if (q > 0)
		fixture_expect_share(c.noise, c.places, q);
	else
		expect_near(c.noise, 0.0, 0.0);
	for (int i = 0; i < HALF; i++) {
		keys += c.keys[i];
		values += c.values[i];
	}
	for (int i = 0; i < HALF; i++) {
		fixture_expect_share(c.keys[i], keys, 1.0 / HALF);
		fixture_expect_share(c.values[i], values, 1.0 / HALF);
	}
	assert_true(c.scored > 300 * 20);
	expect_near(f.source.chance, log(HALF), 1e-12);
	expect_near(f.source.floor, 0.0, 0.0);
	assert_true(f.source.accuracy);
	fixture_close(&f);
}

static void test_recall(void **state)
{
	(void)state;
	expect_task("recall", RECALL, 0.0);
}

static void test_noisy(void **state)
{
	(void)state;
	expect_task("noisy", NOISY, 0.2);
}

static void test_refusals(void **state)
{
	(void)state;
	fixture_refuses("recall", T, "CONFIG_RECALL_VOCAB=17\n", "no equal parts");
	fixture_refuses("noisy", T,
			"CONFIG_NOISY_VOCAB=16\nCONFIG_NOISY_TOKENS=16\nCONFIG_NOISY_PERCENT=20\n",
			"no equal parts");
	fixture_refuses("noisy", T,
			"CONFIG_NOISY_VOCAB=32\nCONFIG_NOISY_TOKENS=16\nCONFIG_NOISY_PERCENT=100\n",
			"NOISY_PERCENT=100: must be 0 to 90");
}

static void test_rows_are_known(void **state)
{
	(void)state;
	fixture_expect_hash("recall", T, RECALL,
			    "7abf6e56e4ced6de8864153d78a8e35e2d6bbc4868881a56bd4eabeec2eb1194");
	fixture_expect_hash("noisy", T, NOISY,
			    "6114a05416d3d313f55902a721f6c3c111998430c4fdbd9b297ad512aeeb92cc");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_recall),
		cmocka_unit_test(test_noisy),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_rows_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
