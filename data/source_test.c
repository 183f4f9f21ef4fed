/* Tests of data/source: finding tasks, refusals, and rules for the rows of every generator. */
#include "data/tasks/fixture.h"

static const struct {
	const char *task;
	int length;
	const char *symbols;
} generators[] = {
	{ "language", 128,
	  "CONFIG_LANGUAGE_VOCAB=256\nCONFIG_LANGUAGE_TAGS=8\nCONFIG_LANGUAGE_NAMES=8\n"
	  "CONFIG_LANGUAGE_VALUES=16\nCONFIG_LANGUAGE_CLUSTERS=4\nCONFIG_LANGUAGE_ZIPF=\"1.8\"\n"
	  "CONFIG_LANGUAGE_COMMON_PERCENT=20\nCONFIG_LANGUAGE_SEED=1\n"
	  "CONFIG_LANGUAGE_FACT_PERCENT=5\nCONFIG_LANGUAGE_ASK_PERCENT=20\n"
	  "CONFIG_LANGUAGE_OPEN_PERCENT=10\nCONFIG_LANGUAGE_CLOSE_PERCENT=40\n"
	  "CONFIG_LANGUAGE_COPY_PERCENT=5\nCONFIG_LANGUAGE_END_PERCENT=1\n"
	  "CONFIG_LANGUAGE_DEPTH=4\nCONFIG_LANGUAGE_SPAN=12\n" },
	{ "copy", 128, "CONFIG_COPY_VOCAB=1024\n" },
	{ "mqar", 64,
	  "CONFIG_MQAR_VOCAB=8192\nCONFIG_MQAR_PAIRS=4\nCONFIG_MQAR_POWER=\"0.01\"\n"
	  "CONFIG_MQAR_RANDOM_FILLER=y\n" },
	{ "recall", 128, "CONFIG_RECALL_VOCAB=16\n" },
	{ "noisy", 128,
	  "CONFIG_NOISY_VOCAB=32\nCONFIG_NOISY_TOKENS=16\nCONFIG_NOISY_PERCENT=20\n" },
	{ "fuzzy", 128, "CONFIG_FUZZY_VOCAB=16\nCONFIG_FUZZY_MOTIF=3\n" },
	{ "memorization", 32, "CONFIG_MEMORIZATION_VOCAB=256\n" },
	{ "compression", 32, "CONFIG_COMPRESSION_VOCAB=16\n" },
	{ "selective", 256, "CONFIG_SELECTIVE_VOCAB=16\nCONFIG_SELECTIVE_TOKENS=16\n" },
};

#define GENERATORS (sizeof(generators) / sizeof(generators[0]))

static void open_generator(struct fixture *f, size_t i, uint64_t seed)
{
	fixture_open(f, generators[i].task, generators[i].length, generators[i].symbols, seed);
}

/* The numbers in a row that must be equal when rows are. */
static void hash_row(const struct fixture *f, char hex[SHA256_HEX_SIZE])
{
	struct sha256 sha;

	sha256_init(&sha);
	fixture_add(f, &sha);
	sha256_add(&sha, f->row.component, (size_t)f->source.length);
	sha256_add(&sha, f->row.floor, (size_t)f->source.length * sizeof(float));
	sha256_hex(&sha, hex);
}

static void hash_train(struct fixture *f, uint64_t iteration, uint64_t row,
		       char hex[SHA256_HEX_SIZE])
{
	source_train(&f->source, iteration, row, &f->row);
	hash_row(f, hex);
}

static void hash_valid(struct fixture *f, uint64_t index, char hex[SHA256_HEX_SIZE])
{
	source_valid(&f->source, index, &f->row);
	hash_row(f, hex);
}

REGISTERED(tasks, task);

static bool is_tested(const char *task)
{
	for (size_t i = 0; i < GENERATORS; i++)
		if (!strcmp(task, generators[i].task))
			return true;
	fail_msg("%s is missing in the table above", task);
	return false;
}

static void test_every_generator_is_tested_here(void **state)
{
	size_t found = 0;

	(void)state;
	for (const struct task *const *t = __start_tasks; t < __stop_tasks; t++)
		if ((*t)->generate)
			found += is_tested((*t)->name);
		else
			assert_true((*t)->train && (*t)->valid);
	assert_int_equal(found, GENERATORS);
}

static void test_rows_are_pure(void **state)
{
	char first[SHA256_HEX_SIZE], other[SHA256_HEX_SIZE], again[SHA256_HEX_SIZE];

	(void)state;
	for (size_t i = 0; i < GENERATORS; i++) {
		struct fixture f;

		open_generator(&f, i, 1);
		hash_train(&f, 5, 2, first);
		hash_train(&f, 2, 5, other);
		assert_string_not_equal(first, other);
		hash_valid(&f, 5, other);
		assert_string_not_equal(first, other);
		hash_train(&f, 5, 2, again);
		assert_string_equal(first, again);
		hash_train(&f, UINT64_MAX, UINT64_MAX, other);
		assert_string_not_equal(first, other);
		fixture_close(&f);
	}
}

static void test_seeds_change_training_only(void **state)
{
	(void)state;
	for (size_t i = 0; i < GENERATORS; i++) {
		char hex[4][SHA256_HEX_SIZE];
		struct fixture one, two;

		open_generator(&one, i, 1);
		open_generator(&two, i, 2);
		hash_train(&one, 0, 0, hex[0]);
		hash_train(&two, 0, 0, hex[1]);
		hash_valid(&one, 0, hex[2]);
		hash_valid(&two, 0, hex[3]);
		assert_string_not_equal(hex[0], hex[1]);
		assert_string_equal(hex[2], hex[3]);
		assert_string_equal(one.source.hash, two.source.hash);
		fixture_close(&one);
		fixture_close(&two);
	}
}

static void expect_sane(const struct fixture *f)
{
	int components = 0, targets = 0;

	while (f->source.task->components && f->source.task->components[components])
		components++;
	for (int64_t t = 0; t < f->source.length; t++) {
		assert_in_range(f->row.tokens[t], 0, f->source.vocab - 1);
		if (f->row.targets[t] == -1)
			continue;
		assert_in_range(f->row.targets[t], 0, f->source.vocab - 1);
		assert_true(f->row.component[t] < (components ? components : 1));
		targets++;
	}
	assert_true(targets > 0);
}

/* Tokens, targets and components in range; without component and floor the same row. */
static void test_rows_are_sane(void **state)
{
	(void)state;
	for (size_t i = 0; i < GENERATORS; i++) {
		struct fixture f;
		struct row bare;

		open_generator(&f, i, 3);
		bare = (struct row){ .tokens = malloc((size_t)f.source.length * sizeof(int32_t)),
				     .targets = malloc((size_t)f.source.length * sizeof(int32_t)) };
		assert_true(bare.tokens && bare.targets);
		for (uint64_t k = 0; k < 50; k++) {
			source_valid(&f.source, k, &f.row);
			expect_sane(&f);
			source_train(&f.source, k, 7, &f.row);
			expect_sane(&f);
			source_train(&f.source, k, 7, &bare);
			assert_memory_equal(bare.tokens, f.row.tokens, (size_t)f.source.length * 4);
			assert_memory_equal(bare.targets, f.row.targets,
					    (size_t)f.source.length * 4);
		}
		assert_int_equal(f.source.valid_rows, 64);
		assert_false(isnan(f.source.chance));
		assert_false(isnan(f.source.component_chance[0]));
		free(bare.tokens);
		free(bare.targets);
		fixture_close(&f);
	}
}

static void test_identity_sees_a_small_change(void **state)
{
	struct fixture a, b;

	(void)state;
	fixture_open(&a, "noisy", 128,
		     "CONFIG_NOISY_VOCAB=32\nCONFIG_NOISY_TOKENS=16\nCONFIG_NOISY_PERCENT=20\n", 1);
	fixture_open(&b, "noisy", 128,
		     "CONFIG_NOISY_VOCAB=32\nCONFIG_NOISY_TOKENS=16\nCONFIG_NOISY_PERCENT=21\n", 1);
	assert_int_equal(strlen(a.source.hash), 64);
	assert_string_not_equal(a.source.hash, b.source.hash);
	fixture_close(&a);
	fixture_close(&b);
}

static void expect_refusal(const char *text, const char *expected)
{
	struct config *c;
	struct source s;
	struct error err;

	assert_int_equal(config_parse(&c, text, &err), OK);
	assert_int_equal(source_open(&s, c, 1, &err), FAIL);
	assert_string_equal(err.text, expected);
	config_free(c);
}

static void test_every_token_has_a_text_of_its_own(void **state)
{
	char text[SOURCE_TOKEN_TEXT];

	(void)state;
	for (size_t i = 0; i < GENERATORS; i++) {
		struct fixture f;

		open_generator(&f, i, 1);
		for (int32_t token = 0; token < f.source.vocab && token < 300; token++) {
			source_spell(&f.source, token, text);
			assert_null(strpbrk(text, " /"));
			assert_int_equal(source_read_token(&f.source, text), token);
		}
		assert_int_equal(source_read_token(&f.source, "nonsense"), -1);
		fixture_close(&f);
	}
}

static void test_refusals(void **state)
{
	(void)state;
	expect_refusal("CONFIG_TASK=\"chess\"\nCONFIG_MODEL_BLOCK=8\nCONFIG_EVAL_ROWS=1\n",
		       "task 'chess' is not part of this program: does data/Makefile name it?");
	expect_refusal("CONFIG_TASK=\"copy\"\nCONFIG_MODEL_BLOCK=1\nCONFIG_EVAL_ROWS=1\n",
		       "task copy: MODEL_BLOCK=1: a row has at least 2 tokens");
	expect_refusal("CONFIG_TASK=\"copy\"\nCONFIG_MODEL_BLOCK=8\nCONFIG_EVAL_ROWS=0\n",
		       "task copy: EVAL_ROWS=0 means all rows, but this task has no end");
	expect_refusal("CONFIG_TASK=\"copy\"\nCONFIG_MODEL_BLOCK=8\nCONFIG_EVAL_ROWS=-1\n",
		       "task copy: EVAL_ROWS=-1: must not be negative");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_generator_is_tested_here),
		cmocka_unit_test(test_rows_are_pure),
		cmocka_unit_test(test_seeds_change_training_only),
		cmocka_unit_test(test_rows_are_sane),
		cmocka_unit_test(test_identity_sees_a_small_change),
		cmocka_unit_test(test_every_token_has_a_text_of_its_own),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
