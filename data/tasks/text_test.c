/* Tests of the text task: windows of files that the test writes. */
#include <dirent.h>
#include <math.h>
#include <unistd.h>

#include "data/dataset.h"
#include "data/tasks/fixture.h"
#include "data/tokens.h"
#include "data/windows.h"

#define T 16
#define TRAIN_TOKENS 1000
#define VALID_TOKENS 500 /* 31 rows of 16 */

struct files {
	char directory[256];
	char symbols[1024];
};

static uint16_t id_at(int split, int place)
{
	return (uint16_t)((place * 7 + place / 13 + split) % 250);
}

static void make_path(const struct files *f, const char *name, char path[512])
{
	snprintf(path, 512, "%s/%s", f->directory, name);
}

static void write_raw(const struct files *f, const char *name, int split, int count)
{
	char path[512];
	FILE *file;

	make_path(f, name, path);
	file = fopen(path, "wb");
	assert_non_null(file);
	for (int i = 0; i < count; i++) {
		uint16_t id = id_at(split, i);

		assert_int_equal(fwrite(&id, sizeof(id), 1, file), 1);
	}
	assert_int_equal(fclose(file), 0);
}

/* Raw files as nanoGPT writes them. */
static void make_files(struct files *f)
{
	test_template(f->directory, sizeof(f->directory), "text");
	assert_non_null(mkdtemp(f->directory));
	write_raw(f, "train.bin", 0, TRAIN_TOKENS);
	write_raw(f, "valid.bin", 1, VALID_TOKENS);
}

static const char *symbols(struct files *f, int vocab)
{
	snprintf(f->symbols, sizeof(f->symbols),
		 "CONFIG_DATA_TRAIN=\"%s/train*.bin\"\nCONFIG_DATA_VALID=\"%s/valid*.bin\"\n"
		 "CONFIG_MODEL_VOCAB=%d\nCONFIG_DATA_ONCE=n\n",
		 f->directory, f->directory, vocab);
	return f->symbols;
}

static void empty(const struct files *f)
{
	DIR *directory = opendir(f->directory);
	struct dirent *entry;

	assert_non_null(directory);
	while ((entry = readdir(directory)))
		if (entry->d_name[0] != '.')
			assert_int_equal(unlinkat(dirfd(directory), entry->d_name, 0), 0);
	closedir(directory);
}

static void remove_files(const struct files *f)
{
	empty(f);
	assert_int_equal(rmdir(f->directory), 0);
}

static void open_text(struct fixture *f, const char *text)
{
	struct error err;

	assert_int_equal(config_parse(&f->config, text, &err), OK);
	if (source_open(&f->source, f->config, 1, &err))
		fail_msg("%s", err.text);
	f->row = (struct row){ .tokens = malloc(T * sizeof(int32_t)),
			       .targets = malloc(T * sizeof(int32_t)) };
	assert_true(f->row.tokens && f->row.targets);
}

static void open_rows(struct fixture *f, struct files *files, const char *rows)
{
	char text[2048];

	snprintf(text, sizeof(text),
		 "CONFIG_TASK=\"text\"\nCONFIG_MODEL_BLOCK=%d\nCONFIG_EVAL_ROWS=%s\n%s", T, rows,
		 symbols(files, 250));
	open_text(f, text);
}

/* The place of the row in the split; the row must hold the tokens of that place. */
static int place_of(const struct row *row, int split, int count)
{
	for (int start = 0; start + T < count; start++) {
		int same = 0;

		while (same < T && row->tokens[same] == id_at(split, start + same) &&
		       row->targets[same] == id_at(split, start + same + 1))
			same++;
		if (same == T)
			return start;
	}
	fail_msg("no such window");
	return -1;
}

static void test_training_windows(void **state)
{
	struct files files;
	struct fixture f;
	int different = 0, last = -1;

	(void)state;
	make_files(&files);
	open_rows(&f, &files, "8");
	assert_int_equal(f.source.vocab, 250);
	for (uint64_t i = 0; i < 50; i++) {
		int place, again;

		source_train(&f.source, i, 3, &f.row);
		place = place_of(&f.row, 0, TRAIN_TOKENS);
		source_train(&f.source, i, 3, &f.row);
		again = place_of(&f.row, 0, TRAIN_TOKENS);
		assert_int_equal(place, again);
		different += place != last;
		last = place;
	}
	assert_true(different > 40);
	fixture_close(&f);
	remove_files(&files);
}

/* With DATA_ONCE the 62 windows of 16 tokens come once in the first 62 rows: 10 updates of 6 rows,
 * and two. */
static void test_no_window_twice(void **state)
{
	enum { ROWS = 6, PLACES = (TRAIN_TOKENS - 1) / T };
	int seen[TRAIN_TOKENS] = { 0 }, later = 0;
	struct files files;
	struct fixture f;
	char text[2048];

	(void)state;
	make_files(&files);
	snprintf(text, sizeof(text),
		 "CONFIG_TASK=\"text\"\nCONFIG_MODEL_BLOCK=%d\nCONFIG_EVAL_ROWS=8\n"
		 "CONFIG_TRAIN_BATCH=2\nCONFIG_TRAIN_ACCUMULATE=3\nCONFIG_MODEL_VOCAB=250\n"
		 "CONFIG_DATA_TRAIN=\"%s/train*.bin\"\nCONFIG_DATA_VALID=\"%s/valid*.bin\"\n"
		 "CONFIG_DATA_ONCE=y\n",
		 T, files.directory, files.directory);
	open_text(&f, text);
	for (uint64_t n = 0; n < 2 * PLACES; n++) {
		int place;

		source_train(&f.source, 1 + n / ROWS, n % ROWS, &f.row);
		place = place_of(&f.row, 0, TRAIN_TOKENS);
		if (n < PLACES)
			for (int t = 0; t < T; t++)
				assert_int_equal(seen[place + t]++, 0);
		else
			later += seen[place];
	}
	assert_true(later > 0); /* all were drawn: again, in the second round */
	fixture_close(&f);
	remove_files(&files);
}

/* All 31 rows, disjoint; or 8 of them, evenly spread. */
static void test_validation_windows(void **state)
{
	struct files files;
	struct fixture f;

	(void)state;
	make_files(&files);
	open_rows(&f, &files, "0");
	assert_int_equal(f.source.valid_rows, 31);
	for (uint64_t i = 0; i < 31; i++) {
		source_valid(&f.source, i, &f.row);
		for (int t = 0; t < T; t++)
			assert_int_equal(f.row.targets[t], id_at(1, (int)i * T + t + 1));
	}
	expect_near(f.source.bytes_per_token, 0.0, 0.0);
	assert_true(f.source.chance > 3.0 && f.source.chance < log(250.0));
	fixture_close(&f);

	open_rows(&f, &files, "8");
	assert_int_equal(f.source.valid_rows, 8);
	source_valid(&f.source, 7, &f.row);
	assert_int_equal(f.row.tokens[0], id_at(1, 7 * 31 / 8 * T));
	fixture_close(&f);
	remove_files(&files);
}

static void test_refusals(void **state)
{
	struct files files;

	(void)state;
	make_files(&files);
	fixture_refuses("text", T, symbols(&files, 250), "EVAL_ROWS=64: the files hold 31 rows");
	fixture_refuses("text", T, symbols(&files, 0), "MODEL_VOCAB=0");
	fixture_refuses("text", T, symbols(&files, 249), "beyond the vocabulary of 249");
	fixture_refuses("text", T, symbols(&files, 65536), "MODEL_VOCAB=65536: must be 0 to 65535");
	fixture_refuses("text", 600, symbols(&files, 250), "too short");
	remove_files(&files);
	fixture_refuses("text", T, symbols(&files, 250), "`make data`");
}

/* Prepared data: the side file names the vocabulary, the tokenizer counts bytes (one per token).
 */
static void write_prepared(const struct files *f, struct dataset *d)
{
	uint16_t ids[TRAIN_TOKENS];
	struct error err;

	for (int split = 0; split < 2; split++) {
		int count = split ? VALID_TOKENS : TRAIN_TOKENS;
		struct split_info *info = &d->split[split ? SPLIT_VALID : SPLIT_TRAIN];
		struct token_writer *w;

		for (int i = 0; i < count; i++)
			ids[i] = id_at(split, i);
		assert_int_equal(
			token_writer_new(f->directory, split ? "valid" : "train", 1000, &w, &err),
			OK);
		assert_int_equal(token_writer_add(w, ids, (size_t)count, info, &err), OK);
		assert_int_equal(token_writer_finish(w, info, &err), OK);
		token_writer_free(w);
		info->documents = 1;
		info->bytes = info->tokens = (uint64_t)count;
	}
	assert_int_equal(dataset_write(d, f->directory, &err), OK);
}

static void test_prepared_data(void **state)
{
	struct dataset d = { .tokenizer = "bytes",
			     .vocabulary = 257,
			     .end_of_text = -1,
			     .divided = true,
			     .valid_share = 0.1,
			     .source_files = 1 };
	struct files files;
	struct fixture f;
	char hash[SHA256_HEX_SIZE];

	(void)state;
	memset(d.source_sha256, '0', sizeof(d.source_sha256) - 1);
	make_files(&files);
	open_rows(&f, &files, "8");
	memcpy(hash, f.source.hash, sizeof(hash));
	fixture_close(&f);
	remove_files(&files);

	make_files(&files);
	empty(&files);
	write_prepared(&files, &d);
	fixture_refuses("text", T, symbols(&files, 250),
			"a vocabulary of 257, the model one of 250");
	fixture_open(&f, "text", 4, symbols(&files, 0), 1);
	assert_int_equal(f.source.vocab, 257);
	expect_near(f.source.bytes_per_token, 1.0, 0.0);
	assert_string_equal(f.source.hash, hash);
	fixture_close(&f);
	remove_files(&files);
	dataset_free(&d);
}

/* A row that lies in two components says of each target in which. */
static void test_components(void **state)
{
	struct dataset d = {
		.tokenizer = "bytes",
		.vocabulary = 257,
		.end_of_text = -1,
		.source_files = 2,
		.component = { { "code", { 600, 300 } }, { "prose", { 400, 200 } } },
		.components = 2,
	};
	enum { LENGTH = 4 }; /* the fixture evaluates 64 rows */
	int32_t tokens[LENGTH], targets[LENGTH];
	uint8_t component[LENGTH];
	struct row row = { tokens, targets, component, NULL };
	struct files files;
	struct fixture f;
	int of_code = 0;

	(void)state;
	memset(d.source_sha256, '0', sizeof(d.source_sha256) - 1);
	make_files(&files);
	empty(&files);
	write_prepared(&files, &d);
	fixture_open(&f, "text", LENGTH, symbols(&files, 0), 1);
	assert_string_equal(f.source.components[0], "code");
	assert_string_equal(f.source.components[1], "prose");
	assert_null(f.source.components[2]);
	assert_true(isfinite(f.source.component_chance[1]) &&
		    f.source.component_chance[1] < f.source.chance + 1);
	for (uint64_t i = 0; i < f.source.valid_rows; i++) {
		uint64_t start = window_valid_start(i, f.source.valid_rows, VALID_TOKENS, LENGTH);

		source_valid(&f.source, i, &row);
		for (uint64_t t = 0; t < LENGTH; t++) {
			assert_int_equal(component[t], start + t + 1 >= 300);
			of_code += component[t] == 0;
		}
	}
	assert_in_range(of_code, 1, f.source.valid_rows * LENGTH - 1);
	fixture_close(&f);
	remove_files(&files);
	dataset_free(&d);
}

/* Training ids must lie in the vocabulary that the side file gives the model. */
static void test_prepared_ids_beyond_the_vocabulary(void **state)
{
	struct dataset d = { .tokenizer = "bytes", .vocabulary = 249, .end_of_text = -1 };
	struct files files;

	(void)state;
	make_files(&files);
	empty(&files);
	write_prepared(&files, &d);
	fixture_refuses("text", T, symbols(&files, 0), "train-000000.bin: token ");
	fixture_refuses("text", T, symbols(&files, 0), "is 249, beyond the vocabulary of 249");
	remove_files(&files);
	dataset_free(&d);
}

/* Bytes and the end of text make 257: this side file has another vocabulary. */
static void test_another_vocabulary(void **state)
{
	struct dataset d = { .tokenizer = "bytes", .vocabulary = 300, .end_of_text = -1 };
	struct files files;

	(void)state;
	make_files(&files);
	empty(&files);
	write_prepared(&files, &d);
	fixture_refuses("text", 4, symbols(&files, 0), "257 tokens, but data.json says 300");
	remove_files(&files);
	dataset_free(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_training_windows),
		cmocka_unit_test(test_no_window_twice),
		cmocka_unit_test(test_validation_windows),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_prepared_data),
		cmocka_unit_test(test_components),
		cmocka_unit_test(test_prepared_ids_beyond_the_vocabulary),
		cmocka_unit_test(test_another_vocabulary),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
