#include "models/decode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/engine/program.h"

/* The model for pieces of n tokens. */
struct piece {
	int64_t n; /* 0: not made yet */
	struct graph *g;
	struct program *p;
	struct model_io io;
};

enum { STEP, PIECE, OTHER, PIECES };

struct decoder {
	const struct model *m;
	struct params *params, *state;
	const struct backend *backend;
	enum model_purpose purpose;
	int64_t batch, capacity, past;
	struct piece piece[PIECES]; /* of 1 token, of DECODER_PIECE, of the last other number */
	const struct piece *last;
};

static void close_piece(struct piece *x)
{
	program_destroy(x->p);
	graph_destroy(x->g);
	*x = (struct piece){ 0 };
}

static enum status open_piece(struct decoder *d, struct piece *x, int64_t n, struct error *err)
{
	const struct program_options options = { 0 };

	if (graph_create(&x->g, d->params, false, err) != OK)
		return FAIL;
	graph_continue(x->g, d->state, d->capacity);
	model_build(d->m, x->g, d->purpose, d->batch, n, &x->io);
	if (graph_finish(x->g, err) != OK ||
	    params_allocate(d->state, d->backend, false, err) != OK ||
	    program_create(&x->p, x->g, d->backend, &options, err) != OK) {
		close_piece(x);
		return FAIL;
	}
	x->n = n;
	return OK;
}

static enum status find_piece(struct decoder *d, int64_t n, struct piece **out, struct error *err)
{
	struct piece *x = &d->piece[n == 1 ? STEP : n == DECODER_PIECE ? PIECE : OTHER];

	*out = x;
	if (x->n == n)
		return OK;
	if (d->last == x)
		d->last = NULL;
	close_piece(x);
	return open_piece(d, x, n, err);
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
	/* Every graph of this model keeps the same, so the first one names it all. */
	if (params_create(&d->state, params->type, err) != OK ||
	    open_piece(d, &d->piece[STEP], 1, err) != OK) {
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
	for (int i = 0; i < PIECES; i++)
		close_piece(&d->piece[i]);
	params_destroy(d->state);
	free(d);
}

enum status decoder_check(const struct model *m, int64_t capacity, struct error *err)
{
	struct params *params = NULL, *state = NULL;
	struct graph *g = NULL;
	enum status status = FAIL;
	struct model_io io;

	if (params_create(&params, F32, err) != OK || params_create(&state, F32, err) != OK ||
	    graph_create(&g, params, false, err) != OK)
		goto destroy;
	graph_continue(g, state, capacity);
	model_build(m, g, MODEL_EVAL, 1, 1, &io);
	status = graph_finish(g, err);
destroy:
	graph_destroy(g);
	params_destroy(state);
	params_destroy(params);
	return status;
}

enum status decoder_feed(struct decoder *d, int64_t n, const int32_t *tokens,
			 const int32_t *targets, struct error *err)
{
	const struct run run = { .past = d->past };
	struct piece *x;

	if (n > d->capacity - d->past)
		return fail(err, "%lld tokens after %lld are more than the %lld there is room for",
			    (long long)n, (long long)d->past, (long long)d->capacity);
	if (find_piece(d, n, &x, err) != OK)
		return FAIL;
	program_upload(x->p, x->io.tokens, tokens);
	if (targets)
		program_upload(x->p, x->io.targets, targets);
	if (program_run(x->p, &run, err) != OK)
		return FAIL;
	d->past += n;
	d->last = x;
	return OK;
}

enum status decoder_prompt(struct decoder *d, int64_t n, const int32_t *tokens, struct error *err)
{
	const int64_t most = n < DECODER_PIECE ? n : DECODER_PIECE;
	int32_t *piece = malloc((size_t)(d->batch * most) * sizeof(*piece));
	enum status status = OK;

	if (!piece)
		return fail_memory(err, "prompt", (size_t)(d->batch * most) * sizeof(*piece));
	for (int64_t first = 0; status == OK && first < n; first += most) {
		const int64_t count = n - first < most ? n - first : most;

		for (int64_t b = 0; b < d->batch; b++)
			memcpy(piece + b * count, tokens + b * n + first,
			       (size_t)count * sizeof(*piece));
		status = decoder_feed(d, count, piece, NULL, err);
	}
	free(piece);
	return status;
}

void decoder_output(const struct decoder *d, const char *name, double *values)
{
	const struct graph_output *output = d->last ? graph_find_output(d->last->g, name) : NULL;

	assert(output);
	program_read(d->last->p, output->tensor, values);
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
	struct piece *x;

	*cost = (struct op_cost){ 0 };
	if (find_piece(d, n, &x, err) != OK)
		return FAIL;
	for (int i = 0; i < x->g->n_nodes; i++) {
		const struct node *node = x->g->nodes[i];
		struct op_cost own = { 0 };

		node->op->cost(node, &own);
		cost->forward_flops += own.forward_flops;
		cost->forward_bytes += own.forward_bytes;
	}
	return OK;
}

size_t decoder_state_bytes(const struct decoder *d)
{
	return (size_t)d->state->total * dtype_size(d->state->type);
}
