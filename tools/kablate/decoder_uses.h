/*
 * decoder_uses - the decoders that a run needs: to evaluate at several lengths, and to generate.
 */
#ifndef TOOLS_KABLATE_DECODER_USES_H
#define TOOLS_KABLATE_DECODER_USES_H

#include "data/source.h"
#include "models/decode.h"

#define MAX_LENGTH (1 << 24)

/* To generate, looking back on at most `context` tokens; 0: the trained length. */
struct decoder_use sample_use(const struct model *model, int64_t context);

/* The next number of a list such as "512,1024", or the decoder for it; moves *list after it. */
enum status next_length(const char **list, int64_t *length, struct error *err) MUST_CHECK;
enum status next_length_use(const char **list, struct decoder_use *use,
			    struct error *err) MUST_CHECK;

/* How many rows of this length have about as many tokens as a validation.  FAIL: none. */
enum status rows_of_length(const struct source *source, int64_t length, uint64_t *rows,
			   struct error *err) MUST_CHECK;

/* Checks before training: is it a list, are there rows, can the model decode them? */
enum status check_lengths(const char *list, const struct model *model, const struct source *source,
			  struct error *err) MUST_CHECK;

#endif
