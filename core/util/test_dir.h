/*
 * test_dir - a temporary directory for tests, and files in it.
 */
#ifndef CORE_UTIL_TEST_DIR_H
#define CORE_UTIL_TEST_DIR_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/util/test.h"

struct test_dir {
	char path[256];
};

static inline struct test_dir test_dir_make(void)
{
	struct test_dir d;

	test_template(d.path, sizeof(d.path), "test");
	assert_non_null(mkdtemp(d.path));
	return d;
}

static inline void test_dir_remove(const struct test_dir *d)
{
	char command[300];

	snprintf(command, sizeof(command), "rm -rf '%s'", d->path);
	assert_int_equal(system(command), 0);
}

/* The path of a name in the directory.  Eight buffers are used in turn. */
static inline const char *test_path(const struct test_dir *d, const char *name)
{
	static char path[8][600];
	static int next;
	char *out = path[next++ % 8];

	snprintf(out, sizeof(path[0]), "%s/%s", d->path, name);
	return out;
}

static inline void test_put(const struct test_dir *d, const char *name, const void *data,
			    size_t size)
{
	FILE *file = fopen(test_path(d, name), "wb");

	assert_non_null(file);
	assert_int_equal(fwrite(data, 1, size, file), size);
	assert_int_equal(fclose(file), 0);
}

static inline void test_put_text(const struct test_dir *d, const char *name, const char *text)
{
	test_put(d, name, text, strlen(text));
}

/* The bytes of a file; the caller frees them. */
static inline char *test_get(const struct test_dir *d, const char *name, size_t *size)
{
	FILE *file = fopen(test_path(d, name), "rb");
	char *data;

	assert_non_null(file);
	assert_int_equal(fseek(file, 0, SEEK_END), 0);
	*size = (size_t)ftell(file);
	rewind(file);
	data = malloc(*size + 1);
	assert_non_null(data);
	assert_int_equal(fread(data, 1, *size, file), *size);
	data[*size] = '\0';
	fclose(file);
	return data;
}

#define assert_contains(text, part)                                         \
	do {                                                                \
		if (!strstr(text, part))                                    \
			fail_msg("\"%s\" does not say \"%s\"", text, part); \
	} while (0)

#endif
