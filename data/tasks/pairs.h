/*
 * pairs - rows of key-value pairs with repeated keys, for recall and noisy.
 *
 * Tokens: n keys, n values, then the noise tokens.  A pair is a uniform key
 * and its value; with probability q one noise token replaces it.  The map from
 * keys to values is uniform and drawn per row.  Training targets are all next
 * tokens.  A validation target is the value of a key that came before in the
 * row, which is certain.
 */
#ifndef DATA_TASKS_PAIRS_H
#define DATA_TASKS_PAIRS_H

#include "data/source.h"

/* Sets up a source whose vocabulary is known; noise 0: no noise. */
enum status pairs_open(struct source *s, int64_t noise_tokens, int64_t noise_percent,
		       struct error *err) MUST_CHECK;
void pairs_close(struct source *s);
void pairs_generate(const struct source *s, enum purpose purpose, struct rng_reader *random,
		    struct row *out);

/* k3, v3, and noise x3. */
void pairs_spell(const struct source *s, int32_t token, char text[SOURCE_TOKEN_TEXT]);

#endif
