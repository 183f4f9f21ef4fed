/*
 * Tests of core/record/tensorboard: checksums, and event files byte by byte.
 *
 *     tensorboard_test write DIRECTORY
 *
 * writes files for core/record/tensorboard_longtest.py, which has TensorBoard read them.
 */
#include <glob.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/record/tensorboard.h"
#include "core/util/test.h"

/* --------------------------------------------------------------- places */

static int make_directory(void **state)
{
	char *directory = malloc(256);

	test_template(directory, 256, "events");
	*state = mkdtemp(directory);
	return *state ? 0 : -1;
}

static int remove_directory(void **state)
{
	const int result = test_remove(*state);

	free(*state);
	return result;
}

/* The event files of a directory, in the order of their names. */
static void find_files(const char *directory, glob_t *found)
{
	char pattern[512];

	snprintf(pattern, sizeof(pattern), "%s/events.out.tfevents.*", directory);
	assert_int_equal(glob(pattern, 0, NULL, found), 0);
}

static size_t read_file(const char *path, uint8_t *bytes, size_t size)
{
	FILE *file = fopen(path, "rb");
	size_t got;

	assert_non_null(file);
	got = fread(bytes, 1, size, file);
	fclose(file);
	return got;
}

static struct tensorboard *open_in(const char *directory, int64_t resume_iteration)
{
	struct tensorboard *t;
	struct error err;

	must(tensorboard_open(&t, directory, resume_iteration, &err), &err);
	return t;
}

static void close_it(struct tensorboard *t)
{
	struct error err;

	must(tensorboard_close(t, &err), &err);
}

/* --------------------------------------------------------------- checksums */

/* The examples of RFC 3720, B.4, and the check value of the catalogue of CRCs. */
static void test_crc32c(void **state)
{
	uint8_t bytes[32] = { 0 };

	(void)state;
	assert_int_equal(crc32c("", 0), 0);
	assert_int_equal(crc32c("123456789", 9), 0xe3069283u);
	assert_int_equal(crc32c(bytes, 32), 0x8a9136aau);
	memset(bytes, 0xff, 32);
	assert_int_equal(crc32c(bytes, 32), 0x62a8ab43u);
	for (int i = 0; i < 32; i++)
		bytes[i] = (uint8_t)i;
	assert_int_equal(crc32c(bytes, 32), 0x46dd794eu);
}

/* --------------------------------------------------------------- records */

/* The data of the record at *at, which is moved behind it; checksums are checked. */
static const uint8_t *next_record(const uint8_t *bytes, size_t size, size_t *at, size_t *length)
{
	const uint8_t *data;
	uint64_t n;
	uint32_t crc, expected;

	assert_true(*at + 16 <= size);
	memcpy(&n, bytes + *at, 8);
	memcpy(&crc, bytes + *at + 8, 4);
	expected = crc32c(bytes + *at, 8);
	assert_int_equal(crc, (uint32_t)(((expected >> 15) | (expected << 17)) + 0xa282ead8u));
	assert_true(*at + 16 + n <= size);
	data = bytes + *at + 12;
	memcpy(&crc, data + n, 4);
	expected = crc32c(data, n);
	assert_int_equal(crc, (uint32_t)(((expected >> 15) | (expected << 17)) + 0xa282ead8u));
	*at += 16 + n;
	*length = n;
	return data;
}

/* An event begins with its time; the rest is known to the byte. */
static void check_record(const uint8_t *bytes, size_t size, size_t *at, const void *rest,
			 size_t rest_size)
{
	double when;
	size_t length;
	const uint8_t *data = next_record(bytes, size, at, &length);

	assert_int_equal(data[0], 0x09);
	memcpy(&when, data + 1, 8);
	assert_true(when > 1.7e9 && when < 1e11);
	assert_int_equal(length, 9 + rest_size);
	assert_memory_equal(data + 9, rest, rest_size);
}

static void test_a_file_byte_by_byte(void **state)
{
	static const uint8_t start[] = { 0x10, 101, 0x3a, 2, 0x08, 1 };
	/* 300 = 0xac 0x02 as a varint; 1.5 = 0x3fc00000 */
	static const uint8_t value[] = { 0x10, 0xac, 0x02, 0x2a, 12,   0x0a, 10,   0x0a, 3,
					 'a',  '/',  'b',  0x15, 0x00, 0x00, 0xc0, 0x3f };
	struct tensorboard *t = open_in(*state, 100);
	uint8_t bytes[1024];
	size_t size, at = 0;
	glob_t found;

	tensorboard_value(t, 300, "a/b", 1.5);
	close_it(t);
	find_files(*state, &found);
	assert_int_equal(found.gl_pathc, 1);
	size = read_file(found.gl_pathv[0], bytes, sizeof(bytes));
	check_record(bytes, size, &at,
		     "\x10\x00\x1a\x0d"
		     "brain.Event:2",
		     17);
	check_record(bytes, size, &at, start, sizeof(start));
	check_record(bytes, size, &at, value, sizeof(value));
	assert_int_equal(at, size);
	globfree(&found);
}

/* A negative step takes ten bytes; so does the largest, nearly. */
static void test_extreme_steps_and_tags(void **state)
{
	struct tensorboard *t = open_in(*state, -1);
	char tag[2000];
	uint8_t bytes[4096];
	size_t size, at = 0, length;
	glob_t found;

	memset(tag, 't', sizeof(tag) - 1);
	tag[sizeof(tag) - 1] = '\0';
	tensorboard_value(t, INT64_MAX, tag, NAN);
	tensorboard_value(t, -1, "", -INFINITY);
	close_it(t);
	find_files(*state, &found);
	size = read_file(found.gl_pathv[0], bytes, sizeof(bytes));
	for (int i = 0; i < 4; i++)
		next_record(bytes, size, &at, &length);
	assert_int_equal(at, size);
	globfree(&found);
}

/* --------------------------------------------------------------- files */

/* Starts within one second have names in the order of the starts. */
static void test_every_start_has_a_later_file(void **state)
{
	glob_t found;

	for (int i = 0; i < 5; i++) {
		struct tensorboard *t = open_in(*state, 10 * i);

		close_it(t);
	}
	find_files(*state, &found);
	assert_int_equal(found.gl_pathc, 5);
	for (size_t i = 0; i < 5; i++) {
		uint8_t bytes[256];
		size_t size = read_file(found.gl_pathv[i], bytes, sizeof(bytes)), at = 0, length;

		next_record(bytes, size, &at, &length);
		assert_int_equal(next_record(bytes, size, &at, &length)[10], 10 * i + 1);
	}
	globfree(&found);
}

static void test_flush_makes_records_visible(void **state)
{
	struct tensorboard *t = open_in(*state, -1);
	struct error err;
	uint8_t bytes[256];
	size_t size, at = 0, length;
	glob_t found;

	tensorboard_value(t, 1, "x", 1);
	must(tensorboard_flush(t, &err), &err);
	find_files(*state, &found);
	size = read_file(found.gl_pathv[0], bytes, sizeof(bytes));
	for (int i = 0; i < 3; i++)
		next_record(bytes, size, &at, &length);
	assert_int_equal(at, size);
	close_it(t);
	globfree(&found);
}

static void test_errors_are_told(void **state)
{
	struct tensorboard *t;
	struct rlimit limit;
	struct error err;

	assert_int_equal(tensorboard_open(&t, "/nonexistent/a", -1, &err), FAIL);
	assert_string_equal(err.text, "/nonexistent/a: No such file or directory");

	t = open_in(*state, -1);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = 10;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	assert_int_equal(tensorboard_flush(t, &err), FAIL);
	limit.rlim_cur = RLIM_INFINITY;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	assert_non_null(strstr(err.text, "File too large"));
	tensorboard_close(t, &err);
}

/* --------------------------------------------------------------- for TensorBoard itself */

static void write_points(struct tensorboard *t, int64_t first, int64_t last, double offset)
{
	for (int64_t i = first; i <= last; i++) {
		tensorboard_value(t, i, "train/loss", offset + 1.0 / (double)(1 + i));
		if (i % 10 == 0)
			tensorboard_value(t, i, "validation/loss", offset + (double)i);
	}
}

/* Killed at 57 after a checkpoint at 40, resumed to 100; the lost points differ by 1000. */
static int write_example(const char *directory)
{
	struct tensorboard *t;
	struct error err;

	if (tensorboard_open(&t, directory, -1, &err))
		goto tell;
	write_points(t, 0, 40, 0);
	write_points(t, 41, 57, 1000);
	if (tensorboard_close(t, &err) || tensorboard_open(&t, directory, 40, &err))
		goto tell;
	write_points(t, 41, 100, 0);
	if (tensorboard_close(t, &err))
		goto tell;
	return EXIT_SUCCESS;
tell:
	fprintf(stderr, "%s\n", err.text);
	return EXIT_FAILURE;
}

#define in_directory(test) cmocka_unit_test_setup_teardown(test, make_directory, remove_directory)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_crc32c),
		in_directory(test_a_file_byte_by_byte),
		in_directory(test_extreme_steps_and_tags),
		in_directory(test_every_start_has_a_later_file),
		in_directory(test_flush_makes_records_visible),
		in_directory(test_errors_are_told),
	};

	if (argc == 3 && !strcmp(argv[1], "write"))
		return write_example(argv[2]);
	signal(SIGXFSZ, SIG_IGN); /* a file that would become too large is an error of write() */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
