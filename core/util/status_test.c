/* Tests of core/util/status: formats, reasons, prefixes, and texts that do not fit. */
#include <errno.h>
#include <string.h>

#include "core/util/status.h"
#include "core/util/test.h"

static void fill(char *text, size_t length)
{
	memset(text, 'x', length);
	text[length] = '\0';
}

static void test_fail_formats(void **state)
{
	struct error err;

	(void)state;
	assert_int_equal(fail(&err, "%s has %d rows, not %.1f", "x.bin", 3, 4.5), FAIL);
	assert_string_equal(err.text, "x.bin has 3 rows, not 4.5");
}

/* As a file may have them: clear the screen, set the title, C1's CSI; and what is no control. */
static void test_no_escape_sequence_is_told(void **state)
{
	struct error err;

	(void)state;
	fail(&err, "%s",
	     "\x1b[2J\x1b]0;x\a \xc2\x9b"
	     "2J \r\b\x7f \xc3\xa4\xc2\xb1\t\n");
	assert_string_equal(err.text, "?[2J?]0;x? ??2J ??? \xc3\xa4\xc2\xb1\t\n");
	errno = ENOENT;
	fail_errno(&err, "%s", "\x1b[2J");
	assert_memory_equal(err.text, "?[2J: ", 6);
	fail_prefix(&err, "%s", "\x1b");
	assert_memory_equal(err.text, "?: ?[2J: ", 9);
}

static void test_fail_replaces_an_older_text(void **state)
{
	struct error err;

	(void)state;
	fail(&err, "a first and longer text");
	fail(&err, "second");
	assert_string_equal(err.text, "second");
}

static void test_fail_cuts_what_does_not_fit(void **state)
{
	char text[2 * ERROR_TEXT_SIZE];
	struct error err;

	(void)state;
	fill(text, sizeof(text) - 1);
	assert_int_equal(fail(&err, "%s", text), FAIL);
	assert_int_equal(strlen(err.text), ERROR_TEXT_SIZE - 1);
}

static void test_errno_is_named(void **state)
{
	struct error err;

	(void)state;
	errno = ENOENT;
	assert_int_equal(fail_errno(&err, "cannot open %s", "a"), FAIL);
	assert_string_equal(err.text, "cannot open a: No such file or directory");
}

/* The reason is appended as far as there is room, and nothing behind the text is touched. */
static void test_errno_after_a_long_text(void **state)
{
	struct {
		struct error err;
		char behind[64];
	} at = { .behind = "untouched" };
	char text[2 * ERROR_TEXT_SIZE];

	(void)state;
	for (size_t length = ERROR_TEXT_SIZE - 40; length <= ERROR_TEXT_SIZE + 20; length++) {
		fill(text, length);
		errno = ENOENT;
		assert_int_equal(fail_errno(&at.err, "%s", text), FAIL);
		strcat(text, ": No such file or directory");
		text[ERROR_TEXT_SIZE - 1] = '\0';
		assert_string_equal(at.err.text, text);
		assert_string_equal(at.behind, "untouched");
	}
}

static void test_prefixes_stack_up(void **state)
{
	struct error err;

	(void)state;
	fail(&err, "bad magic");
	assert_int_equal(fail_prefix(&err, "shard %d", 7), FAIL);
	assert_int_equal(fail_prefix(&err, "train"), FAIL);
	assert_string_equal(err.text, "train: shard 7: bad magic");
}

static void test_prefix_keeps_the_start_of_a_long_text(void **state)
{
	char text[ERROR_TEXT_SIZE];
	struct error err;

	(void)state;
	fill(text, sizeof(text) - 1);
	fail(&err, "%s", text);
	fail_prefix(&err, "shard");
	assert_memory_equal(err.text, "shard: xxx", 10);
	assert_int_equal(strlen(err.text), ERROR_TEXT_SIZE - 1);
}

static void test_memory_says_how_much(void **state)
{
	struct error err;

	(void)state;
	assert_int_equal(fail_memory(&err, "arena", 1ull << 40), FAIL);
	assert_string_equal(err.text, "arena: out of memory (1099511627776 bytes requested)");
	assert_true(is_lack_of_memory(&err));
	fail_prefix(&err, "h.0");
	assert_true(is_lack_of_memory(&err));
	fail(&err, "no such file");
	assert_false(is_lack_of_memory(&err));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fail_formats),
		cmocka_unit_test(test_no_escape_sequence_is_told),
		cmocka_unit_test(test_fail_replaces_an_older_text),
		cmocka_unit_test(test_fail_cuts_what_does_not_fit),
		cmocka_unit_test(test_errno_is_named),
		cmocka_unit_test(test_errno_after_a_long_text),
		cmocka_unit_test(test_prefixes_stack_up),
		cmocka_unit_test(test_prefix_keeps_the_start_of_a_long_text),
		cmocka_unit_test(test_memory_says_how_much),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
