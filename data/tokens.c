#define _GNU_SOURCE /* asprintf() */
#include "data/tokens.h"

#include <assert.h>
#include <errno.h>
#include <fnmatch.h>
#include <glob.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/util/file.h"
#include "data/tokenizer/tokenizer.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are used as they lie there");

/* The header of llm.c (dev/data/data_common.py). */
enum { HEADER_WORDS = 256, HEADER_BYTES = 4 * HEADER_WORDS, MAGIC = 20240520, VERSION = 1 };

struct shard {
	struct mapping file;
	const uint16_t *id;
	uint64_t first, count; /* its place in the stream */
	char sha256[SHA256_HEX_SIZE];
	struct error err; /* why it is refused, if it is */
	enum status status;
};

struct tokens {
	struct shard *shard;
	size_t shards;
	uint64_t count;
	char *directory;
	struct dataset dataset;
	bool has_dataset;
	char hash[SHA256_HEX_SIZE];
};

/* ---------------------------------------------------------------- one file */

static bool looks_like_header(const int32_t *word)
{
	for (int i = 3; i < HEADER_WORDS; i++)
		if (word[i])
			return false;
	return true;
}

static enum status parse_header(const int32_t *word, size_t size, uint64_t *count,
				struct error *err)
{
	if (word[0] != MAGIC)
		return fail(err, "wrong magic number %d: token shards start with %d", word[0],
			    MAGIC);
	if (word[1] != VERSION)
		return fail(err, "version %d of the shard format, not %d", word[1], VERSION);
	if (word[2] < 0 || (size - HEADER_BYTES) != 2 * (size_t)word[2])
		return fail(err, "wrong size: the header promises %d tokens, %zu bytes follow it",
			    word[2], size - HEADER_BYTES);
	*count = (uint64_t)word[2];
	return OK;
}

enum status tokens_parse(const uint8_t *data, size_t size, const struct shard_info *listed,
			 const uint16_t **id, uint64_t *count, struct error *err)
{
	int32_t word[HEADER_WORDS] = { 0 };

	if (size == 0)
		return fail(err, "the file is empty");
	memcpy(word, data, size < HEADER_BYTES ? size : HEADER_BYTES);
	if (size >= 4 && size < HEADER_BYTES && word[0] == MAGIC)
		return fail(err, "too short: %zu bytes do not hold the header", size);
	if (size >= HEADER_BYTES && (listed || word[0] == MAGIC || looks_like_header(word))) {
		if (parse_header(word, size, count, err))
			return FAIL;
		data += HEADER_BYTES;
	} else if (listed) {
		return fail(err, "too short: %zu bytes do not hold the header", size);
	} else if (size % 2) {
		return fail(err, "wrong size: %zu bytes are not a whole number of 16-bit tokens",
			    size);
	} else {
		*count = size / 2;
	}
	if (listed && listed->tokens != *count)
		return fail(err, "%" PRIu64 " tokens, but " DATASET_FILE " lists %" PRIu64, *count,
			    listed->tokens);
	*id = (const uint16_t *)data;
	return OK;
}

static enum status check_ids(const uint16_t *id, uint64_t count, uint32_t vocabulary,
			     struct error *err)
{
	uint16_t most = 0;

	for (uint64_t i = 0; i < count; i++)
		most = id[i] > most ? id[i] : most;
	if (most < vocabulary)
		return OK;
	for (uint64_t i = 0; i < count; i++)
		if (id[i] >= vocabulary)
			return fail(err, "token %" PRIu64 " is %d, beyond the vocabulary of %u", i,
				    id[i], vocabulary);
	return OK;
}

static enum status check_shard(struct shard *s, const struct shard_info *listed,
			       uint32_t vocabulary, struct error *err)
{
	struct sha256 hash;

	sha256_init(&hash);
	sha256_add(&hash, s->id, s->count * sizeof(*s->id));
	sha256_hex(&hash, s->sha256);
	if (listed && strcmp(listed->sha256, s->sha256))
		return fail(
			err,
			"changed since it was prepared: its hash is not the one in " DATASET_FILE);
	return check_ids(s->id, s->count, vocabulary, err);
}

/* What follows a path's last slash. */
static const char *name_in(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static enum status open_shard(struct shard *s, const char *path, const struct dataset *dataset,
			      uint32_t vocabulary, struct error *err)
{
	const struct shard_info *listed = NULL;

	if (dataset) {
		listed = dataset_find(dataset, name_in(path));
		if (!listed)
			return fail(err, "%s is not listed in the " DATASET_FILE " beside it",
				    path);
	}
	if (file_map(path, &s->file, err))
		return FAIL;
	if (tokens_parse(s->file.data, s->file.size, listed, &s->id, &s->count, err) ||
	    check_shard(s, listed, vocabulary, err))
		return fail_prefix(err, "%s", path);
	return OK;
}

/* ---------------------------------------------------------------- all files of a pattern */

static enum status open_shards(struct tokens *t, char **path, uint32_t vocabulary,
			       struct error *err)
{
	const struct dataset *dataset = tokens_dataset(t);
	struct sha256 hash;

	/* A model without a vocabulary takes that of the data: no id may be beyond it. */
	if (dataset && dataset->vocabulary < vocabulary)
		vocabulary = dataset->vocabulary;
#pragma omp parallel for schedule(static, 1)
	for (size_t i = 0; i < t->shards; i++)
		t->shard[i].status =
			open_shard(&t->shard[i], path[i], dataset, vocabulary, &t->shard[i].err);
	sha256_init(&hash);
	for (size_t i = 0; i < t->shards; i++) {
		if (t->shard[i].status) {
			*err = t->shard[i].err;
			return FAIL;
		}
		t->shard[i].first = t->count;
		t->count += t->shard[i].count;
		sha256_add(&hash, t->shard[i].sha256, SHA256_HEX_SIZE - 1);
	}
	sha256_hex(&hash, t->hash);
	return OK;
}

/* One side file describes all shards, so they must lie beside it. */
static enum status check_directory(const glob_t *found, const char *pattern, struct error *err)
{
	const char *first = found->gl_pathv[0];
	size_t length = (size_t)(name_in(first) - first);

	for (size_t i = 1; i < found->gl_pathc; i++) {
		const char *path = found->gl_pathv[i];

		if ((size_t)(name_in(path) - path) != length || memcmp(path, first, length))
			return fail(err,
				    "%s matches files in several directories, %s and %s: "
				    "name those of one",
				    pattern, first, path);
	}
	return OK;
}

/*
 * Every listed shard that the pattern matches must exist.  The directory is known, so only names
 * are compared: the pattern may double a slash, the directory does not.
 */
static enum status check_complete(const struct tokens *t, const char *pattern, struct error *err)
{
	const char *names = name_in(pattern);

	for (int s = 0; s < SPLITS; s++) {
		for (size_t i = 0; i < t->dataset.split[s].shards; i++) {
			const char *file = t->dataset.split[s].shard[i].file;
			char *path;
			bool missing;

			if (asprintf(&path, "%s/%s", t->directory, file) < 0)
				return fail_memory(err, file, strlen(file));
			missing = !fnmatch(names, file, FNM_PERIOD) && access(path, F_OK);
			free(path);
			if (missing)
				return fail(err,
					    "%s/%s is missing, though " DATASET_FILE " lists it",
					    t->directory, file);
		}
	}
	return OK;
}

static enum status read_dataset(struct tokens *t, const char *path, const char *pattern,
				uint32_t vocabulary, struct error *err)
{
	char *copy = strdup(path), *side = NULL;
	enum status status = OK;

	t->directory = copy ? strdup(dirname(copy)) : NULL;
	free(copy);
	if (!t->directory || asprintf(&side, "%s/%s", t->directory, DATASET_FILE) < 0)
		return fail_memory(err, path, strlen(path));
	if (access(side, F_OK) == 0 || errno != ENOENT) {
		status = dataset_read(t->directory, &t->dataset, err);
		t->has_dataset = !status;
	}
	if (t->has_dataset && t->dataset.vocabulary > vocabulary)
		status = fail(err, "%s: the data has a vocabulary of %u, the model one of %u", side,
			      t->dataset.vocabulary, vocabulary);
	if (!status && t->has_dataset)
		status = check_complete(t, pattern, err);
	free(side);
	return status;
}

static enum status open_paths(struct tokens *t, const glob_t *found, const char *pattern,
			      uint32_t vocabulary, uint64_t least, struct error *err)
{
	t->shards = found->gl_pathc;
	t->shard = calloc(t->shards, sizeof(*t->shard));
	if (!t->shard)
		return fail_memory(err, pattern, t->shards * sizeof(*t->shard));
	if (check_directory(found, pattern, err) ||
	    read_dataset(t, found->gl_pathv[0], pattern, vocabulary, err) ||
	    open_shards(t, found->gl_pathv, vocabulary, err))
		return FAIL;
	if (t->count < least)
		return fail(err,
			    "%s: too short: %" PRIu64 " tokens, at least %" PRIu64 " are needed",
			    pattern, t->count, least);
	return OK;
}

static enum status find_and_open(struct tokens *t, const char *pattern, uint32_t vocabulary,
				 uint64_t least, struct error *err)
{
	enum status status;
	glob_t found;

	switch (glob(pattern, GLOB_ERR, NULL, &found)) {
	case 0:
		status = open_paths(t, &found, pattern, vocabulary, least, err);
		break;
	case GLOB_NOMATCH:
		status = fail(err, "no file matches %s", pattern);
		break;
	default:
		status = fail_errno(err, "cannot look for %s", pattern);
	}
	globfree(&found);
	return status;
}

enum status tokens_open(const char *pattern, uint32_t vocabulary, uint64_t least, struct tokens **t,
			struct error *err)
{
	struct tokens *new;

	if (vocabulary == 0 || vocabulary > TOKENIZER_MAX_VOCABULARY)
		return fail(err, "a vocabulary has 1 to %d ids, not %u: token files hold 16 bits",
			    TOKENIZER_MAX_VOCABULARY, vocabulary);
	new = calloc(1, sizeof(*new));
	if (!new)
		return fail_memory(err, pattern, sizeof(*new));
	if (find_and_open(new, pattern, vocabulary, least, err)) {
		size_t used = strlen(err->text);

		snprintf(err->text + used, sizeof(err->text) - used, "; %s", DATASET_REMEDY);
		tokens_close(new);
		return FAIL;
	}
	*t = new;
	return OK;
}

void tokens_close(struct tokens *t)
{
	if (!t)
		return;
	for (size_t i = 0; t->shard && i < t->shards; i++)
		file_unmap(&t->shard[i].file);
	free(t->shard);
	free(t->directory);
	dataset_free(&t->dataset);
	free(t);
}

uint64_t tokens_count(const struct tokens *t)
{
	return t->count;
}

const char *tokens_hash(const struct tokens *t)
{
	return t->hash;
}

const struct dataset *tokens_dataset(const struct tokens *t)
{
	return t->has_dataset ? &t->dataset : NULL;
}

const char *tokens_directory(const struct tokens *t)
{
	return t->directory;
}

/* The last shard that starts at or before a place. */
static const struct shard *shard_at(const struct tokens *t, uint64_t place)
{
	size_t low = 0, high = t->shards;

	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;

		if (t->shard[middle].first <= place)
			low = middle;
		else
			high = middle;
	}
	return &t->shard[low];
}

void tokens_copy(const struct tokens *t, uint64_t start, size_t n, int32_t *out)
{
	assert(start <= t->count && n <= t->count - start);
	for (const struct shard *s = shard_at(t, start); n > 0; s++) {
		uint64_t at = start - s->first;
		size_t here = s->count - at < n ? (size_t)(s->count - at) : n;

		for (size_t i = 0; i < here; i++)
			*out++ = s->id[at + i];
		start += here;
		n -= here;
	}
}

/* ---------------------------------------------------------------- the writer */

struct token_writer {
	const char *directory, *split;
	uint64_t limit;
	FILE *file; /* of the shard being written */
	char *path;
	struct sha256 hash;
	struct shard_info shard;
};

enum status token_writer_new(const char *directory, const char *split, uint64_t limit,
			     struct token_writer **w, struct error *err)
{
	struct token_writer *new;

	/* The header counts in an int32. */
	if (limit == 0 || limit > INT32_MAX)
		return fail(err, "a shard has 1 to %d tokens, not %" PRIu64, INT32_MAX, limit);
	new = calloc(1, sizeof(*new));
	if (!new)
		return fail_memory(err, "token writer", sizeof(*new));
	new->directory = directory;
	new->split = split;
	new->limit = limit;
	*w = new;
	return OK;
}

static enum status write_header(struct token_writer *w, struct error *err)
{
	int32_t word[HEADER_WORDS] = { MAGIC, VERSION, (int32_t)w->shard.tokens };

	if (fseek(w->file, 0, SEEK_SET) || fwrite(word, HEADER_BYTES, 1, w->file) != 1)
		return fail_errno(err, "cannot write %s", w->path);
	return OK;
}

static enum status start_shard(struct token_writer *w, size_t number, struct error *err)
{
	w->shard.tokens = 0;
	sha256_init(&w->hash);
	snprintf(w->shard.file, sizeof(w->shard.file), "%s-%06zu.bin", w->split, number);
	if (asprintf(&w->path, "%s/%s", w->directory, w->shard.file) < 0) {
		w->path = NULL;
		return fail_memory(err, w->shard.file, strlen(w->directory));
	}
	w->file = fopen(w->path, "wb");
	if (!w->file)
		return fail_errno(err, "cannot create %s", w->path);
	return write_header(w, err);
}

static enum status finish_shard(struct token_writer *w, struct split_info *split, struct error *err)
{
	if (write_header(w, err))
		return FAIL;
	if (fflush(w->file) || fsync(fileno(w->file)))
		return fail_errno(err, "cannot write %s", w->path);
	fclose(w->file);
	free(w->path);
	w->file = NULL;
	w->path = NULL;
	sha256_hex(&w->hash, w->shard.sha256);
	return split_add_shard(split, &w->shard, err);
}

enum status token_writer_add(struct token_writer *w, const uint16_t *id, size_t count,
			     struct split_info *split, struct error *err)
{
	while (count > 0) {
		size_t here;

		if (!w->file && start_shard(w, split->shards, err))
			return FAIL;
		here = w->limit - w->shard.tokens < count ? w->limit - w->shard.tokens : count;
		if (fwrite(id, sizeof(*id), here, w->file) != here)
			return fail_errno(err, "cannot write %s", w->path);
		sha256_add(&w->hash, id, here * sizeof(*id));
		w->shard.tokens += here;
		split->tokens += here;
		id += here;
		count -= here;
		if (w->shard.tokens == w->limit && finish_shard(w, split, err))
			return FAIL;
	}
	return OK;
}

enum status token_writer_finish(struct token_writer *w, struct split_info *split, struct error *err)
{
	return w->file ? finish_shard(w, split, err) : OK;
}

void token_writer_free(struct token_writer *w)
{
	if (!w)
		return;
	if (w->file)
		fclose(w->file);
	free(w->path);
	free(w);
}
