#include "tools/generate.h"

#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "core/weights.h"
#include "data/dataset.h"
#include "data/tokenizer.h"

/* The model with one row of the full length; later positions never change earlier logits. */
struct generator {
	struct graph *g;
	struct program *p;
	struct model_io io;
	const struct tensor *logits;
	int32_t *window; /* the last `length` tokens, the rest is padding */
	int64_t used;
	double *row; /* logits of one position */
	void *all;   /* logits as downloaded */
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

static void note(void *context, const char *text)
{
	(void)context;
	fprintf(stderr, "kablate: %s\n", text);
}

static enum status open_generator(struct generator *x, struct lab *lab, const char *weights,
				  struct error *err)
{
	const struct program_options options = { 0 };
	const int64_t T = lab->model->length;

	*x = (struct generator){ 0 };
	if (graph_create(&x->g, lab->params, false, err) != OK)
		return FAIL;
	model_build(lab->model, x->g, MODEL_LOGITS, 1, T, &x->io);
	if (graph_finish(x->g, err) != OK ||
	    params_allocate(lab->params, &lab->backend, false, err) != OK ||
	    params_initialise(lab->params, lab->seed, err) != OK ||
	    weights_load(lab->params, weights, "h.", note, NULL, err) != OK ||
	    program_create(&x->p, x->g, &lab->backend, &options, err) != OK)
		return FAIL;
	x->logits = graph_find_output(x->g, "logits")->tensor;
	x->window = calloc((size_t)T, sizeof(*x->window));
	x->row = malloc((size_t)lab->model->vocab * sizeof(*x->row));
	x->all = malloc(tensor_bytes(x->logits));
	if (!x->window || !x->row || !x->all)
		return fail_memory(err, "generation", tensor_bytes(x->logits));
	return OK;
}

static void close_generator(struct generator *x)
{
	program_destroy(x->p);
	graph_destroy(x->g);
	free(x->window);
	free(x->row);
	free(x->all);
}

static void push(struct generator *x, int64_t length, int32_t token)
{
	if (x->used == length) {
		memmove(x->window, x->window + 1, (size_t)(length - 1) * sizeof(*x->window));
		x->used--;
	}
	x->window[x->used++] = token;
}

/* Logits after the last token, into x->row. */
static enum status next_logits(struct generator *x, int64_t vocab, struct error *err)
{
	const struct run run = { .iteration = 0 };

	program_upload(x->p, x->io.tokens, x->window);
	if (program_run(x->p, &run, err) != OK)
		return FAIL;
	program_download(x->p, x->logits, x->all);
	for (int64_t i = 0; i < vocab; i++) {
		const int64_t at = (x->used - 1) * vocab + i;

		x->row[i] = x->logits->type == F64 ? ((const double *)x->all)[at]
						   : (double)((const float *)x->all)[at];
	}
	return OK;
}

/* ------------------------------------------------------------------ the text */

/* The tokenizer that lies beside the configured token files. */
static enum status configured_tokenizer(const struct lab *lab, struct tokenizer **t,
					struct error *err)
{
	const char *pattern = config_raw(lab->config, "DATA_VALID");
	char copy[2048], path[2200];
	struct dataset d;
	enum status status;

	if (!pattern || !pattern[0])
		return fail(err, "this task has no text; give a tokenizer with --tokenizer");
	snprintf(copy, sizeof(copy), "%s", pattern);
	snprintf(path, sizeof(path), "%s", dirname(copy));
	if (dataset_read(path, &d, err) != OK)
		return fail_prefix(err, "no tokenizer is known; give one with --tokenizer");
	if (d.tokenizer_file[0]) {
		strcat(path, "/");
		strncat(path, d.tokenizer_file, sizeof(path) - strlen(path) - 1);
	} else {
		snprintf(path, sizeof(path), "%s", d.tokenizer);
	}
	status = tokenizer_open(path, t, err);
	dataset_free(&d);
	return status;
}

static enum status push_prompt(struct generator *x, const struct lab *lab, struct tokenizer *t,
			       const char *prompt, struct error *err)
{
	struct ids ids = { 0 };
	struct encoder *e;
	enum status status;

	if (encoder_new(t, &e, err) != OK)
		return FAIL;
	status = encode(e, (const uint8_t *)prompt, strlen(prompt), &ids, err);
	for (size_t i = 0; status == OK && i < ids.count; i++)
		push(x, lab->model->length, ids.id[i]);
	if (status == OK && x->used == 0)
		push(x, lab->model->length,
		     tokenizer_end_of_text(t) >= 0 ? tokenizer_end_of_text(t) : '\n');
	encoder_free(e);
	ids_free(&ids);
	return status;
}

static enum status stream(struct generator *x, const struct lab *lab, struct tokenizer *t,
			  const struct generate_options *o, FILE *out, struct error *err)
{
	const struct rng_key key = rng_key(lab->seed, "generate");

	for (int64_t i = 0; i < o->tokens; i++) {
		int64_t token;

		if (next_logits(x, lab->model->vocab, err) != OK)
			return FAIL;
		token = sample_token(x->row, tokenizer_vocabulary(t), o->temperature, o->top_k,
				     rng_uniform(key, (uint64_t)i));
		if (token == tokenizer_end_of_text(t))
			break;
		fwrite(tokenizer_text(t, (uint32_t)token), 1, tokenizer_bytes(t, (uint32_t)token), out);
		fflush(out);
		push(x, lab->model->length, (int32_t)token);
	}
	fputc('\n', out);
	return OK;
}

enum status generate(struct lab *lab, const struct generate_options *o, FILE *out,
		     struct error *err)
{
	struct tokenizer *t = NULL;
	enum status status = FAIL;
	struct generator x = { 0 };

	if ((o->tokenizer ? tokenizer_open(o->tokenizer, &t, err)
			  : configured_tokenizer(lab, &t, err)) != OK)
		return FAIL;
	if (tokenizer_vocabulary(t) > lab->model->vocab) {
		fail(err, "the tokenizer's vocabulary of %u is larger than the model's %lld",
		     tokenizer_vocabulary(t), (long long)lab->model->vocab);
		goto close;
	}
	if (open_generator(&x, lab, o->weights, err) == OK &&
	    push_prompt(&x, lab, t, o->prompt, err) == OK) {
		fputs(o->prompt, out);
		status = stream(&x, lab, t, o, out, err);
	}
close:
	close_generator(&x);
	tokenizer_close(t);
	return status;
}
