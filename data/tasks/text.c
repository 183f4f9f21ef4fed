/*
 * text - windows of token files (data/tokens.h, data/windows.h).
 *
 * A training window is drawn for each (seed, iteration, row); with DATA_ONCE
 * none is drawn twice before all of them were.  There are
 * EVAL_ROWS evenly spread validation windows, or all with EVAL_ROWS=0.  Every
 * next token is a target.  If a side file names the tokenizer, the bytes of the
 * validation targets are counted: bits per byte = loss / (ln 2 bytes per token).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/source.h"
#include "data/tasks/guess.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokens.h"
#include "data/windows.h"

struct text {
	struct tokens *train, *valid;
	const char *component[DATASET_COMPONENTS + 1]; /* their names; ends with NULL */
	uint64_t component_end[DATASET_COMPONENTS];    /* of each in the validation tokens */
	uint64_t once; /* rows of an update; 0: windows may repeat */
};

static void fill(const struct source *s, const struct tokens *tokens, uint64_t start,
		 struct row *out)
{
	tokens_copy(tokens, start, (size_t)s->length, out->tokens);
	tokens_copy(tokens, start + 1, (size_t)s->length, out->targets);
}

static void text_train(const struct source *s, uint64_t iteration, uint64_t row, struct row *out)
{
	const struct text *x = s->state;
	const struct rng_key key = rng_key(s->seed, "data/train/text");
	const uint64_t count = tokens_count(x->train), T = (uint64_t)s->length;
	const uint64_t before = iteration ? iteration - 1 : 0; /* updates; the first is 1 */

	fill(s, x->train,
	     x->once ? window_once_start(key, before * x->once + row, count, T)
		     : window_train_start(key, iteration, row, count, T),
	     out);
}

static void fill_components(const struct source *s, uint64_t start, uint8_t *component)
{
	const struct text *x = s->state;
	uint8_t now = 0;

	for (int64_t t = 0; t < s->length; t++) {
		while (start + (uint64_t)t + 1 >= x->component_end[now])
			now++;
		component[t] = now;
	}
}

static void text_valid(const struct source *s, uint64_t index, struct row *out)
{
	const struct text *x = s->state;
	uint64_t start = window_valid_start(index, s->valid_rows, tokens_count(x->valid),
					    (uint64_t)s->length);

	fill(s, x->valid, start, out);
	if (s->components && out->component)
		fill_components(s, start, out->component);
}

static uint64_t text_stream_length(const struct source *s)
{
	const struct text *x = s->state;

	return tokens_count(x->train);
}

static void text_stream(const struct source *s, uint64_t start, size_t count, int32_t *tokens)
{
	const struct text *x = s->state;

	tokens_copy(x->train, start, count, tokens);
}

/* ---------------------------------------------------------------- what the validation rows hold */

static enum status open_tokenizer(const struct tokens *tokens, struct tokenizer **tokenizer,
				  struct error *err)
{
	const struct dataset *d = tokens_dataset(tokens);
	char path[4096];

	if (!d->tokenizer_file[0])
		return tokenizer_open(d->tokenizer, tokenizer, err);
	if (snprintf(path, sizeof(path), "%s/%s", tokens_directory(tokens), d->tokenizer_file) >=
	    (int)sizeof(path))
		return fail(err, "%s: the path is too long", tokens_directory(tokens));
	return tokenizer_open(path, tokenizer, err);
}

static enum status measure_bytes(struct source *s, const uint64_t *counts, struct error *err)
{
	const struct text *x = s->state;
	struct tokenizer *tokenizer;
	double bytes = 0.0, targets = (double)s->valid_rows * (double)s->length;
	int64_t known;

	if (open_tokenizer(x->valid, &tokenizer, err))
		return FAIL;
	known = tokenizer_vocabulary(tokenizer);
	for (int64_t id = 0; id < s->vocab && id < known; id++)
		bytes += (double)counts[id] * (double)tokenizer_bytes(tokenizer, (uint32_t)id);
	s->bytes_per_token = bytes / targets;
	tokenizer_close(tokenizer);
	if (known != tokens_dataset(x->valid)->vocabulary)
		return fail(err,
			    "%s: its vocabulary has %lld tokens, but " DATASET_FILE
			    " says %u: it is not the one that made these files",
			    tokens_directory(x->valid), (long long)known,
			    tokens_dataset(x->valid)->vocabulary);
	return OK;
}

static enum status measure(struct source *s, struct error *err)
{
	const struct text *x = s->state;
	const struct dataset *d = tokens_dataset(x->valid);
	size_t vocab = (size_t)s->vocab, length = (size_t)s->length;
	size_t parts = d && s->components ? d->components : 0;
	size_t size = (parts + 1) * vocab * sizeof(uint64_t) + length * (2 * sizeof(int32_t) + 1);
	uint64_t *counts = calloc(1, size), *part;
	struct row row = { 0 };
	enum status status = OK;

	if (!counts)
		return fail_memory(err, "text", size);
	part = counts + vocab;
	row.tokens = (int32_t *)(part + parts * vocab);
	row.targets = row.tokens + length;
	row.component = (uint8_t *)(row.targets + length);
	for (uint64_t i = 0; i < s->valid_rows; i++) {
		text_valid(s, i, &row);
		for (size_t t = 0; t < length; t++)
			counts[row.targets[t]]++;
		for (size_t t = 0; t < length && parts; t++)
			part[row.component[t] * vocab + (size_t)row.targets[t]]++;
	}
	s->chance = guess_loss(counts, vocab);
	for (size_t i = 0; i < parts; i++)
		s->component_chance[i] = guess_loss(part + i * vocab, vocab);
	if (d)
		status = measure_bytes(s, counts, err);
	free(counts);
	return status;
}

/* ---------------------------------------------------------------- opening */

/* MODEL_VOCAB, or the vocabulary of the side file. */
static enum status choose_vocab(struct source *s, int64_t model_vocab, struct error *err)
{
	const struct text *x = s->state;
	const struct dataset *d = tokens_dataset(x->train);

	if (!model_vocab && !d)
		return fail(err, "MODEL_VOCAB=0: token files without " DATASET_FILE
				 " do not name their vocabulary, so it must be given");
	s->vocab = model_vocab ? model_vocab : d->vocabulary;
	return OK;
}

static enum status choose_rows(struct source *s, struct error *err)
{
	const struct text *x = s->state;
	uint64_t most = window_valid_number(tokens_count(x->valid), (uint64_t)s->length);

	if (s->valid_rows > most)
		return fail(err, "EVAL_ROWS=%llu: the files hold %llu rows; 0 takes all",
			    (unsigned long long)s->valid_rows, (unsigned long long)most);
	if (!s->valid_rows)
		s->valid_rows = most;
	return OK;
}

static void identify(struct source *s)
{
	const struct text *x = s->state;
	struct sha256 sha;

	sha256_init(&sha);
	sha256_add(&sha, tokens_hash(x->train), SHA256_HEX_SIZE);
	sha256_add(&sha, tokens_hash(x->valid), SHA256_HEX_SIZE);
	sha256_hex(&sha, s->hash);
}

/* The components of the validation files, if the pattern names all of them. */
static void find_components(struct source *s)
{
	struct text *x = s->state;
	const struct dataset *d = tokens_dataset(x->valid);
	uint64_t end = 0;

	if (!d || d->components < 2 || d->split[SPLIT_VALID].tokens != tokens_count(x->valid))
		return;
	for (size_t i = 0; i < d->components; i++) {
		end += d->component[i].tokens[SPLIT_VALID];
		x->component[i] = d->component[i].name;
		x->component_end[i] = end;
	}
	s->components = x->component;
}

static enum status text_open(struct source *s, struct config *c, struct error *err)
{
	struct text *x = calloc(1, sizeof(*x));
	const char *train = config_text(c, "DATA_TRAIN"), *valid = config_text(c, "DATA_VALID");
	int64_t vocab = config_int(c, "MODEL_VOCAB");
	uint64_t least = (uint64_t)s->length + 1;

	if (!x)
		return fail_memory(err, "text", sizeof(*x));
	s->state = x;
	if (config_bool(c, "DATA_ONCE"))
		x->once = (uint64_t)(config_int(c, "TRAIN_BATCH") *
				     config_int(c, "TRAIN_ACCUMULATE"));
	if (config_check(c, err))
		return FAIL;
	if (vocab < 0 || vocab > TOKENIZER_MAX_VOCABULARY)
		return fail(err, "MODEL_VOCAB=%lld: must be 0 to %d", (long long)vocab,
			    TOKENIZER_MAX_VOCABULARY);
	if (tokens_open(train, vocab ? (uint32_t)vocab : TOKENIZER_MAX_VOCABULARY, least, &x->train,
			err) ||
	    choose_vocab(s, vocab, err) ||
	    tokens_open(valid, (uint32_t)s->vocab, least, &x->valid, err) || choose_rows(s, err))
		return FAIL;
	identify(s);
	find_components(s);
	return measure(s, err);
}

static void text_close(struct source *s)
{
	struct text *x = s->state;

	if (!x)
		return;
	tokens_close(x->train);
	tokens_close(x->valid);
	free(x);
}

static const struct task text = {
	.name = "text",
	.open = text_open,
	.close = text_close,
	.train = text_train,
	.valid = text_valid,
	.stream_length = text_stream_length,
	.stream = text_stream,
};
TASK(text);
