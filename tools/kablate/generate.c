#include "tools/kablate/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/memory_file.h"
#include "core/util/rng.h"
#include "data/tokenizer/utf8.h"
#include "models/decode.h"
#include "tools/kablate/run_memory.h"
#include "tools/kablate/vocabulary.h"

#define PROMPT_TOKENS 32 /* of a validation row: enough for a reader */
#define TEMPERATURE 0.8	 /* of recorded samples, as of those that generate makes by default */

/* One row.  When its room is used up, the text goes on from its last half. */
struct generator {
	struct decoder *d;
	int64_t capacity;
	int32_t *window; /* tokens of the row; the decoder has seen some of them */
	int64_t used;
	double *logits;
};

/* ------------------------------------------------------------------ sampling */

static int descending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? 1 : x > y ? -1 : 0;
}

/* The k-th largest logit: smaller ones are not drawn. */
static double threshold(const double *logits, int64_t vocab, int64_t k)
{
	double *sorted, value;

	if (k <= 0 || k >= vocab)
		return -INFINITY;
	sorted = malloc((size_t)vocab * sizeof(*sorted));
	if (!sorted)
		return -INFINITY;
	memcpy(sorted, logits, (size_t)vocab * sizeof(*sorted));
	qsort(sorted, (size_t)vocab, sizeof(*sorted), descending);
	value = sorted[k - 1];
	free(sorted);
	return value;
}

int64_t sample_token(const double *logits, int64_t vocab, double temperature, int64_t top_k,
		     double uniform)
{
	const double least = threshold(logits, vocab, top_k);
	double sum = 0, most = -INFINITY;
	int64_t best = 0, last = 0;

	for (int64_t i = 0; i < vocab; i++)
		if (logits[i] > most) {
			most = logits[i];
			best = i;
		}
	if (temperature <= 0)
		return best;
	for (int64_t i = 0; i < vocab; i++)
		sum += logits[i] >= least ? exp((logits[i] - most) / temperature) : 0;
	uniform *= sum;
	for (int64_t i = 0; i < vocab; i++) {
		if (logits[i] < least)
			continue;
		last = i;
		uniform -= exp((logits[i] - most) / temperature);
		if (uniform < 0)
			break;
	}
	return last;
}

/* ----------------------------------------------------------------- the model */

static enum status open_generator(struct generator *x, const struct run_setup *setup,
				  int64_t context, struct error *err)
{
	const struct decoder_use use = sample_use(setup->model, context);

	x->capacity = use.capacity;
	if (decoder_create(&x->d, setup->model, setup->params, &setup->backend, use.purpose,
			   use.batch, use.capacity, err) != OK)
		return FAIL;
	x->window = malloc((size_t)x->capacity * sizeof(*x->window));
	x->logits = malloc((size_t)setup->model->vocab * sizeof(*x->logits));
	if (!x->window || !x->logits)
		return fail_memory(err, "generation", (size_t)x->capacity * sizeof(*x->window));
	return OK;
}

static void close_generator(struct generator *x)
{
	decoder_destroy(x->d);
	free(x->window);
	free(x->logits);
}

static void push(struct generator *x, int32_t token)
{
	if (x->used == x->capacity) {
		const int64_t kept = x->capacity / 2;

		memmove(x->window, x->window + x->used - kept, (size_t)kept * sizeof(*x->window));
		x->used = kept;
		decoder_reset(x->d);
	}
	x->window[x->used++] = token;
}

static enum status next_logits(struct generator *x, struct error *err)
{
	const int64_t seen = decoder_past(x->d);

	if (decoder_prompt(x->d, x->used - seen, x->window + seen, err) != OK)
		return FAIL;
	decoder_output(x->d, "logits", x->logits);
	return OK;
}

/* ---------------------------------------------------------------- the prompt */

/* The beginning of the first validation row: the same for every step and seed. */
static enum status push_row(struct generator *x, const struct run_setup *setup, int64_t most,
			    struct error *err)
{
	const int64_t T = setup->source.length, room = x->capacity / 2;
	int32_t *tokens = malloc((size_t)T * 2 * sizeof(*tokens));
	struct row row = { .tokens = tokens, .targets = tokens + T };
	int64_t n = T / 2 < most ? T / 2 : most;

	if (!tokens)
		return fail_memory(err, "prompt", (size_t)T * 2 * sizeof(*tokens));
	n = n < room ? n : room;
	n = n > 0 ? n : 1;
	source_valid(&setup->source, 0, &row);
	for (int64_t i = 0; i < n; i++)
		push(x, tokens[i]);
	free(tokens);
	return OK;
}

/* Uses the last part of a prompt that is too long. */
static enum status push_text(struct generator *x, const struct vocabulary *v, const char *prompt,
			     struct error *err)
{
	const size_t room = (size_t)x->capacity;
	struct ids ids = { 0 };
	enum status status = vocabulary_encode(v, prompt, &ids, err);

	for (size_t i = ids.count > room ? ids.count - room : 0; status == OK && i < ids.count; i++)
		push(x, ids.id[i]);
	ids_free(&ids);
	return status;
}

static enum status push_prompt(struct generator *x, const struct run_setup *setup,
			       const struct vocabulary *v, const char *prompt, struct error *err)
{
	if (!prompt)
		return push_row(x, setup, PROMPT_TOKENS, err);
	if (prompt[0])
		return push_text(x, v, prompt, err);
	if (vocabulary_end(v) < 0)
		return push_row(x, setup, 1, err);
	push(x, vocabulary_end(v));
	return OK;
}

static void write_prompt(const struct generator *x, const struct vocabulary *v, FILE *out)
{
	for (int64_t i = 0; i < x->used; i++)
		if (x->window[i] != vocabulary_end(v))
			vocabulary_write(v, x->window, i, out);
}

/* ------------------------------------------------------------------ the text */

static enum status stream(struct generator *x, const struct run_setup *setup,
			  const struct vocabulary *v, const struct generate_options *o, FILE *out,
			  struct error *err)
{
	const struct rng_key key = rng_key(setup->seed, "generate");

	for (int64_t i = 0; i < o->tokens; i++) {
		int64_t token;

		if (next_logits(x, err) != OK || setup->backend.check(&setup->backend, err) != OK)
			return FAIL;
		token = sample_token(x->logits, vocabulary_size(v), o->temperature, o->top_k,
				     rng_uniform(key, (uint64_t)i));
		if (token == vocabulary_end(v))
			break;
		push(x, (int32_t)token);
		vocabulary_write(v, x->window, x->used - 1, out);
		fflush(out);
	}
	return OK;
}

static enum status open_vocabulary(struct vocabulary *v, const struct run_setup *setup,
				   const char *tokenizer, struct error *err)
{
	if (vocabulary_open(v, setup->config, &setup->source, tokenizer, err) != OK)
		return FAIL;
	if (vocabulary_size(v) > setup->model->vocab)
		return fail(err,
			    "the tokenizer's vocabulary of %lld is larger than the model's %lld",
			    (long long)vocabulary_size(v), (long long)setup->model->vocab);
	return OK;
}

/* The weights are there. */
static enum status generate_text(const struct run_setup *setup, const struct generate_options *o,
				 FILE *prompt, FILE *out, struct error *err)
{
	struct vocabulary v = { 0 };
	struct generator x = { 0 };
	enum status status = FAIL;

	if (open_vocabulary(&v, setup, o->tokenizer, err) == OK &&
	    open_generator(&x, setup, o->context, err) == OK &&
	    push_prompt(&x, setup, &v, o->prompt, err) == OK) {
		write_prompt(&x, &v, prompt);
		if (!v.tokenizer)
			fputs(prompt == out ? "| " : "", out);
		status = stream(&x, setup, &v, o, out, err);
	}
	close_generator(&x);
	vocabulary_close(&v);
	return status;
}

enum status generate(struct run_setup *setup, const struct generate_options *o, FILE *out,
		     struct error *err)
{
	const struct decoder_use use = sample_use(setup->model, o->context);
	struct weights_origin origin;
	struct error notice;

	if (!model_keeps_state(setup->model, &notice))
		fprintf(stderr, "kablate: %s\n", notice.text);
	if (run_memory_reserve_decoder(setup, &use, err) != OK ||
	    run_setup_load(setup, o->weights, &origin, err) != OK ||
	    generate_text(setup, o, out, out, err) != OK)
		return FAIL;
	fputc('\n', out);
	return OK;
}

/* ---------------------------------------------------- a sample in the record */

/* Records are UTF-8: bytes that are not UTF-8 become U+FFFD. */
static void write_valid(const char *text, size_t size, FILE *out)
{
	const uint8_t *p = (const uint8_t *)text, *end = p + size;

	while (p < end) {
		const uint8_t *start = p;
		const uint32_t symbol = utf8_next(&p, end);

		if (symbol == 0 || symbol >= UTF8_RAW)
			fputs("\xef\xbf\xbd", out); /* U+FFFD */
		else
			fwrite(start, 1, (size_t)(p - start), out);
	}
}

static enum status record_text(struct metrics *m, int64_t iteration, const char *kind,
			       const struct memory_file *text, struct error *err)
{
	struct memory_file valid;
	enum status status;

	if (memory_file_open(&valid, "sample", err) != OK)
		return FAIL;
	write_valid(text->text, text->size, valid.stream);
	status = memory_file_close(&valid, "sample", err);
	if (status == OK)
		metrics_event(m, iteration, kind, valid.text);
	memory_file_free(&valid);
	return status;
}

static enum status sample_texts(const struct run_setup *setup, int64_t tokens,
				struct memory_file *prompt, struct memory_file *text,
				struct error *err)
{
	const struct generate_options o = { .tokens = tokens, .temperature = TEMPERATURE };

	if (memory_file_open(prompt, "sample", err) != OK ||
	    memory_file_open(text, "sample", err) != OK ||
	    generate_text(setup, &o, prompt->stream, text->stream, err) != OK ||
	    memory_file_close(prompt, "sample", err) != OK)
		return FAIL;
	return memory_file_close(text, "sample", err);
}

enum status record_sample(const struct run_setup *setup, int64_t tokens, struct metrics *m,
			  int64_t iteration, struct error *err)
{
	struct memory_file prompt = { 0 }, text = { 0 };
	enum status status = OK;
	bool can = false;

	if (tokens > 0)
		status = decoder_can(setup->model, setup->model->length, &can, err);
	if (!can)
		return status;
	status = sample_texts(setup, tokens, &prompt, &text, err);
	if (status == OK)
		status = record_text(m, iteration, "prompt", &prompt, err);
	if (status == OK)
		status = record_text(m, iteration, "sample", &text, err);
	memory_file_free(&prompt);
	memory_file_free(&text);
	return status;
}
