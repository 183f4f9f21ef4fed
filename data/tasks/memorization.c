/*
 * memorization - one map from keys to values, the same in all rows (MAD).
 *
 * Keys are 0 .. n-1, values n .. V-2, with n = (V-1)/2.  A row is pairs
 * (key, V-1); the target at V-1 is the key's value.  Different keys have
 * different values.  No row contains a value: the weights must hold the map.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/source.h"
#include "data/tasks/draw.h"
#include "data/tasks/option.h"
#include "data/tasks/writer.h"

struct memorization {
	int32_t keys;	  /* n */
	int32_t values[]; /* [V - 1 - n] in random order: key k has value values[k] */
};

static enum status memorization_open(struct source *s, struct config *c, struct error *err)
{
	struct rng_reader random = { .key = rng_key(0, "memorization/map") };
	struct memorization *m;
	size_t values, size;

	if (option_int(c, "MEMORIZATION_VOCAB", 3, OPTION_MAX_VOCAB, &s->vocab, err))
		return FAIL;
	if (s->length % 2)
		return fail(err, "MODEL_BLOCK=%lld: a row is pairs, so T is even",
			    (long long)s->length);
	values = (size_t)(s->vocab / 2);
	size = sizeof(*m) + values * sizeof(m->values[0]);
	m = malloc(size);
	if (!m)
		return fail_memory(err, "memorization", size);
	m->keys = (int32_t)((s->vocab - 1) / 2);
	for (size_t i = 0; i < values; i++)
		m->values[i] = m->keys + (int32_t)i;
	draw_shuffle(&random, m->values, values);
	s->state = m;
	s->chance = log((double)m->keys);
	s->floor = 0.0;
	s->accuracy = true;
	return OK;
}

static void memorization_close(struct source *s)
{
	free(s->state);
}

static void memorization_generate(const struct source *s, enum purpose purpose,
				  struct rng_reader *random, struct row *out)
{
	const struct memorization *m = s->state;

	(void)purpose;
	for (int64_t t = 0; t < s->length; t += 2) {
		int32_t key = (int32_t)rng_next_below(random, (uint64_t)m->keys);

		out->tokens[t] = key;
		out->tokens[t + 1] = (int32_t)s->vocab - 1;
		row_target(out, t + 1, m->values[key], 0, 0.0);
	}
}

static void memorization_spell(const struct source *s, int32_t token, char text[SOURCE_TOKEN_TEXT])
{
	const struct memorization *m = s->state;

	if (token == s->vocab - 1)
		snprintf(text, SOURCE_TOKEN_TEXT, "?");
	else if (token < m->keys)
		snprintf(text, SOURCE_TOKEN_TEXT, "k%d", token);
	else
		snprintf(text, SOURCE_TOKEN_TEXT, "v%d", token - m->keys);
}

static const struct task memorization = {
	.name = "memorization",
	.open = memorization_open,
	.close = memorization_close,
	.generate = memorization_generate,
	.spell = memorization_spell,
	.own_targets = true,
};
TASK(memorization);
