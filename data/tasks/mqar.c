/*
 * mqar - multi-query associative recall.
 *
 * K pairs k1 v1 k2 v2 .. of different keys (1 .. V/2-1) and different values
 * (V/2 .. V-1) open the row.  Key j comes again at 2K + 2 gap_j, with value_j
 * as the target there; the gaps i - 1, i = 1 .. (T-2K)/2, are drawn without
 * replacement with p_i ~ a i^(a-1).  All other places are filler.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/source.h"
#include "data/tasks/draw.h"
#include "data/tasks/option.h"
#include "data/tasks/writer.h"

#define MAX_PAIRS 256

struct mqar {
	int pairs; /* K */
	bool random_filler;
	int64_t gaps;	  /* (T - 2K) / 2 */
	uint32_t units[]; /* [gaps] */
};

static enum status spread_gaps(struct mqar *m, double power, struct error *err)
{
	double *weights = malloc((size_t)m->gaps * sizeof(*weights));

	if (!weights)
		return fail_memory(err, "mqar", (size_t)m->gaps * sizeof(*weights));
	for (int64_t i = 1; i <= m->gaps; i++)
		weights[i - 1] = power * pow((double)i, power - 1.0);
	draw_quantise(weights, (size_t)m->gaps, m->units);
	free(weights);
	return OK;
}

static enum status mqar_open(struct source *s, struct config *c, struct error *err)
{
	int64_t pairs;
	double power;
	struct mqar *m;
	size_t size;

	if (option_int(c, "MQAR_VOCAB", 4, OPTION_MAX_VOCAB, &s->vocab, err) ||
	    option_int(c, "MQAR_PAIRS", 1, MAX_PAIRS, &pairs, err) ||
	    option_real(c, "MQAR_POWER", 0.001, 10.0, &power, err))
		return FAIL;
	if (s->vocab % 2 || pairs > s->vocab / 2 - 1)
		return fail(err, "MQAR_VOCAB=%lld: must be even, for %lld keys and more",
			    (long long)s->vocab, (long long)pairs);
	if (4 * pairs > s->length)
		return fail(err, "MQAR_PAIRS=%lld: pairs and queries need MODEL_BLOCK >= %lld",
			    (long long)pairs, (long long)(4 * pairs));
	size = sizeof(*m) + (size_t)(s->length / 2 - pairs) * sizeof(m->units[0]);
	m = malloc(size);
	if (!m)
		return fail_memory(err, "mqar", size);
	m->pairs = (int)pairs;
	m->random_filler = config_bool(c, "MQAR_RANDOM_FILLER");
	m->gaps = s->length / 2 - pairs;
	s->state = m;
	s->chance = log((double)s->vocab / 2);
	s->floor = 0.0;
	s->accuracy = true;
	return spread_gaps(m, power, err);
}

static void mqar_close(struct source *s)
{
	free(s->state);
}

/* Different gaps, each drawn from those that are left. */
static void draw_gaps(const struct mqar *m, struct rng_reader *random, int64_t *gaps)
{
	uint32_t left[m->gaps], total = DRAW_UNITS;

	memcpy(left, m->units, sizeof(left));
	for (int j = 0; j < m->pairs; j++) {
		gaps[j] = (int64_t)draw_index(random, left, total);
		total -= left[gaps[j]];
		left[gaps[j]] = 0;
	}
}

static void mqar_generate(const struct source *s, enum purpose purpose, struct rng_reader *random,
			  struct row *out)
{
	const struct mqar *m = s->state;
	int32_t half = (int32_t)(s->vocab / 2), keys[MAX_PAIRS], values[MAX_PAIRS];
	int64_t gaps[MAX_PAIRS], prefix = 2 * m->pairs;

	(void)purpose;
	draw_distinct(random, 1, (uint64_t)half - 1, m->pairs, keys);
	draw_distinct(random, half, (uint64_t)half, m->pairs, values);
	draw_gaps(m, random, gaps);
	for (int64_t t = prefix; t < s->length; t++)
		out->tokens[t] =
			m->random_filler ? (int32_t)rng_next_below(random, (uint64_t)s->vocab) : 0;
	for (int j = 0; j < m->pairs; j++) {
		out->tokens[2 * j] = keys[j];
		out->tokens[2 * j + 1] = values[j];
		out->tokens[prefix + 2 * gaps[j]] = keys[j];
		row_target(out, prefix + 2 * gaps[j], values[j], 0, 0.0);
	}
}

static void mqar_spell(const struct source *s, int32_t token, char text[SOURCE_TOKEN_TEXT])
{
	const int32_t half = (int32_t)(s->vocab / 2);

	if (token == 0)
		snprintf(text, SOURCE_TOKEN_TEXT, "_");
	else if (token < half)
		snprintf(text, SOURCE_TOKEN_TEXT, "k%d", token);
	else
		snprintf(text, SOURCE_TOKEN_TEXT, "v%d", token - half);
}

static const struct task mqar = {
	.name = "mqar",
	.open = mqar_open,
	.close = mqar_close,
	.generate = mqar_generate,
	.spell = mqar_spell,
	.own_targets = true,
};
TASK(mqar);
