/* Tests of core/util/name: nothing is a name that make, a shell or a path reads as something else.
 */
#include <string.h>

#include "core/util/name.h"
#include "core/util/test.h"

#define SUM "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void test_names(void **state)
{
	static const char *const names[] = { "smoke", "0-mla+gate", "_x", "+", "a..b" };
	static const char *const others[] = {
		"",	".",	"..",  "../../x", "/etc", "a/b", "-rf",	 "$(id)",    "a b",
		"a\tb", "a;b",	"a'b", "a\"b",	  "a`b",  "a$b", "a#b",	 "a%b",	     "a:b",
		"a=b",	"a,b",	"a|b", "a&b",	  "a>b",  "a<b", "a*b",	 "a?b",	     "a[b",
		"a{b",	"a\\b", "a!b", "~a",	  "@a",	  "a@b", "a\nb", "a\x1b[2J", "\xc3\xa4",
	};
	struct error err;

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		assert_int_equal(name_check("step", names[i], &err), OK);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		assert_false(is_name(others[i]));
		assert_int_equal(name_check("step", others[i], &err), FAIL);
		assert_non_null(strstr(err.text, "a name has letters, digits and ._+-"));
	}
}

static void test_steps(void **state)
{
	static const char *const others[] = { "",      "@",	"@3e-3", "a@",
					      "a@b@c", "a@b/c", "a b",	 "-a@b" };
	struct error err;

	(void)state;
	assert_int_equal(step_check("step", "1-w2", &err), OK);
	assert_int_equal(step_check("step", "1-w2@3e-3", &err), OK);
	assert_int_equal(step_check("step", "1-w2@-.", &err), OK);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		assert_int_equal(step_check("step", others[i], &err), FAIL);
		assert_non_null(strstr(err.text, "a name has letters, digits and ._+-"));
	}
}

static void test_identities(void **state)
{
	struct error err;

	(void)state;
	assert_int_equal(identity_check(SUM, &err), OK);
	assert_false(is_identity(""));
	assert_false(is_identity(SUM "0"));
	assert_false(is_identity(&SUM[1]));
	assert_false(
		is_identity("A123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"));
	assert_int_equal(identity_check("$(shell id)", &err), FAIL);
	assert_string_equal(err.text, "identity '$(shell id)': expected 64 hexadecimal digits");
}

static void test_symbols(void **state)
{
	(void)state;
	assert_true(is_symbol("GPT2_N_LAYER"));
	assert_false(is_symbol(""));
	assert_false(is_symbol("A=b"));
	assert_false(is_symbol("A-B"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_steps),
		cmocka_unit_test(test_identities),
		cmocka_unit_test(test_symbols),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
