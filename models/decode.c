#include "models/decode.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/model_program.h"

/* The model for n more tokens per row. */
struct extension {
	int64_t n; /* 0: not open */
	struct token_program program;
};

/* Of a model that keeps no state: the text so far, and the buffers of a run. */
struct repetition {
	bool on;
	int32_t *text;		   /* [batch,capacity] */
	int32_t *tokens, *targets; /* room for [batch,capacity] */
	double *output;		   /* the largest output of the last run */
	int64_t chunk;		   /* its new tokens */
};

/* For one token, for a full chunk, and for the last other number of tokens. */
enum { ONE, FULL_CHUNK, OTHER, EXTENSIONS };

struct decoder {
	const struct model *m;
	struct params *params, *state;
	const struct backend *backend;
	enum model_purpose purpose;
	int64_t batch, capacity, past;
	struct extension extension[EXTENSIONS];
	struct repetition repeat;
	const struct extension *last; /* the extension that ran last; NULL: none */
};

static enum status open_extension(struct decoder *d, struct extension *x, int64_t n,
				  struct error *err)
{
	const struct model_use use = {
		.purpose = d->purpose,
		.rows = d->batch,
		.length = n,
		.state = d->repeat.on ? NULL : d->state,
		.capacity = d->capacity,
	};

	x->n = 0;
	token_program_close(&x->program);
	if (model_program_open(&x->program, d->m, &use, d->params, d->backend, err) != OK)
		return FAIL;
	x->n = n;
	return OK;
}

static enum status find_extension(struct decoder *d, int64_t n, struct extension **out,
				  struct error *err)
{
	const int kind = n == 1 ? ONE : n == DECODER_CHUNK_TOKENS ? FULL_CHUNK : OTHER;
	struct extension *x = &d->extension[kind];

	*out = x;
	if (x->n == n)
		return OK;
	if (d->last == x)
		d->last = NULL;
	return open_extension(d, x, n, err);
}

static enum status open_repetition(struct decoder *d, struct error *err)
{
	const size_t n = (size_t)(d->batch * d->capacity);
	struct repetition *r = &d->repeat;
	struct error notice;

	r->on = !model_keeps_state(d->m, &notice);
	if (!r->on)
		return OK;
	r->text = calloc(n, sizeof(*r->text));
	r->tokens = malloc(n * sizeof(*r->tokens));
	r->targets = malloc(n * sizeof(*r->targets));
	return r->text && r->tokens && r->targets
		       ? OK
		       : fail_memory(err, "decoder", 3 * n * sizeof(*r->text));
}

enum status decoder_create(struct decoder **out, const struct model *m, struct params *params,
			   const struct backend *backend, enum model_purpose purpose, int64_t batch,
			   int64_t capacity, struct error *err)
{
	struct decoder *d = calloc(1, sizeof(*d));

	if (!d)
		return fail_memory(err, "decoder", sizeof(*d));
	d->m = m;
	d->params = params;
	d->backend = backend;
	d->purpose = purpose;
	d->batch = batch;
	d->capacity = capacity;
	/* Every graph of this model has the same state, so the first one names all of it. */
	if (params_create(&d->state, params->type, err) != OK || open_repetition(d, err) != OK ||
	    open_extension(d, &d->extension[ONE], 1, err) != OK) {
		decoder_destroy(d);
		return FAIL;
	}
	*out = d;
	return OK;
}

void decoder_destroy(struct decoder *d)
{
	if (!d)
		return;
	for (int i = 0; i < EXTENSIONS; i++)
		token_program_close(&d->extension[i].program);
	params_destroy(d->state);
	free(d->repeat.text);
	free(d->repeat.tokens);
	free(d->repeat.targets);
	free(d->repeat.output);
	free(d);
}

/* A decoder's graph, to look at: its parameters and its state are named, not allocated. */
static enum status name_extension(struct graph **g, const struct model *m,
				  const struct model_use *use, struct params *params,
				  struct error *err)
{
	struct token_io io;

	if (graph_create(g, params, false, err) != OK)
		return FAIL;
	if (use->state)
		graph_continue(*g, use->state, use->capacity);
	model_build(m, *g, use->purpose, use->rows, use->length, &io);
	return graph_finish(*g, err);
}

enum status decoder_check(const struct model *m, int64_t capacity, struct error *err)
{
	struct model_use use = {
		.purpose = MODEL_EVAL, .rows = 1, .length = 1, .capacity = capacity
	};
	struct params *params = NULL;
	struct graph *g = NULL;
	enum status status = FAIL;

	if (params_create(&params, F32, err) == OK && params_create(&use.state, F32, err) == OK)
		status = name_extension(&g, m, &use, params, err);
	graph_destroy(g);
	params_destroy(use.state);
	params_destroy(params);
	return status;
}

enum status decoder_can(const struct model *m, int64_t capacity, bool *can, struct error *err)
{
	struct error reason;

	*can = decoder_check(m, capacity, &reason) == OK;
	if (*can || !is_lack_of_memory(&reason))
		return OK;
	*err = reason;
	return FAIL;
}

static enum status measure_extension(struct decoder_memory *memory, const struct model *m,
				     const struct model_use *use, struct params *params,
				     const struct backend *backend, struct error *err)
{
	const struct program_options options = { 0 };
	struct graph *g = NULL;
	size_t arena = 0;
	enum status status = name_extension(&g, m, use, params, err);

	if (status == OK)
		status = program_measure(g, backend, &options, &arena, err);
	memory->own += (double)arena;
	graph_destroy(g);
	return status;
}

static double block_bytes(const struct params *p)
{
	return (double)p->total * (double)dtype_size(p->type);
}

int64_t decoder_largest_rest(int64_t capacity)
{
	return capacity < DECODER_CHUNK_TOKENS ? capacity : DECODER_CHUNK_TOKENS - 1;
}

static void measure_blocks(struct decoder_memory *memory, const struct params *params,
			   const struct params *state)
{
	memory->own += block_bytes(state);
	memory->weights = block_bytes(params) + (double)params->copy_bytes;
	for (int i = 0; i < params->n; i++)
		memory->largest = fmax(memory->largest, (double)params->list[i].count);
}

enum status decoder_measure(struct decoder_memory *memory, const struct model *m, enum dtype type,
			    const struct backend *backend, const struct decoder_use *use,
			    struct error *err)
{
	const int64_t lengths[EXTENSIONS] = {
		[ONE] = 1,
		[FULL_CHUNK] = use->capacity < DECODER_CHUNK_TOKENS ? 0 : DECODER_CHUNK_TOKENS,
		[OTHER] = use->rest > 1 ? use->rest : 0,
	};
	struct model_use x = { .purpose = use->purpose,
			       .rows = use->batch,
			       .capacity = use->capacity };
	struct params *params = NULL, *state = NULL;
	enum status status = FAIL;
	struct error notice;
	const bool keeps = model_keeps_state(m, &notice);

	*memory = (struct decoder_memory){ 0 };
	if (params_create(&params, type, err) == OK && params_create(&state, type, err) == OK)
		status = OK;
	x.state = keeps ? state : NULL;
	for (int i = 0; i < (keeps ? EXTENSIONS : 1) && status == OK; i++) {
		x.length = keeps ? lengths[i] : use->capacity;
		if (x.length > 0)
			status = measure_extension(memory, m, &x, params, backend, err);
	}
	if (status == OK)
		measure_blocks(memory, params, state);
	params_destroy(state);
	params_destroy(params);
	return status;
}

/* Room for the largest output that a caller may read. */
static enum status prepare_output(struct repetition *r, const struct graph *g, struct error *err)
{
	int64_t most = 1;
	double *output;

	for (int i = 0; i < g->n_outputs; i++)
		if (tensor_count(g->outputs[i].tensor) > most)
			most = tensor_count(g->outputs[i].tensor);
	output = realloc(r->output, (size_t)most * sizeof(*output));
	if (!output)
		return fail_memory(err, "decoder", (size_t)most * sizeof(*output));
	r->output = output;
	return OK;
}

/* The whole text again, with n more tokens; only these have targets. */
static enum status repeat_text(struct decoder *d, int64_t n, const int32_t *tokens,
			       const int32_t *targets, struct error *err)
{
	const int64_t length = d->past + n;
	const struct run run = { 0 };
	struct repetition *r = &d->repeat;
	struct extension *x;

	if (find_extension(d, length, &x, err) != OK || prepare_output(r, x->program.g, err) != OK)
		return FAIL;
	for (int64_t b = 0; b < d->batch; b++) {
		int32_t *text = r->text + b * d->capacity, *row = r->targets + b * length;

		memcpy(text + d->past, tokens + b * n, (size_t)n * sizeof(*text));
		memcpy(r->tokens + b * length, text, (size_t)length * sizeof(*text));
		for (int64_t t = 0; t < length; t++)
			row[t] = targets && t >= d->past ? targets[b * n + t - d->past] : -1;
	}
	token_program_feed(&x->program, r->tokens, targets ? r->targets : NULL);
	if (program_run(x->program.p, &run, err) != OK)
		return FAIL;
	r->chunk = n;
	d->past = length;
	d->last = x;
	return OK;
}

enum status decoder_feed(struct decoder *d, int64_t n, const int32_t *tokens,
			 const int32_t *targets, struct error *err)
{
	const struct run run = { .past = d->past };
	struct extension *x;

	if (n > d->capacity - d->past)
		return fail(err, "%lld tokens after %lld do not fit: there is room for %lld",
			    (long long)n, (long long)d->past, (long long)d->capacity);
	if (d->repeat.on)
		return repeat_text(d, n, tokens, targets, err);
	if (find_extension(d, n, &x, err) != OK)
		return FAIL;
	token_program_feed(&x->program, tokens, targets);
	if (program_run(x->program.p, &run, err) != OK)
		return FAIL;
	d->past += n;
	d->last = x;
	return OK;
}

enum status decoder_prompt(struct decoder *d, int64_t n, const int32_t *tokens, struct error *err)
{
	const int64_t most = n < DECODER_CHUNK_TOKENS ? n : DECODER_CHUNK_TOKENS;
	int32_t *chunk = malloc((size_t)(d->batch * most) * sizeof(*chunk));
	enum status status = OK;

	if (!chunk)
		return fail_memory(err, "prompt", (size_t)(d->batch * most) * sizeof(*chunk));
	for (int64_t first = 0; status == OK && first < n; first += most) {
		const int64_t count = n - first < most ? n - first : most;

		for (int64_t b = 0; b < d->batch; b++)
			memcpy(chunk + b * count, tokens + b * n + first,
			       (size_t)count * sizeof(*chunk));
		status = decoder_feed(d, count, chunk, NULL, err);
	}
	free(chunk);
	return status;
}

/* Of the whole text only the last chunk. */
static void read_chunk(const struct decoder *d, const struct tensor *t, double *values)
{
	const int64_t length = d->last->n, n = d->repeat.chunk;
	const int64_t size = tensor_count(t) / (d->batch * length);

	program_read(d->last->program.p, t, d->repeat.output);
	for (int64_t b = 0; b < d->batch; b++)
		memcpy(values + b * n * size, d->repeat.output + (b * length + length - n) * size,
		       (size_t)(n * size) * sizeof(*values));
}

void decoder_output(const struct decoder *d, const char *name, double *values)
{
	const struct graph_output *output;

	assert(d->last);
	output = graph_find_output(d->last->program.g, name);
	assert(output);
	if (d->repeat.on && d->purpose != MODEL_NEXT)
		read_chunk(d, output->tensor, values);
	else
		program_read(d->last->program.p, output->tensor, values);
}

int64_t decoder_past(const struct decoder *d)
{
	return d->past;
}

void decoder_reset(struct decoder *d)
{
	d->past = 0;
}

void decoder_seek(struct decoder *d, int64_t past)
{
	assert(past >= 0 && past <= d->capacity);
	d->past = past;
}

enum status decoder_cost(struct decoder *d, int64_t n, struct op_cost *cost, struct error *err)
{
	struct extension *x;

	*cost = (struct op_cost){ 0 };
	if (find_extension(d, d->repeat.on ? d->capacity : n, &x, err) != OK)
		return FAIL;
	for (int i = 0; i < x->program.g->n_nodes; i++) {
		const struct node *node = x->program.g->nodes[i];
		struct op_cost own = { 0 };

		node->op->cost(node, &own);
		cost->forward_flops += own.forward_flops;
		cost->forward_bytes += own.forward_bytes;
	}
	return OK;
}

size_t decoder_state_bytes(const struct decoder *d)
{
	return d->repeat.on ? (size_t)(d->batch * d->capacity) * sizeof(*d->repeat.text)
			    : (size_t)block_bytes(d->state);
}
