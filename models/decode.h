/*
 * decode - a model that goes on: a prompt, then token by token.
 *
 * Rows of tokens are fed in pieces; every piece sees all that came before.
 * What is kept of earlier tokens is what the model's parts say where they are
 * built (op_cache() and its like): the decoder knows no variant.  One graph
 * serves prompt and step, in two lengths.
 */
#ifndef MODELS_DECODE_H
#define MODELS_DECODE_H

#include "core/engine/backend.h"
#include "models/model.h"

/* A prompt is cut into pieces of this many tokens, which bounds the memory for activations. */
#define DECODER_PIECE 256

struct decoder;

/*
 * Room for `capacity` tokens in each of `batch` rows.  The parameters, which
 * must be allocated, and the model outlive the decoder.  Fails with the reason
 * where the model cannot decode.
 */
enum status decoder_create(struct decoder **d, const struct model *m, struct params *params,
			   const struct backend *backend, enum model_purpose purpose, int64_t batch,
			   int64_t capacity, struct error *err) MUST_CHECK;
void decoder_destroy(struct decoder *d);

/* Could it be created, as far as the model is concerned?  Fails with the reason. */
enum status decoder_check(const struct model *m, int64_t capacity, struct error *err) MUST_CHECK;

/* Append n tokens to every row: tokens, and for MODEL_EVAL targets, [batch,n]. */
enum status decoder_feed(struct decoder *d, int64_t n, const int32_t *tokens,
			 const int32_t *targets, struct error *err) MUST_CHECK;

/* As decoder_feed() without targets, for any n: in pieces. */
enum status decoder_prompt(struct decoder *d, int64_t n, const int32_t *tokens,
			   struct error *err) MUST_CHECK;

/* An output of the last piece, in full. */
void decoder_output(const struct decoder *d, const char *name, double *values);

/* Tokens in each row so far; and none again. */
int64_t decoder_past(const struct decoder *d);
void decoder_reset(struct decoder *d);

/* Bytes that are kept between pieces. */
size_t decoder_state_bytes(const struct decoder *d);

/* For measurements: as if `past` tokens had been fed; what is kept of them is what lies there. */
void decoder_seek(struct decoder *d, int64_t past);

/* Work of feeding the last n tokens that there is room for: operations, bytes read and written. */
enum status decoder_cost(struct decoder *d, int64_t n, struct op_cost *cost,
			 struct error *err) MUST_CHECK;

#endif
