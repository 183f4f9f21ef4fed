#include "data/source.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows in the identity of a generator: enough to show a change of any parameter. */
#define HASHED_ROWS 64

REGISTERED(tasks, task);

static const struct task *find_task(const char *name)
{
	for (const struct task *const *task = __start_tasks; task < __stop_tasks; task++)
		if (!strcmp((*task)->name, name))
			return *task;
	return NULL;
}

/* ---------------------------------------------------------------- rows */

static void clear(const struct source *s, struct row *row)
{
	for (int64_t t = 0; t < s->length; t++) {
		row->targets[t] = -1;
		if (row->component)
			row->component[t] = 0;
		if (row->floor)
			row->floor[t] = NAN;
	}
}

/* Every task has streams of its own, and so have training and validation. */
static struct rng_key stream(const char *use, uint64_t seed, const struct task *task)
{
	return rng_subkey(rng_key(seed, use), hash_text(task->name));
}

void source_train(const struct source *s, uint64_t iteration, uint64_t row, struct row *out)
{
	clear(s, out);
	if (s->task->generate) {
		struct rng_key key = rng_subkey(stream("data/train", s->seed, s->task), iteration);
		struct rng_reader random = { .key = rng_subkey(key, row) };

		s->task->generate(s, TRAINING, &random, out);
	} else {
		s->task->train(s, iteration, row, out);
	}
}

void source_valid(const struct source *s, uint64_t index, struct row *out)
{
	clear(s, out);
	if (s->task->generate) {
		struct rng_reader random = { .key = rng_subkey(stream("data/valid", 0, s->task),
							       index) };

		s->task->generate(s, VALIDATION, &random, out);
	} else {
		s->task->valid(s, index, out);
	}
}

/* ---------------------------------------------------------------- for readers */

void source_spell(const struct source *s, int32_t token, char text[SOURCE_TOKEN_TEXT])
{
	if (s->task->spell && token < s->vocab)
		s->task->spell(s, token, text);
	else
		snprintf(text, SOURCE_TOKEN_TEXT, "%d", (int)token);
}

int32_t source_read_token(const struct source *s, const char *text)
{
	char spelt[SOURCE_TOKEN_TEXT];

	for (int32_t token = 0; token < s->vocab; token++) {
		source_spell(s, token, spelt);
		if (strcmp(spelt, text) == 0)
			return token;
	}
	return -1;
}

const char *source_component(const struct source *s, const int32_t *tokens, int64_t at)
{
	if (!s->task->components || !s->task->component)
		return NULL;
	return s->task->components[s->task->component(s, tokens, at)];
}

/* ---------------------------------------------------------------- opening */

/* Identify a generator by its first rows: they depend on its parameters and its code. */
static enum status hash_rows(struct source *s, struct error *err)
{
	size_t size = 2 * (size_t)s->length * sizeof(int32_t);
	int32_t *tokens = malloc(size);
	struct row row = { .tokens = tokens, .targets = tokens + s->length };
	struct sha256 sha;

	if (!tokens)
		return fail_memory(err, "rows", size);
	sha256_init(&sha);
	sha256_add(&sha, s->task->name, strlen(s->task->name) + 1);
	sha256_add(&sha, &s->vocab, sizeof(s->vocab));
	sha256_add(&sha, &s->length, sizeof(s->length));
	for (uint64_t i = 0; i < HASHED_ROWS; i++) {
		source_valid(s, i, &row);
		sha256_add(&sha, tokens, size);
	}
	sha256_hex(&sha, s->hash);
	free(tokens);
	return OK;
}

static enum status open_task(struct source *s, struct config *c, struct error *err)
{
	if (s->length < 2)
		return fail(err, "MODEL_BLOCK=%lld: a row has at least 2 tokens",
			    (long long)s->length);
	if ((int64_t)s->valid_rows < 0)
		return fail(err, "EVAL_ROWS=%lld: must not be negative", (long long)s->valid_rows);
	if (s->task->generate && s->valid_rows == 0)
		return fail(err, "EVAL_ROWS=0 means all rows, but this task has no end");
	if (s->task->open(s, c, err) || config_check(c, err))
		return FAIL;
	return s->task->generate ? hash_rows(s, err) : OK;
}

enum status source_open(struct source *s, struct config *c, uint64_t seed, struct error *err)
{
	int64_t length = config_int(c, "MODEL_BLOCK"), valid_rows = config_int(c, "EVAL_ROWS");

	if (config_check(c, err))
		return FAIL;
	return source_open_at(s, c, seed, length, (uint64_t)valid_rows, err);
}

enum status source_open_at(struct source *s, struct config *c, uint64_t seed, int64_t length,
			   uint64_t valid_rows, struct error *err)
{
	const char *name = config_text(c, "TASK");
	const struct task *task;

	if (config_check(c, err))
		return FAIL;
	task = find_task(name);
	if (!task)
		return fail(err,
			    "task '%s' is not part of this program: does data/Makefile name it?",
			    name);
	*s = (struct source){
		.task = task,
		.components = task->components,
		.seed = seed,
		.length = length,
		.valid_rows = valid_rows,
		.chance = NAN,
		.floor = NAN,
	};
	for (int i = 0; i < SOURCE_MAX_COMPONENTS; i++)
		s->component_chance[i] = NAN;
	if (open_task(s, c, err)) {
		source_close(s);
		return fail_prefix(err, "task %s", task->name);
	}
	if (!s->components)
		s->component_chance[0] = s->chance;
	return OK;
}

static void generate_blank(const struct source *s, enum purpose purpose, struct rng_reader *random,
			   struct row *out)
{
	(void)purpose;
	(void)random;
	memset(out->tokens, 0, (size_t)s->length * sizeof(*out->tokens));
	memset(out->targets, 0, (size_t)s->length * sizeof(*out->targets));
}

static const struct task blank = { .name = "blank", .generate = generate_blank };

bool source_is_blank(const struct source *s)
{
	return s->task == &blank;
}

void source_blank(struct source *s, int64_t length, int64_t vocab)
{
	*s = (struct source){
		.task = &blank,
		.length = length,
		.vocab = vocab,
		.valid_rows = 1,
		.chance = NAN,
		.floor = NAN,
	};
}

void source_close(struct source *s)
{
	if (s->task && s->task->close)
		s->task->close(s);
	s->state = NULL;
	s->task = NULL;
}
