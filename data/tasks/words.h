/*
 * words - the background of the language task: words given the two tokens before.
 *
 * Words fall into C clusters (word w into w mod C); all other tokens are
 * cluster C.  The clusters a, b of the two tokens before make (C+1)^2 contexts,
 * few enough to be learnt, and
 *
 *	p(w | a, b) = g zipf(w) + (1 - g) zipf(rank_ab(w)),	zipf(r) ~ (r+1)^-s
 *
 * where rank_ab is a random order of the words, drawn once per language, and g
 * is the share of words that are common everywhere.  Whole units of DRAW_UNITS
 * keep the probabilities exact.
 */
#ifndef DATA_TASKS_WORDS_H
#define DATA_TASKS_WORDS_H

#include <stdint.h>

#include "core/util/rng.h"
#include "core/util/status.h"

struct words {
	int32_t count;
	int32_t clusters;
	uint32_t *units; /* [(C+1)^2][count] */
};

enum status words_open(struct words *w, int32_t count, int32_t clusters, double zipf, double common,
		       struct rng_key key, struct error *err) MUST_CHECK;
void words_close(struct words *w);

/* The units of all words after two tokens, given as words; -1: not a word. */
const uint32_t *words_after(const struct words *w, int32_t before, int32_t last);

#endif
