#include "tools/kablate/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/rng.h"
#include "data/tokenizer/tokenizer.h"
#include "models/decode.h"
#include "tools/kablate/vocabulary.h"

/* One row; when its room is used up it goes on from the last half. */
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

static enum status open_generator(struct generator *x, struct run_setup *setup,
				  const struct generate_options *o, struct error *err)
{
	struct weights_origin origin;

	x->capacity = o->context > 0 ? o->context : setup->model->length;
	if (run_setup_load(setup, o->weights, &origin, err) != OK ||
	    decoder_create(&x->d, setup->model, setup->params, &setup->backend, MODEL_NEXT, 1,
			   x->capacity, err) != OK)
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

/* Logits after the last token. */
static enum status next_logits(struct generator *x, struct error *err)
{
	const int64_t seen = decoder_past(x->d);

	if (decoder_prompt(x->d, x->used - seen, x->window + seen, err) != OK)
		return FAIL;
	decoder_output(x->d, "logits", x->logits);
	return OK;
}

/* ------------------------------------------------------------------ the text */

/* The tokenizer that lies beside the configured token files. */
static enum status configured_tokenizer(const struct run_setup *setup, struct tokenizer **t,
					struct error *err)
{
	char path[VOCABULARY_PATH_SIZE];

	if (vocabulary_tokenizer(setup->config, path, err) != OK)
		return fail_prefix(err, "no tokenizer is known; give one with --tokenizer");
	return tokenizer_open(path, t, err);
}

/* Of a long prompt, the last part that there is room for. */
static enum status push_prompt(struct generator *x, struct tokenizer *t, const char *prompt,
			       struct error *err)
{
	const size_t room = (size_t)x->capacity;
	struct ids ids = { 0 };
	struct encoder *e;
	enum status status;

	if (encoder_new(t, &e, err) != OK)
		return FAIL;
	status = encode(e, (const uint8_t *)prompt, strlen(prompt), &ids, err);
	for (size_t i = ids.count > room ? ids.count - room : 0; status == OK && i < ids.count; i++)
		push(x, ids.id[i]);
	if (status == OK && x->used == 0)
		push(x, tokenizer_end_of_text(t) >= 0 ? tokenizer_end_of_text(t) : '\n');
	encoder_free(e);
	ids_free(&ids);
	return status;
}

static enum status stream(struct generator *x, const struct run_setup *setup, struct tokenizer *t,
			  const struct generate_options *o, FILE *out, struct error *err)
{
	const struct rng_key key = rng_key(setup->seed, "generate");

	for (int64_t i = 0; i < o->tokens; i++) {
		int64_t token;

		if (next_logits(x, err) != OK)
			return FAIL;
		token = sample_token(x->logits, tokenizer_vocabulary(t), o->temperature, o->top_k,
				     rng_uniform(key, (uint64_t)i));
		if (token == tokenizer_end_of_text(t))
			break;
		fwrite(tokenizer_text(t, (uint32_t)token), 1, tokenizer_bytes(t, (uint32_t)token), out);
		fflush(out);
		push(x, (int32_t)token);
	}
	fputc('\n', out);
	return OK;
}

enum status generate(struct run_setup *setup, const struct generate_options *o, FILE *out,
		     struct error *err)
{
	struct tokenizer *t = NULL;
	enum status status = FAIL;
	struct generator x = { 0 };

	if ((o->tokenizer ? tokenizer_open(o->tokenizer, &t, err)
			  : configured_tokenizer(setup, &t, err)) != OK)
		return FAIL;
	if (tokenizer_vocabulary(t) > setup->model->vocab) {
		fail(err, "the tokenizer's vocabulary of %u is larger than the model's %lld",
		     tokenizer_vocabulary(t), (long long)setup->model->vocab);
		goto close;
	}
	if (open_generator(&x, setup, o, err) == OK && push_prompt(&x, t, o->prompt, err) == OK) {
		fputs(o->prompt, out);
		status = stream(&x, setup, t, o, out, err);
	}
close:
	close_generator(&x);
	tokenizer_close(t);
	return status;
}
