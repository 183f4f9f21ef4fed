/* Tests of core/util/replace: nobody sees a new file before its commit; then it is whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/util/replace.h"
#include "core/util/test.h"

#define PATH_SIZE 256

static char directory[PATH_SIZE], path[PATH_SIZE + 16], temporary[PATH_SIZE + 32];

static int make_directory(void **state)
{
	(void)state;
	test_template(directory, sizeof(directory), "replace");
	if (!mkdtemp(directory))
		return -1;
	snprintf(path, sizeof(path), "%s/file", directory);
	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	return 0;
}

/* Fails if anything but the file is left. */
static int remove_directory(void **state)
{
	(void)state;
	remove(path);
	return rmdir(directory);
}

static void assert_holds(const char *expected)
{
	FILE *file = fopen(path, "r");
	char text[64] = "";

	assert_non_null(file);
	assert_int_equal(fread(text, 1, sizeof(text) - 1, file), strlen(expected));
	fclose(file);
	assert_string_equal(text, expected);
}

static void write_whole(const char *text)
{
	struct replace r;
	struct error err;

	must(replace_begin(&r, path, &err), &err);
	fputs(text, r.stream);
	must(replace_commit(&r, &err), &err);
}

static void test_the_old_file_stays_until_the_commit(void **state)
{
	struct replace r;
	struct error err;

	(void)state;
	write_whole("old");
	must(replace_begin(&r, path, &err), &err);
	fputs("new", r.stream);
	fflush(r.stream);
	assert_holds("old");
	must(replace_commit(&r, &err), &err);
	assert_holds("new");
	assert_int_not_equal(access(temporary, F_OK), 0);
}

static void test_an_abort_leaves_the_old_file(void **state)
{
	struct replace r;
	struct error err;

	(void)state;
	write_whole("old");
	must(replace_begin(&r, path, &err), &err);
	fputs("new", r.stream);
	replace_abort(&r);
	assert_holds("old");
}

static void test_what_a_crash_left_does_no_harm(void **state)
{
	FILE *stale = fopen(temporary, "w");

	(void)state;
	fputs("longer than what is written now", stale);
	fclose(stale);
	write_whole("short");
	assert_holds("short");
}

static void test_failures_say_why_and_leave_nothing(void **state)
{
	char nowhere[PATH_SIZE + 32];
	struct replace r;
	struct error err;

	(void)state;
	snprintf(nowhere, sizeof(nowhere), "%s/no/file", directory);
	assert_int_equal(replace_begin(&r, nowhere, &err), FAIL);
	assert_non_null(strstr(err.text, "No such file or directory"));

	assert_int_equal(mkdir(path, 0700), 0); /* no file can take this name */
	must(replace_begin(&r, path, &err), &err);
	assert_int_equal(replace_commit(&r, &err), FAIL);
	assert_non_null(strstr(err.text, "Is a directory"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_the_old_file_stays_until_the_commit,
						make_directory, remove_directory),
		cmocka_unit_test_setup_teardown(test_an_abort_leaves_the_old_file, make_directory,
						remove_directory),
		cmocka_unit_test_setup_teardown(test_what_a_crash_left_does_no_harm, make_directory,
						remove_directory),
		cmocka_unit_test_setup_teardown(test_failures_say_why_and_leave_nothing,
						make_directory, remove_directory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
