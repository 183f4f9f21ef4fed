/* Tests of data/prepare: the way from text to tokens, threads, interruptions, what is refused. */
#include "data/prepare.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "core/util/rng.h"
#include "data/output_dir.h"
#include "core/util/test_dir.h"
#include "data/tokens.h"

/* Some text that repeats itself, written by a random walk. */
static void put_documents(const struct test_dir *d, const char *name, int documents, int words)
{
	static const char *const list[] = {
		"the ", "step", " of", " gradient", "\xc3\xa9t\xc3\xa9 ",
		"\\n",	"it's", " 42", "  ",	    "\\u0000"
	};
	struct rng_reader r = { .key = rng_key(7, name) };
	FILE *file = fopen(test_path(d, name), "wb");

	assert_non_null(file);
	for (int i = 0; i < documents; i++) {
		fputs("{\"text\": \"", file);
		for (int j = 0; j < words; j++)
			fputs(list[rng_next_below(&r, 10)], file);
		fputs("\"}\n", file);
	}
	assert_int_equal(fclose(file), 0);
}

static enum status run_with(const char *tokenizer, const char *in_path, const char *out,
			    double share, int threads, struct dataset *result, struct error *err)
{
	struct prepare_options options = { .out = out, .shard_tokens = 1000, .threads = threads };
	struct tokenizer *t = NULL;
	struct input *in = NULL;
	enum status status = FAIL;
	char *path = strdup(in_path);

	if (!strcmp(tokenizer, "characters")) {
		if (!input_open(&path, 1, share, &in, err))
			status = prepare_characters(in, &t, err);
		input_close(in);
		in = NULL;
	} else if (!strcmp(tokenizer, "train")) {
		if (!input_open(&path, 1, share, &in, err))
			status = prepare_vocabulary(in, 270, threads, &t, err);
		input_close(in);
		in = NULL;
	} else {
		status = tokenizer_open(tokenizer, &t, err);
	}
	if (!status)
		status = input_open(&path, 1, share, &in, err);
	if (!status)
		status = prepare(in, t, &options, result, err);
	input_close(in);
	tokenizer_close(t);
	free(path);
	return status;
}

static void must_run(const char *tokenizer, const char *in_path, const char *out, double share,
		     int threads)
{
	struct dataset result;
	struct error err;

	if (run_with(tokenizer, in_path, out, share, threads, &result, &err))
		fail_msg("%s", err.text);
	dataset_free(&result);
}

static int same_directories(const char *a, const char *b)
{
	char command[1300];

	snprintf(command, sizeof(command), "diff -r '%s' '%s' >/dev/null", a, b);
	return system(command);
}

/* Every kind of tokenizer: one thread and seven give the same files. */
static void test_threads_change_nothing(void **state)
{
	static const char *const kinds[] = { "bytes", "characters", "train" };
	struct test_dir d = test_dir_make();

	(void)state;
	put_documents(&d, "in.jsonl", 600, 50);
	for (int i = 0; i < 3; i++) {
		must_run(kinds[i], test_path(&d, "in.jsonl"), test_path(&d, "one"), 0.1, 1);
		must_run(kinds[i], test_path(&d, "in.jsonl"), test_path(&d, "seven"), 0.1, 7);
		assert_int_equal(same_directories(test_path(&d, "one"), test_path(&d, "seven")), 0);
	}
	test_dir_remove(&d);
}

/* Decoding the shards gives the documents, with the end of text between them and nowhere else. */
static void test_documents_come_back(void **state)
{
	struct test_dir d = test_dir_make();
	const char lines[] = "{\"text\": \"one\"}\n{\"text\": \"\"}\n{\"text\": "
			     "\"two\"}\n{\"text\": \"three\"}\n";
	const char expected[] = "one\1two\1three";
	struct dataset result;
	struct tokens *t;
	struct error err;
	int32_t id[32];

	(void)state;
	test_put_text(&d, "in.jsonl", lines);
	assert_int_equal(run_with("bytes", test_path(&d, "in.jsonl"), test_path(&d, "out"), 0, 2,
				  &result, &err),
			 OK);
	assert_int_equal(result.split[SPLIT_TRAIN].documents, 3);
	assert_int_equal(result.split[SPLIT_TRAIN].bytes, 11);
	assert_int_equal(result.split[SPLIT_TRAIN].tokens, 13);
	assert_int_equal(result.split[SPLIT_VALID].shards, 0);
	assert_int_equal(result.source_bytes, sizeof(lines) - 1);
	assert_int_equal(tokens_open(test_path(&d, "out/train-*.bin"), 257, 1, &t, &err), OK);
	assert_int_equal(tokens_count(t), 13);
	tokens_copy(t, 0, 13, id);
	for (int i = 0; i < 13; i++)
		assert_int_equal(id[i], expected[i] == 1 ? 256 : expected[i]);
	tokens_close(t);
	dataset_free(&result);
	test_dir_remove(&d);
}

/* A long text in many spans and shards has the tokens of the whole. */
static void test_long_text_has_the_tokens_of_the_whole(void **state)
{
	struct test_dir d = test_dir_make();
	struct ids ids = { 0 };
	struct tokenizer *v;
	struct encoder *e;
	struct tokens *t;
	struct error err;
	size_t size;
	int32_t *id;
	char *text;

	(void)state;
	put_documents(&d, "in.txt", 200, 1000);
	must_run("train", test_path(&d, "in.txt"), test_path(&d, "out"), 0, 3);
	text = test_get(&d, "in.txt", &size);
	assert_true(size > 4 * SPAN_BYTES);
	assert_int_equal(tokenizer_open(test_path(&d, "out/vocab.bpe"), &v, &err), OK);
	assert_int_equal(encoder_new(v, &e, &err), OK);
	assert_int_equal(encode(e, (uint8_t *)text, size, &ids, &err), OK);
	assert_int_equal(tokens_open(test_path(&d, "out/train-*.bin"), 270, 1, &t, &err), OK);
	assert_int_equal(tokens_count(t), ids.count);
	assert_true(tokens_dataset(t)->split[SPLIT_TRAIN].shards > 100);
	id = malloc(ids.count * sizeof(*id));
	tokens_copy(t, 0, ids.count, id);
	for (size_t i = 0; i < ids.count; i++)
		assert_int_equal(id[i], ids.id[i]);
	free(id);
	free(text);
	ids_free(&ids);
	encoder_free(e);
	tokenizer_close(v);
	tokens_close(t);
	test_dir_remove(&d);
}

/* Killed at many moments, it leaves the earlier data unharmed, and the next run succeeds.
 */
static void test_killed_preparation_leaves_the_old_data(void **state)
{
	struct test_dir d = test_dir_make();
	struct error err;
	int killed = 0;

	(void)state;
	put_documents(&d, "small.jsonl", 20, 20);
	put_documents(&d, "big.jsonl", 3000, 100);
	must_run("bytes", test_path(&d, "small.jsonl"), test_path(&d, "small"), 0.1, 2);
	must_run("bytes", test_path(&d, "big.jsonl"), test_path(&d, "big"), 0.1, 2);
	for (int i = 0; i < 12; i++) {
		struct timespec wait = { 0, i * 8000000 };
		struct tokens *t;
		int status;
		pid_t child;

		must_run("bytes", test_path(&d, "small.jsonl"), test_path(&d, "out"), 0.1, 2);
		child = fork();
		if (child == 0) {
			/* A fresh program: OpenMP does not survive a fork. */
			execl("/proc/self/exe", "prepare_test", "prepare",
			      test_path(&d, "big.jsonl"), test_path(&d, "out"), NULL);
			_exit(127);
		}
		nanosleep(&wait, NULL);
		kill(child, SIGKILL);
		assert_int_equal(waitpid(child, &status, 0), child);
		killed += WIFSIGNALED(status) != 0;
		if (tokens_open(test_path(&d, "out/*.bin"), 257, 1, &t, &err))
			fail_msg("%s", err.text);
		tokens_close(t);
		assert_true(!same_directories(test_path(&d, "out"), test_path(&d, "small")) ||
			    !same_directories(test_path(&d, "out"), test_path(&d, "big")));
	}
	assert_true(killed > 0);
	must_run("bytes", test_path(&d, "big.jsonl"), test_path(&d, "out"), 0.1, 2);
	assert_int_equal(same_directories(test_path(&d, "out"), test_path(&d, "big")), 0);
	assert_int_equal(access(test_path(&d, "out.tmp"), F_OK), -1);
	test_dir_remove(&d);
}

static void expect_refusal(const char *tokenizer, const char *in_path, const char *out,
			   double share, const char *reason)
{
	struct dataset result;
	struct error err;

	if (!run_with(tokenizer, in_path, out, share, 2, &result, &err))
		fail_msg("prepared, though it should say \"%s\"", reason);
	assert_contains(err.text, reason);
}

static void test_refusals_leave_nothing(void **state)
{
	struct test_dir d = test_dir_make();
	const char *out = strdup(test_path(&d, "out"));

	(void)state;
	test_put_text(&d, "one.jsonl", "{\"text\": \"a\"}\n");
	expect_refusal("bytes", test_path(&d, "one.jsonl"), out, 0.1,
		       "nothing for the split \"valid\"");
	test_put_text(&d, "bad.jsonl", "{\"text\": \"a\"}\n{\"text\"");
	expect_refusal("bytes", test_path(&d, "bad.jsonl"), out, 0, "bad.jsonl:2: not a JSON");
	test_put_text(&d, "empty.txt", "");
	expect_refusal("bytes", test_path(&d, "empty.txt"), out, 0,
		       "nothing for the split \"train\"");
	test_put_text(&d, "text.txt", "abc");
	test_put_text(&d, "chars.json", "{\"characters\": [97, 98], \"end_of_text\": false}");
	expect_refusal(test_path(&d, "chars.json"), test_path(&d, "text.txt"), out, 0,
		       "text.txt, from byte 0: character U+0063 (c) at byte 2");
	test_put_text(&d, "two.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
	expect_refusal(test_path(&d, "chars.json"), test_path(&d, "two.jsonl"), out, 0,
		       "no end of text");
	expect_refusal("train", test_path(&d, "text.txt"), out, 0, "a vocabulary of 257 at most");
	expect_refusal("bytes", test_path(&d, "text.txt"), test_path(&d, "no/out"), 0,
		       "cannot create");
	assert_int_equal(access(out, F_OK), -1);
	assert_int_equal(access(test_path(&d, "out.tmp"), F_OK), -1);
	free((char *)out);
	test_dir_remove(&d);
}

/* A directory with other files is never replaced; an empty one is. */
static void test_strangers_are_kept(void **state)
{
	struct test_dir d = test_dir_make();
	const char *out = strdup(test_path(&d, "out"));

	(void)state;
	test_put_text(&d, "text.txt", "some text");
	assert_int_equal(mkdir(out, 0777), 0);
	must_run("bytes", test_path(&d, "text.txt"), out, 0, 1);
	test_put_text(&d, "out/thesis.tex", "years of work");
	expect_refusal("bytes", test_path(&d, "text.txt"), out, 0, "holds thesis.tex");
	assert_int_equal(access(test_path(&d, "out/thesis.tex"), F_OK), 0);
	expect_refusal("bytes", test_path(&d, "text.txt"), test_path(&d, "text.txt"), 0,
		       "is not a directory");
	free((char *)out);
	test_dir_remove(&d);
}

/* Nor is OUT.tmp emptied, except of what a preparation leaves there. */
static void test_strangers_in_the_new_directory_are_kept(void **state)
{
	static const char *const left[] = { "out.tmp/train-000000.bin", "out.tmp/valid-1000000.bin",
					    "out.tmp/vocab.bpe",	"out.tmp/vocab.bpe.tmp",
					    "out.tmp/characters.json",	"out.tmp/data.json.tmp" };
	static const char *const strange[] = { "notes.txt", "train.bin", "train-0.bin",
					       "train-000000.bin.gz", "vocab.bpe.old" };
	struct test_dir d = test_dir_make();
	char name[64];

	(void)state;
	test_put_text(&d, "text.txt", "some text");
	assert_int_equal(mkdir(test_path(&d, "out.tmp"), 0777), 0);
	for (size_t i = 0; i < sizeof(strange) / sizeof(*strange); i++) {
		snprintf(name, sizeof(name), "out.tmp/%s", strange[i]);
		test_put_text(&d, name, "years of work");
		snprintf(name, sizeof(name), "out.tmp holds %s", strange[i]);
		expect_refusal("bytes", test_path(&d, "text.txt"), test_path(&d, "out"), 0, name);
		snprintf(name, sizeof(name), "out.tmp/%s", strange[i]);
		assert_int_equal(unlink(test_path(&d, name)), 0);
	}
	for (size_t i = 0; i < sizeof(left) / sizeof(*left); i++)
		test_put_text(&d, left[i], "half");
	must_run("bytes", test_path(&d, "text.txt"), test_path(&d, "out"), 0, 1);
	assert_int_equal(access(test_path(&d, "out.tmp"), F_OK), -1);
	test_dir_remove(&d);
}

/* A file that comes while the preparation runs. */
static void test_late_strangers_are_kept(void **state)
{
	struct test_dir d = test_dir_make();
	struct output_dir out;
	struct error err;

	(void)state;
	assert_int_equal(mkdir(test_path(&d, "out"), 0777), 0);
	assert_int_equal(output_dir_start(&out, test_path(&d, "out"), &err), OK);
	test_put_text(&d, "out/thesis.tex", "years of work");
	assert_int_equal(output_dir_commit(&out, &err), FAIL);
	assert_contains(err.text, "holds thesis.tex");
	output_dir_end(&out);
	assert_int_equal(access(test_path(&d, "out/thesis.tex"), F_OK), 0);
	assert_int_equal(access(test_path(&d, "out.tmp"), F_OK), -1);
	test_dir_remove(&d);
}

static void test_two_at_once(void **state)
{
	struct test_dir d = test_dir_make();
	int lock;

	(void)state;
	test_put_text(&d, "text.txt", "some text");
	assert_int_equal(mkdir(test_path(&d, "out.tmp"), 0777), 0);
	lock = open(test_path(&d, "out.tmp"), O_RDONLY | O_DIRECTORY);
	assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
	expect_refusal("bytes", test_path(&d, "text.txt"), test_path(&d, "out"), 0,
		       "another process");
	close(lock);
	must_run("bytes", test_path(&d, "text.txt"), test_path(&d, "out"), 0, 1);
	test_dir_remove(&d);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_threads_change_nothing),
		cmocka_unit_test(test_documents_come_back),
		cmocka_unit_test(test_long_text_has_the_tokens_of_the_whole),
		cmocka_unit_test(test_killed_preparation_leaves_the_old_data),
		cmocka_unit_test(test_refusals_leave_nothing),
		cmocka_unit_test(test_strangers_are_kept),
		cmocka_unit_test(test_strangers_in_the_new_directory_are_kept),
		cmocka_unit_test(test_late_strangers_are_kept),
		cmocka_unit_test(test_two_at_once),
	};
	struct dataset result;
	struct error err;

	if (argc == 4 && !strcmp(argv[1], "prepare"))
		return run_with("bytes", argv[2], argv[3], 0.1, 2, &result, &err) ? 1 : 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
