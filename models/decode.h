/*
 * decode - run a model on a growing text: a prompt, then token by token.
 *
 * Rows of tokens are fed in chunks; each sees all earlier ones.  Each part
 * of a model says itself what it keeps of earlier tokens (op_cache() and others),
 * so the decoder knows no variant.  The same description of the model serves chunks
 * of any length, down to a single token.
 *
 * A model that keeps no state (model_keeps_state()) is decoded, too: every chunk runs the
 * whole text again, without a state.
 */
#ifndef MODELS_DECODE_H
#define MODELS_DECODE_H

#include "core/engine/backend.h"
#include "models/model.h"

/* A long text is fed in chunks of this many tokens: that limits the memory for activations. */
#define DECODER_CHUNK_TOKENS 256

struct decoder;

/*
 * Room for `capacity` tokens in each of `batch` rows.  The parameters must be
 * allocated; they and the model must outlive the decoder.  Fails, with the reason,
 * if the model cannot decode.
 */
enum status decoder_create(struct decoder **d, const struct model *m, struct params *params,
			   const struct backend *backend, enum model_purpose purpose, int64_t batch,
			   int64_t capacity, struct error *err) MUST_CHECK;
void decoder_destroy(struct decoder *d);

/* Can this model decode?  Fails with the reason if not. */
enum status decoder_check(const struct model *m, int64_t capacity, struct error *err) MUST_CHECK;

/* The same as a result.  Want of memory is no answer: then it fails. */
enum status decoder_can(const struct model *m, int64_t capacity, bool *can,
			struct error *err) MUST_CHECK;

/* Bytes that a decoder takes, and the parameters that it reads. */
struct decoder_memory {
	double own;	/* state, and the activations of its chunks */
	double weights; /* including the copies that kernels keep */
	double largest; /* numbers of the largest parameter */
};

/* What a decoder will be used for. */
struct decoder_use {
	enum model_purpose purpose;
	int64_t batch, capacity; /* as of decoder_create() */
	int64_t rest; /* the largest chunk of more than 1 token that is not full; 0: none */
};

/* Where texts of any length up to the capacity come, in chunks. */
int64_t decoder_largest_rest(int64_t capacity);

/* Nothing large is allocated. */
enum status decoder_measure(struct decoder_memory *memory, const struct model *m, enum dtype type,
			    const struct backend *backend, const struct decoder_use *use,
			    struct error *err) MUST_CHECK;

/* Append n tokens to every row: tokens, and for MODEL_EVAL targets, [batch,n]. */
enum status decoder_feed(struct decoder *d, int64_t n, const int32_t *tokens,
			 const int32_t *targets, struct error *err) MUST_CHECK;

/* As decoder_feed() without targets; a large n is fed in chunks. */
enum status decoder_prompt(struct decoder *d, int64_t n, const int32_t *tokens,
			   struct error *err) MUST_CHECK;

/* An output of the last chunk, in full. */
void decoder_output(const struct decoder *d, const char *name, double *values);

/* The number of tokens in each row so far.  After decoder_reset() it is 0. */
int64_t decoder_past(const struct decoder *d);
void decoder_reset(struct decoder *d);

/* Bytes that are kept between chunks. */
size_t decoder_state_bytes(const struct decoder *d);

/* For measurements: pretend that `past` tokens were fed; their state is whatever is in memory. */
void decoder_seek(struct decoder *d, int64_t past);

/* The work of feeding the last n tokens that fit into the rows. */
enum status decoder_cost(struct decoder *d, int64_t n, struct op_cost *cost,
			 struct error *err) MUST_CHECK;

#endif
