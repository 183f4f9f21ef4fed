/*
 * fuzzy - fuzzy in-context recall of MAD: keys and values are motifs.
 *
 * A motif is 1 to M different tokens: of the lower half of the vocabulary for
 * keys, of the upper half for values.  Validation keys have M tokens.  The map
 * from key motifs to value motifs is drawn per row.  Only the beginning of a
 * value shows where its key ended, so the floors are unknown.
 *
 * Long motifs seldom repeat by chance.  So the first pair that starts within
 * the last 4M tokens repeats an earlier one: every row has a question.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/source.h"
#include "data/tasks/draw.h"
#include "data/tasks/option.h"
#include "data/tasks/writer.h"

#define MAX_MOTIF 8

struct fuzzy {
	int32_t half; /* keys 0 .. half-1, values half .. 2 half-1 */
	int motif;    /* M */
};

struct motif {
	int size;
	int32_t tokens[MAX_MOTIF];
};

static enum status fuzzy_open(struct source *s, struct config *c, struct error *err)
{
	struct fuzzy *f;
	int64_t motif;

	if (option_int(c, "FUZZY_VOCAB", 2, OPTION_MAX_VOCAB, &s->vocab, err) ||
	    option_int(c, "FUZZY_MOTIF", 1, MAX_MOTIF, &motif, err))
		return FAIL;
	if (s->vocab % 2 || motif > s->vocab / 2)
		return fail(err, "FUZZY_VOCAB=%lld: must be even, with %lld tokens in each half",
			    (long long)s->vocab, (long long)motif);
	if (s->length < 4 * motif)
		return fail(err, "FUZZY_MOTIF=%lld: two pairs need MODEL_BLOCK >= %lld",
			    (long long)motif, (long long)(4 * motif));
	f = malloc(sizeof(*f));
	if (!f)
		return fail_memory(err, "fuzzy", sizeof(*f));
	*f = (struct fuzzy){ .half = (int32_t)(s->vocab / 2), .motif = (int)motif };
	s->state = f;
	s->chance = log((double)f->half);
	s->accuracy = true;
	return OK;
}

static void fuzzy_close(struct source *s)
{
	free(s->state);
}

/* The next run of key tokens at or after *at; moves *at past it.  Size 0: none. */
static struct motif next_key(const struct fuzzy *f, const struct row *row, int64_t end, int64_t *at)
{
	struct motif key = { .size = 0 };

	while (*at < end && row->tokens[*at] >= f->half)
		++*at;
	while (*at < end && row->tokens[*at] < f->half)
		key.tokens[key.size++] = row->tokens[(*at)++];
	return key;
}

static bool same(const struct motif *a, const struct motif *b)
{
	return a->size == b->size &&
	       !memcmp(a->tokens, b->tokens, (size_t)a->size * sizeof(a->tokens[0]));
}

static bool seen(const struct fuzzy *f, const struct writer *w, const struct motif *key)
{
	int64_t at = 0;

	for (;;) {
		struct motif earlier = next_key(f, w->row, w->at, &at);

		if (!earlier.size)
			return false;
		if (same(&earlier, key))
			return true;
	}
}

/* One of the row's keys; each place has the same probability. */
static struct motif earlier_key(const struct fuzzy *f, const struct writer *w,
				struct rng_reader *random)
{
	struct motif chosen = { .size = 0 };
	uint64_t count = 0;

	for (int64_t at = 0;;) {
		struct motif key = next_key(f, w->row, w->at, &at);

		if (!key.size)
			return chosen;
		if (rng_next_below(random, ++count) == 0)
			chosen = key;
	}
}

static struct motif draw_motif(const struct fuzzy *f, struct rng_reader *random, int32_t first,
			       int least)
{
	struct motif m;

	m.size = least + (int)rng_next_below(random, (uint64_t)(f->motif - least + 1));
	draw_distinct(random, first, (uint64_t)f->half, m.size, m.tokens);
	return m;
}

/* The row's map: the key's tokens select the stream that draws the value. */
static struct motif value_of(const struct fuzzy *f, struct rng_key map, const struct motif *key)
{
	struct rng_reader random = { .key = map };

	for (int i = 0; i < key->size; i++)
		random.key = rng_subkey(random.key, (uint64_t)key->tokens[i]);
	return draw_motif(f, &random, f->half, 1);
}

static void put(struct writer *w, const struct motif *m, bool target)
{
	for (int i = 0; i < m->size; i++)
		if (target)
			writer_put_target(w, m->tokens[i], 0, NAN);
		else
			writer_put(w, m->tokens[i]);
}

static void fuzzy_generate(const struct source *s, enum purpose purpose, struct rng_reader *random,
			   struct row *out)
{
	const struct fuzzy *f = s->state;
	struct rng_key map = rng_subkey(random->key, 0);
	struct writer w = writer_start(s, out);
	bool training = purpose == TRAINING, asked = false;

	while (!writer_full(&w)) {
		bool ask = !asked && w.at + 4 * f->motif > s->length;
		struct motif key = ask ? earlier_key(f, &w, random)
				       : draw_motif(f, random, 0, training ? 1 : f->motif);
		struct motif value = value_of(f, map, &key);
		bool known = seen(f, &w, &key);

		asked |= ask;
		put(&w, &key, training);
		put(&w, &value, training || known);
	}
}

static void fuzzy_spell(const struct source *s, int32_t token, char text[SOURCE_TOKEN_TEXT])
{
	const struct fuzzy *f = s->state;

	if (token < f->half)
		snprintf(text, SOURCE_TOKEN_TEXT, "k%d", token);
	else
		snprintf(text, SOURCE_TOKEN_TEXT, "v%d", token - f->half);
}

static const struct task fuzzy = {
	.name = "fuzzy",
	.open = fuzzy_open,
	.close = fuzzy_close,
	.generate = fuzzy_generate,
	.spell = fuzzy_spell,
};
TASK(fuzzy);
