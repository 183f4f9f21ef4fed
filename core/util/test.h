/*
 * test - cmocka for our test programs, with the headers it wants before it.
 *
 * cmocka's macro fail() takes the name of our function; here it is given back,
 * and fail_msg() does without it.
 */
#ifndef CORE_UTIL_TEST_H
#define CORE_UTIL_TEST_H

#include <fts.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#undef fail
#undef fail_msg
#define fail_msg(...)                           \
	do {                                    \
		print_error(__VA_ARGS__);       \
		print_error("\n");              \
		_fail(__FILE__, __LINE__);      \
	} while (0)

/* What mkdtemp() and mkstemp() take: a name in $TMPDIR that says whose it is. */
static inline void test_template(char *path, size_t size, const char *what)
{
	const char *parent = getenv("TMPDIR");

	snprintf(path, size, "%s/kablate-%s-XXXXXX", parent ? parent : "/tmp", what);
}

/* Remove a directory and all that it holds: 0, or -1 when something is left. */
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

/* A status that has to be OK; otherwise its error text is the failure. */
#define must(status, err)                               \
	do {                                            \
		if ((status) != OK)                     \
			fail_msg("%s", (err)->text);    \
	} while (0)

#endif
