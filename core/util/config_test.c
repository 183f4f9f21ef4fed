/* Tests of core/util/config: the built-in table (of the defaults), parsing, strict lookups. */
#include <stdlib.h>
#include <string.h>

#include "core/util/config.h"
#include "core/util/test.h"

static struct config *builtin(void)
{
	struct config *c;
	struct error err;

	assert_int_equal(config_builtin(&c, &err), OK);
	return c;
}

static struct config *parsed(const char *text)
{
	struct config *c;
	struct error err;

	if (config_parse(&c, text, &err))
		fail_msg("%s", err.text);
	return c;
}

static void assert_fine(const struct config *c)
{
	struct error err;

	if (config_check(c, &err))
		fail_msg("%s", err.text);
}

static void assert_failed(const struct config *c, const char *reason)
{
	struct error err;

	assert_int_equal(config_check(c, &err), FAIL);
	assert_string_equal(err.text, reason);
}

static void test_builtin_has_every_type(void **state)
{
	struct config *c = builtin();

	(void)state;
	assert_true(config_int(c, "MODEL_LAYERS") > 0);
	assert_true(config_bool(c, "MODEL_BIAS"));
	assert_false(config_bool(c, "RA_MLA_MLP_ATTN_GATE"));
	assert_true(config_real(c, "LEARNING_RATE") > 0);
	assert_string_equal(config_text(c, "ATTENTION"), "dot");
	assert_fine(c);
	config_free(c);
}

static void test_inactive_bool_is_off(void **state)
{
	struct config *c = builtin();

	(void)state;
	assert_false(config_bool(c, "MQAR_RANDOM_FILLER"));
	assert_fine(c);
	config_free(c);
}

static void test_inactive_value_is_an_error(void **state)
{
	struct config *c = builtin();

	(void)state;
	assert_int_equal(config_int(c, "COPY_VOCAB"), 0);
	assert_failed(c, "CONFIG_COPY_VOCAB is inactive: something it depends on is off");
	config_free(c);
}

static void test_set_activates_and_replaces(void **state)
{
	struct config *c = builtin();
	struct error err;

	(void)state;
	assert_int_equal(config_set(c, "COPY_VOCAB", "64", &err), OK);
	assert_int_equal(config_set(c, "MODEL_LAYERS", "7", &err), OK);
	assert_int_equal(config_set(c, "ATTENTION", "mla", &err), OK);
	assert_int_equal(config_int(c, "COPY_VOCAB"), 64);
	assert_int_equal(config_int(c, "MODEL_LAYERS"), 7);
	assert_string_equal(config_text(c, "ATTENTION"), "mla");
	assert_fine(c);
	config_free(c);
}

static void test_set_adds(void **state)
{
	struct config *c = parsed("");
	char name[] = "N", value[] = "12";
	struct error err;

	(void)state;
	assert_int_equal(config_set(c, name, value, &err), OK);
	memset(name, 'x', 1);
	memset(value, 'x', 2);
	assert_int_equal(config_int(c, "N"), 12);
	assert_int_equal(config_set(c, "B", "y", &err), OK);
	assert_true(config_bool(c, "B"));
	assert_int_equal(config_set(c, "S", "a b", &err), OK);
	assert_string_equal(config_text(c, "S"), "a b");
	assert_fine(c);
	config_free(c);
}

static void test_set_keeps_the_type(void **state)
{
	struct config *c = parsed("CONFIG_N=3\nCONFIG_B=y\n");
	struct error err;

	(void)state;
	assert_int_equal(config_set(c, "N", "3.5", &err), FAIL);
	assert_string_equal(err.text, "CONFIG_N takes an integer, not '3.5'");
	assert_int_equal(config_set(c, "B", "1", &err), FAIL);
	assert_string_equal(err.text, "CONFIG_B takes y or n, not '1'");
	assert_int_equal(config_int(c, "N"), 3);
	config_free(c);
}

static void test_parse_reads_every_form(void **state)
{
	struct config *c = parsed("# a comment\n"
				  "\n"
				  "CONFIG_B=y\n"
				  "# CONFIG_OFF is not set\n"
				  "CONFIG_N=-42\n"
				  "CONFIG_REAL=0.5\n"
				  "CONFIG_S=\"a \\\"b\\\" \\\\c # d\"\n"
				  "CONFIG_EMPTY=\"\"\n"
				  "CONFIG_DIGITS=\"12\"");

	(void)state;
	assert_true(config_bool(c, "B"));
	assert_false(config_bool(c, "OFF"));
	assert_int_equal(config_int(c, "N"), -42);
	assert_true(config_real(c, "REAL") == 0.5);
	assert_true(config_real(c, "N") == -42);
	assert_true(config_real(c, "DIGITS") == 12);
	assert_string_equal(config_text(c, "S"), "a \"b\" \\c # d");
	assert_string_equal(config_text(c, "EMPTY"), "");
	assert_string_equal(config_text(c, "DIGITS"), "12");
	assert_fine(c);
	config_free(c);
}

static void test_parse_refuses(void **state)
{
	static const struct {
		const char *text, *reason;
	} cases[] = {
		{ "X=1", "line 1: expected CONFIG_NAME=value or a comment" },
		{ "\nCONFIG_X", "line 2: expected CONFIG_NAME=value" },
		{ "CONFIG_X=", "line 1: expected CONFIG_NAME=value" },
		{ "CONFIG_=1", "line 1: expected CONFIG_NAME=value" },
		{ "CONFIG_x=1", "line 1: expected CONFIG_NAME=value" },
		{ "CONFIG_X =1", "line 1: expected CONFIG_NAME=value" },
		{ "CONFIG_X=word", "line 1: CONFIG_X: text must stand between double quotes" },
		{ "CONFIG_X=1 2", "line 1: CONFIG_X: text must stand between double quotes" },
		{ "CONFIG_X=\"a", "line 1: CONFIG_X: text must stand between double quotes" },
		{ "CONFIG_X=\"a\\", "line 1: CONFIG_X: text must stand between double quotes" },
		{ "CONFIG_X=\"a\" b", "line 1: CONFIG_X: text must stand between double quotes" },
		{ "CONFIG_X=1\nCONFIG_X=1", "line 2: CONFIG_X is assigned twice" },
		{ "CONFIG_X=y\n# CONFIG_X is not set", "line 2: CONFIG_X is assigned twice" },
	};
	struct config *c;
	struct error err;

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(config_parse(&c, cases[i].text, &err), FAIL);
		assert_string_equal(err.text, cases[i].reason);
	}
}

static void test_first_failure_sticks(void **state)
{
	struct config *c = parsed("CONFIG_N=3\n");

	(void)state;
	assert_int_equal(config_int(c, "MISSING"), 0);
	assert_false(config_bool(c, "N"));
	assert_int_equal(config_int(c, "N"), 3);
	assert_failed(c, "there is no symbol CONFIG_MISSING");
	config_free(c);
}

static void test_lookups_are_typed(void **state)
{
	static const char text[] = "CONFIG_B=y\nCONFIG_N=3\nCONFIG_S=\"x\"\n"
				   "CONFIG_BIG=9223372036854775808\n";
	struct config *c;

	(void)state;
	c = parsed(text);
	config_bool(c, "N");
	assert_failed(c, "CONFIG_N is an integer, but y or n is requested");
	config_free(c);

	c = parsed(text);
	config_int(c, "S");
	assert_failed(c, "CONFIG_S is text, but an integer is requested");
	config_free(c);

	c = parsed(text);
	assert_string_equal(config_text(c, "B"), "");
	assert_failed(c, "CONFIG_B is y or n, but text is requested");
	config_free(c);

	c = parsed(text);
	assert_true(config_real(c, "S") == 0);
	assert_failed(c, "CONFIG_S: 'x' is not a decimal number");
	config_free(c);

	c = parsed(text);
	config_int(c, "BIG");
	assert_failed(c, "CONFIG_BIG is text, but an integer is requested");
	config_free(c);
}

static void test_choice(void **state)
{
	static const char *const values[] = { "layer", "rms", NULL };
	struct config *c = parsed("CONFIG_A=\"rms\"\nCONFIG_B=\"batch\"\n");

	(void)state;
	assert_int_equal(config_choice(c, "A", values), 1);
	assert_fine(c);
	assert_int_equal(config_choice(c, "B", values), 0);
	assert_failed(c, "CONFIG_B: 'batch' is not known to this program");
	config_free(c);
}

static void test_unread(void **state)
{
	struct config *c = parsed("CONFIG_A=1\nCONFIG_B=y\nCONFIG_C=\"\"\n");
	char *text = NULL;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	(void)state;
	config_bool(c, "B");
	assert_int_equal(config_unread(c, file), 2);
	fclose(file);
	assert_string_equal(text, "A\nC\n");
	free(text);
	config_free(c);
}

/* A run asks this at its start: the error names the symbol of an object that is not linked. */
static void test_unread_is_refused(void **state)
{
	struct config *c = parsed("CONFIG_A=1\nCONFIG_B=y\n# CONFIG_OFF is not set\n");
	struct error err;

	(void)state;
	config_int(c, "A");
	assert_int_equal(config_check_read(c, &err), FAIL);
	assert_non_null(
		strstr(err.text, "CONFIG_B=y is set, but no code of this program reads it"));
	config_bool(c, "B");
	assert_int_equal(config_check_read(c, &err), OK);
	config_free(c);
}

/* An inactive symbol cannot have any effect, so nobody needs to ask for it. */
static void test_inactive_is_not_unread(void **state)
{
	struct config *c = builtin();
	char *text = NULL;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	(void)state;
	assert_true(config_unread(c, file) > 0);
	fclose(file);
	assert_non_null(strstr(text, "MODEL_LAYERS\n"));
	assert_null(strstr(text, "COPY_VOCAB\n"));
	free(text);
	config_free(c);
}

static void test_parse_real(void **state)
{
	static const char *const wrong[] = { "",    " 1",   "1 ",  "1x", "x",	  "0x10",
					     "inf", "nan",  "1,5", "1e", "1e999", "1e-999",
					     "--1", "1.2.", ".",   "e5", "1f",	  "1_0" };
	static const struct {
		const char *text;
		double value;
	} right[] = { { "0", 0 },   { "1", 1 },	      { "-1.5", -1.5 },
		      { "+2", 2 },  { "6e-4", 6e-4 }, { "1E+2", 100 },
		      { ".5", .5 }, { "5.", 5 },      { "0.07", .07 } };
	struct error err;
	double value;

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(parse_real(wrong[i], &value, &err), FAIL);
	for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
		assert_int_equal(parse_real(right[i].text, &value, &err), OK);
		assert_true(value == right[i].value);
	}
}

static void count_read(void *context, const char *name, const char *value)
{
	assert_string_equal(name, "A");
	assert_string_equal(value, "3");
	(*(int *)context)++;
}

static void test_a_copy_remembers_its_own_reads(void **state)
{
	struct config *c = parsed("CONFIG_A=3\nCONFIG_B=\"x\"\n"), *copy;
	struct error err;
	int reads = 0;

	(void)state;
	config_text(c, "B");
	assert_int_equal(config_copy(&copy, c, &err), OK);
	assert_int_equal(config_int(copy, "A"), 3);
	config_visit_read(copy, count_read, &reads);
	assert_int_equal(reads, 1);
	assert_int_equal(config_set(copy, "A", "4", &err), OK);
	assert_string_equal(config_raw(c, "A"), "3");
	config_free(copy);
	config_free(c);
}

static void test_a_variation_keeps_what_was_read(void **state)
{
	struct config *c = parsed("CONFIG_A=3\nCONFIG_B=\"x\"\nCONFIG_C=n\n"), *varied;
	struct error err;
	int sealed = 0;

	(void)state;
	config_int(c, "A");
	config_seal(c);
	config_text(c, "B");
	assert_int_equal(config_vary(&varied, c, "B", "y", &err), OK);
	assert_string_equal(config_raw(varied, "B"), "y");
	assert_string_equal(config_raw(c, "B"), "x");
	assert_int_equal(config_unread(varied, stderr), 0);
	config_visit_sealed(varied, count_read, &sealed);
	assert_int_equal(sealed, 1);
	config_free(varied);
	assert_int_equal(config_vary(&varied, c, "A", "x", &err), FAIL);
	assert_int_equal(config_vary(&varied, c, "D", "1", &err), FAIL);
	assert_string_equal(err.text, "CONFIG_D has no value to replace");
	config_free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_builtin_has_every_type),
		cmocka_unit_test(test_a_copy_remembers_its_own_reads),
		cmocka_unit_test(test_a_variation_keeps_what_was_read),
		cmocka_unit_test(test_inactive_bool_is_off),
		cmocka_unit_test(test_inactive_value_is_an_error),
		cmocka_unit_test(test_set_activates_and_replaces),
		cmocka_unit_test(test_set_adds),
		cmocka_unit_test(test_set_keeps_the_type),
		cmocka_unit_test(test_parse_reads_every_form),
		cmocka_unit_test(test_parse_refuses),
		cmocka_unit_test(test_first_failure_sticks),
		cmocka_unit_test(test_lookups_are_typed),
		cmocka_unit_test(test_choice),
		cmocka_unit_test(test_unread),
		cmocka_unit_test(test_unread_is_refused),
		cmocka_unit_test(test_inactive_is_not_unread),
		cmocka_unit_test(test_parse_real),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
