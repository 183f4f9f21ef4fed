/*
 * pairs - rows of key-value pairs with repeated keys, for recall and noisy.
 *
 * Tokens: n keys, n values, then the noise tokens.  At each pair's place
 * there is, with probability q, one noise token instead; else a uniform key
 * and its value.  The map from keys to values, uniform, is drawn per row.
 * Training targets are all next tokens; a validation target is the value of a
 * key that came before in the row, which is certain.
 */
#ifndef DATA_TASKS_PAIRS_H
#define DATA_TASKS_PAIRS_H

#include "data/source.h"

/* Sets up the source, whose vocabulary is known; noise 0: none. */
enum status pairs_open(struct source *s, int64_t noise_tokens, int64_t noise_percent,
		       struct error *err) MUST_CHECK;
void pairs_close(struct source *s);
void pairs_generate(const struct source *s, enum purpose purpose, struct rng_reader *random,
		    struct row *out);

#endif
