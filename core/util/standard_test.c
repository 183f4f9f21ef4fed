/* Programs that are started without standard files, or with a full disk behind them. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/util/standard.h"
#include "core/util/test.h"

/* The exit status of a process that does this. */
static int status_of(int (*work)(void))
{
	int status;
	pid_t child;

	fflush(NULL);
	child = fork();
	if (child == 0)
		_exit(work());
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* 0: the files that are opened next are others, and nothing can be written or read. */
static int started_without(void)
{
	char byte;

	for (int fd = 0; fd <= 2; fd++)
		close(fd);
	standard_occupy();
	if (open("/dev/null", O_RDWR) <= 2)
		return 1;
	if (write(1, "x", 1) >= 0 || write(2, "x", 1) >= 0 || read(0, &byte, 1) >= 0)
		return 2;
	return 0;
}

static int started_with(void)
{
	standard_occupy();
	return open("/dev/null", O_RDWR) > 2 ? 0 : 1;
}

static int started_without_output(void)
{
	close(1);
	standard_occupy();
	return open("/dev/null", O_RDWR) > 2 && write(2, "", 0) == 0 ? 0 : 1;
}

static void test_numbers_are_occupied(void **state)
{
	(void)state;
	assert_int_equal(status_of(started_without), 0);
	assert_int_equal(status_of(started_without_output), 0);
	assert_int_equal(status_of(started_with), 0);
}

static int print_to(const char *path)
{
	struct error err;

	if (!freopen(path, "w", stdout))
		return 3;
	printf("a word");
	return standard_output_end(&err) == OK ? 0 : 1;
}

static int print_to_full(void)
{
	return print_to("/dev/full");
}

static int print_to_null(void)
{
	return print_to("/dev/null");
}

/* What was printed long before is lost, too. */
static int print_much_to_full(void)
{
	struct error err;

	if (!freopen("/dev/full", "w", stdout))
		return 3;
	for (int i = 0; i < 100000; i++)
		printf("word ");
	fflush(stdout);
	return standard_output_end(&err) == OK ? 0 : 1;
}

static void test_lost_output_is_told(void **state)
{
	(void)state;
	assert_int_equal(status_of(print_to_null), 0);
	assert_int_equal(status_of(print_to_full), 1);
	assert_int_equal(status_of(print_much_to_full), 1);
}

static void test_no_escape_sequence_passes(void **state)
{
	static const char *const parts[] = { "a\x1b[2J", "\xc2", "\x9b", "\xc3", "\x9b\t\x7f\n" };
	FILE *to = tmpfile(), *stream = standard_printable(to);
	char text[64] = "";

	(void)state;
	assert_non_null(to);
	assert_non_null(stream);
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		fputs(parts[i], stream);
		assert_int_equal(fflush(stream), 0);
	}
	assert_int_equal(fclose(stream), 0);
	rewind(to);
	assert_true(fread(text, 1, sizeof(text) - 1, to) > 0);
	assert_string_equal(text, "a?[2J??\xc3\x9b\t?\n");
	fclose(to);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers_are_occupied),
		cmocka_unit_test(test_lost_output_is_told),
		cmocka_unit_test(test_no_escape_sequence_passes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
