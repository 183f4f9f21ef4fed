/* Tests of data/input: JSON lines, the order of files, the split, spans. */
#include "data/input.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/util/test_dir.h"

static void expect_text(const char *line, const char *text, size_t size)
{
	char *copy = strdup(line);
	struct error err;
	uint8_t *out;
	size_t n;

	if (jsonl_text(copy, strlen(copy), &out, &n, &err))
		fail_msg("%s: %s", line, err.text);
	assert_non_null(out);
	assert_int_equal(n, size);
	assert_memory_equal(out, text, size);
	free(out);
	free(copy);
}

static void expect_bad_line(const char *line, size_t size, const char *reason)
{
	char *copy = malloc(size + 1);
	struct error err;
	uint8_t *out;
	size_t n;

	memcpy(copy, line, size);
	copy[size] = '\0';
	assert_int_equal(jsonl_text(copy, size, &out, &n, &err), FAIL);
	assert_null(out);
	assert_contains(err.text, reason);
	free(copy);
}

static void test_json_lines(void **state)
{
	struct error err;
	char blank[] = " \r\n";
	uint8_t *out;
	size_t n;

	(void)state;
	expect_text("{\"text\": \"abc\"}\n", "abc", 3);
	expect_text("{\"id\": 1, \"Text\": \"x\", \"text\": \"\\u00e9\\n\\\"\\ud83d\\ude42\"}",
		    "\xc3\xa9\n\"\xf0\x9f\x99\x82", 8);
	expect_text("{\"text\": \"\"}", "", 0);
	expect_text("{\"text\": \"a\\u0000b\\u0000\"}", "a\0b\0", 4);
	expect_text("{\"text\": \"a\\\\u0000b\"}", "a\\u0000b", 8);
	expect_text("{\"text\": \"a\\\\\\u0000b\"}", "a\\\0b", 4);
	assert_int_equal(jsonl_text(blank, 3, &out, &n, &err), OK);
	assert_null(out);
	expect_bad_line("{\"text\": \"abc\"", 14, "not a JSON");
	expect_bad_line("{\"text\": \"\\ud83d\"}", 18, "not a JSON");
	expect_bad_line("{\"text\": 1}", 11, "no field \"text\"");
	expect_bad_line("{\"body\": \"a\"}", 13, "no field \"text\"");
	expect_bad_line("[\"text\"]", 8, "not a JSON object");
	expect_bad_line("{\"text\": \"\xc0\x80\"}", 14, "not valid UTF-8");
	expect_bad_line("{\"text\": \"a\0b\"}", 15, "not valid UTF-8");
	expect_bad_line("{\"text\": \"a\"}\0\0\n", 16, "byte 14 of the line is not valid UTF-8");
	expect_bad_line("\0\n", 2, "not valid UTF-8");
	expect_bad_line("\\", 1, "not a JSON");
	expect_bad_line("{\"text\": \"a\"} x", 15, "not a JSON object (near byte 14)");
}

/* All the text of an input in order, documents ended by '|', with counts. */
struct reading {
	char *text;
	size_t size, documents[SPLITS], bytes[SPLITS], spans;
	char hash[SHA256_HEX_SIZE];
};

static struct reading read_input(char *const *paths, size_t count, double share)
{
	struct reading r = { .text = calloc(1, 4 << 20) };
	struct batch *batch = calloc(1, sizeof(*batch));
	struct input *in;
	struct error err;

	if (input_open(paths, count, share, &in, &err))
		fail_msg("%s", err.text);
	do {
		if (input_next(in, batch, &err))
			fail_msg("%s", err.text);
		for (size_t i = 0; i < batch->count; i++) {
			const struct span *span = &batch->span[i];

			memcpy(r.text + r.size, span->text, span->size);
			r.size += span->size;
			if (span->closes)
				r.text[r.size++] = '|';
			r.documents[span->split] += span->opens;
			r.bytes[span->split] += span->size;
			r.spans++;
		}
		batch_release(batch);
	} while (input_bytes_read(in) < input_bytes(in));
	input_hash(in, r.hash);
	input_close(in);
	free(batch);
	return r;
}

static void test_files_come_sorted(void **state)
{
	struct test_dir d = test_dir_make();
	char *paths[] = { strdup(test_path(&d, "z.txt")), strdup(test_path(&d, "dir")) };
	struct reading r;

	(void)state;
	assert_int_equal(mkdir(test_path(&d, "dir"), 0777), 0);
	assert_int_equal(mkdir(test_path(&d, "dir/b"), 0777), 0);
	test_put_text(&d, "z.txt", "first");
	test_put_text(&d, "dir/c.jsonl",
		      "{\"text\": \"four\"}\n\n{\"text\": \"\"}\n{\"text\": \"five\"}");
	test_put_text(&d, "dir/B", "two");
	test_put_text(&d, "dir/b/x", "three");
	test_put_text(&d, "dir/.hidden", "never");
	test_put_text(&d, "dir/empty", "");
	r = read_input(paths, 2, 0);
	assert_string_equal(r.text, "first|two|three|four|five|");
	assert_int_equal(r.documents[SPLIT_TRAIN], 5);
	free(r.text);
	free(paths[0]);
	free(paths[1]);
	test_dir_remove(&d);
}

/* 10,000 documents: the share is kept, and no document's side depends on the others. */
static void test_documents_are_split_by_their_bytes(void **state)
{
	enum { DOCUMENTS = 10000 };
	struct test_dir d = test_dir_make();
	char *path = strdup(test_path(&d, "d.jsonl")), *other = strdup(test_path(&d, "e.jsonl"));
	char *lines = malloc(DOCUMENTS * 40);
	struct reading all, last;
	size_t size = 0, half = 0;

	(void)state;
	for (int i = 0; i < DOCUMENTS; i++) {
		if (i == DOCUMENTS / 2)
			half = size;
		size += (size_t)sprintf(lines + size, "{\"text\": \"document %d\"}\n", i);
	}
	test_put(&d, "d.jsonl", lines, size);
	test_put(&d, "e.jsonl", lines + half, size - half);
	all = read_input(&path, 1, 0.1);
	/* 1000 expected, standard deviation 30. */
	assert_in_range(all.documents[SPLIT_VALID], 880, 1120);
	assert_int_equal(all.documents[SPLIT_VALID] + all.documents[SPLIT_TRAIN], DOCUMENTS);
	test_put(&d, "d.jsonl", lines, half);
	last = read_input(&path, 1, 0.1);
	half = last.documents[SPLIT_VALID];
	free(last.text);
	last = read_input(&other, 1, 0.1);
	assert_int_equal(half + last.documents[SPLIT_VALID], all.documents[SPLIT_VALID]);
	free(all.text);
	free(last.text);
	free(lines);
	free(path);
	free(other);
	test_dir_remove(&d);
}

/* A single text is divided near the share, never inside a character; long texts come in spans. */
static void test_single_text_is_divided(void **state)
{
	enum { SIZE = 1000001 };
	struct test_dir d = test_dir_make();
	char *path = strdup(test_path(&d, "t.txt")), *text = malloc(SIZE + 1);
	struct reading r;
	char expected[SHA256_HEX_SIZE];
	struct error err;

	(void)state;
	for (size_t i = 0; i < SIZE; i++)
		text[i] = i % 7 ? 'x' : ' ';
	memcpy(text + 899998, "\xf0\x9f\x99\x82", 4);
	test_put(&d, "t.txt", text, SIZE);
	r = read_input(&path, 1, 0.1);
	assert_memory_equal(r.text, text, SIZE);
	/* 0.9 * 1000001 = 900000.9, inside the emoji that ends at 900002. */
	assert_int_equal(r.bytes[SPLIT_TRAIN], 900002);
	assert_int_equal(r.bytes[SPLIT_VALID], SIZE - 900002);
	assert_int_equal(r.documents[SPLIT_TRAIN], 1);
	assert_int_equal(r.documents[SPLIT_VALID], 1);
	assert_in_range(r.spans, SIZE / SPAN_BYTES, 20);
	assert_int_equal(sha256_file(path, expected, &err), OK);
	assert_string_equal(r.hash, expected);
	free(r.text);
	free(text);
	free(path);
	test_dir_remove(&d);
}

static void test_bad_inputs(void **state)
{
	struct test_dir d = test_dir_make();
	char *path = strdup(test_path(&d, "x.jsonl"));
	struct batch *batch = calloc(1, sizeof(*batch));
	struct input *in;
	struct error err;

	(void)state;
	assert_int_equal(input_open(&path, 1, 0, &in, &err), FAIL);
	assert_contains(err.text, "No such file");
	assert_int_equal(input_open(&path, 0, 0, &in, &err), FAIL);
	assert_contains(err.text, "no text files");
	test_put_text(&d, "x.jsonl", "{\"text\": \"a\"}\n{\"text\": \n");
	assert_int_equal(input_open(&path, 1, 0, &in, &err), OK);
	assert_int_equal(input_next(in, batch, &err), FAIL);
	assert_contains(err.text, "x.jsonl:2: not a JSON");
	batch_release(batch);
	input_close(in);
	free(batch);
	free(path);
	test_dir_remove(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_json_lines),
		cmocka_unit_test(test_files_come_sorted),
		cmocka_unit_test(test_documents_are_split_by_their_bytes),
		cmocka_unit_test(test_single_text_is_divided),
		cmocka_unit_test(test_bad_inputs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
