/*
 * Every committed vector, in double and in float; the counts of parameters of
 * the specification; configurations that must be refused.
 */
#include <glob.h>
#include <string.h>

#include "core/test.h"
#include "models/vector.h"

static void check(const char *path, enum dtype type, int *near_ties)
{
	struct vector_report report;
	struct safetensors file;
	struct error err;

	must(safetensors_open(&file, path, &err), &err);
	must(vector_compare(&file, type, &report, &err), &err);
	if (!vector_passed(&report))
		for (int i = 0; i < VECTOR_KINDS; i++)
			if (report.worst[i].error > report.worst[i].allowed)
				fail_msg("%s in %s: '%s' is off by %.3g, allowed %.3g", path,
					 dtype_name(type), report.worst[i].name,
					 report.worst[i].error, report.worst[i].allowed);
	*near_ties += report.near_tie;
	safetensors_close(&file);
}

static void test_vectors(enum dtype type)
{
	int near_ties = 0;
	glob_t paths;

	assert_int_equal(glob("models/vectors/*.safetensors", 0, NULL, &paths), 0);
	assert_true(paths.gl_pathc >= 80);
	for (size_t i = 0; i < paths.gl_pathc; i++)
		check(paths.gl_pathv[i], type, &near_ties);
	globfree(&paths);
	assert_true(near_ties <= 2); /* more would hide errors; seen: 0 */
}

static void test_vectors_in_double(void **state)
{
	(void)state;
	test_vectors(F64);
}

static void test_vectors_in_float(void **state)
{
	(void)state;
	test_vectors(F32);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors_in_double),
		cmocka_unit_test(test_vectors_in_float),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
