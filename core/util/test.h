/*
 * test - cmocka for our test programs, with the headers that it needs.
 *
 * cmocka's macro fail() hides our function of that name.  This header removes the
 * macro and defines a fail_msg() that does not need it.  Its skip() takes a reason.
 */
#ifndef CORE_UTIL_TEST_H
#define CORE_UTIL_TEST_H

#include <fts.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#undef fail
#undef fail_msg
#define fail_msg(...)                      \
	do {                               \
		print_error(__VA_ARGS__);  \
		print_error("\n");         \
		_fail(__FILE__, __LINE__); \
	} while (0)

/* Ends a test that cannot run here; runtest.sh shows why.  What a device can never run is not
 * registered. */
#undef skip
#define skip(...)                           \
	do {                                \
		print_message("# why: ");   \
		print_message(__VA_ARGS__); \
		print_message("\n");        \
		_skip(__FILE__, __LINE__);  \
	} while (0)

/*
 * KABLATE_TEST_ENTRIES=N asks for samples: N entries of each gradient, and the same code is not run
 * again where a test otherwise repeats it.  For emulators and for checkers of memory and of races.
 */
static inline bool test_is_sampled(void)
{
	const char *given = getenv("KABLATE_TEST_ENTRIES");

	return given && atoi(given) > 0;
}

static inline int64_t test_entries(int64_t all)
{
	return test_is_sampled() ? atoi(getenv("KABLATE_TEST_ENTRIES")) : all;
}

/* A template for mkdtemp() and mkstemp(), in $TMPDIR. */
static inline void test_template(char *path, size_t size, const char *what)
{
	const char *parent = getenv("TMPDIR");

	snprintf(path, size, "%s/kablate-%s-XXXXXX", parent ? parent : "/tmp", what);
}

/* Removes a directory and everything in it; -1: something is left. */
static inline int test_remove(const char *directory)
{
	char *const roots[] = { (char *)directory, NULL };
	FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	int result = tree ? 0 : -1;
	FTSENT *entry;

	while (tree && (entry = fts_read(tree)))
		if (entry->fts_info != FTS_D && remove(entry->fts_path)) /* D: before its files */
			result = -1;
	if (tree)
		fts_close(tree);
	return result;
}

/* Fails with the error's text if the status is not OK. */
#define must(status, err)                            \
	do {                                         \
		if ((status) != OK)                  \
			fail_msg("%s", (err)->text); \
	} while (0)

#endif
