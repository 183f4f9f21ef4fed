/* A stream into memory: a lack of memory is reported.  tools/kablate/fault_longtest.py lets
 * allocations fail.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "core/util/memory_file.h"
#include "core/util/test.h"

static void test_whole(void **state)
{
	struct memory_file f;
	struct error err;

	(void)state;
	must(memory_file_open(&f, "text", &err), &err);
	for (int i = 0; i < 1000; i++)
		fprintf(f.stream, "%09d ", i);
	must(memory_file_close(&f, "text", &err), &err);
	assert_int_equal(f.size, 10000);
	assert_int_equal(strlen(f.text), 10000);
	assert_memory_equal(f.text + 9990, "000000999 ", 10);
	memory_file_free(&f);
	memory_file_free(&f);
}

static void test_free_in_any_state(void **state)
{
	struct memory_file f;
	struct error err;

	(void)state;
	must(memory_file_open(&f, "text", &err), &err);
	fputs("something", f.stream);
	memory_file_free(&f);
	assert_null(f.text);
	assert_null(f.stream);
}

static void test_what_does_not_fit_is_told(void **state)
{
	const char *sanitizers = getenv("SANITIZE");
	struct rlimit before, little;
	struct memory_file f;
	struct error err;

	(void)state;
	if (sanitizers && sanitizers[0])
		skip("sanitizers need terabytes of address space");
	must(memory_file_open(&f, "text", &err), &err);
	assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
	little =
		(struct rlimit){ 1 << 20, before.rlim_max }; /* less than the program has already */
	assert_int_equal(setrlimit(RLIMIT_AS, &little), 0);
	for (int i = 0; i < 1 << 20; i++)
		fputs("something", f.stream);
	assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
	assert_int_equal(memory_file_close(&f, "text", &err), FAIL);
	assert_true(is_lack_of_memory(&err));
	memory_file_free(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_free_in_any_state),
		cmocka_unit_test(test_what_does_not_fit_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
