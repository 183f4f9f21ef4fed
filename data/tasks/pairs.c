#include "data/tasks/pairs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/tasks/writer.h"

struct pairs {
	int32_t half; /* n keys and as many values */
	uint64_t noise_tokens;
	uint64_t noise_percent;			 /* 100 q */
	double noise_cost, key_cost, value_cost; /* of a training target, in nats */
};

enum status pairs_open(struct source *s, int64_t noise_tokens, int64_t noise_percent,
		       struct error *err)
{
	int64_t half = (s->vocab - noise_tokens) / 2;
	double q = (double)noise_percent / 100.0;
	struct pairs *p;

	if (half < 1 || s->vocab != 2 * half + noise_tokens)
		return fail(err,
			    "of %lld tokens, %lld for noise, keys and values get no equal parts",
			    (long long)s->vocab, (long long)noise_tokens);
	p = malloc(sizeof(*p));
	if (!p)
		return fail_memory(err, s->task->name, sizeof(*p));
	*p = (struct pairs){
		.half = (int32_t)half,
		.noise_tokens = (uint64_t)noise_tokens,
		.noise_percent = (uint64_t)noise_percent,
		.noise_cost = -log(q / (double)noise_tokens),
		.key_cost = -log((1.0 - q) / (double)half),
		.value_cost = log((double)half),
	};
	s->state = p;
	s->chance = p->value_cost;
	s->floor = 0.0;
	s->accuracy = true;
	return OK;
}

void pairs_close(struct source *s)
{
	free(s->state);
}

/* Keys are never values, so a token that equals the key is a key. */
static bool seen(const struct row *row, int64_t count, int32_t key)
{
	for (int64_t t = 0; t < count; t++)
		if (row->tokens[t] == key)
			return true;
	return false;
}

static void put(struct writer *w, enum purpose purpose, int32_t token, double cost)
{
	if (purpose == TRAINING)
		writer_put_target(w, token, 0, cost);
	else
		writer_put(w, token);
}

static void put_pair(const struct pairs *p, enum purpose purpose, struct rng_reader *random,
		     struct rng_key map, struct writer *w)
{
	int32_t key = (int32_t)rng_next_below(random, (uint64_t)p->half);
	int32_t value = p->half + (int32_t)rng_below(map, (uint64_t)key, (uint64_t)p->half);
	bool known = seen(w->row, w->at, key);

	put(w, purpose, key, p->key_cost);
	if (known)
		writer_put_target(w, value, 0, 0.0);
	else
		put(w, purpose, value, p->value_cost);
}

void pairs_generate(const struct source *s, enum purpose purpose, struct rng_reader *random,
		    struct row *out)
{
	const struct pairs *p = s->state;
	struct rng_key map = rng_subkey(random->key, 0);
	struct writer w = writer_start(s, out);

	while (!writer_full(&w))
		if (rng_next_below(random, 100) < p->noise_percent)
			put(&w, purpose,
			    2 * p->half + (int32_t)rng_next_below(random, p->noise_tokens),
			    p->noise_cost);
		else
			put_pair(p, purpose, random, map, &w);
}

void pairs_spell(const struct source *s, int32_t token, char text[SOURCE_TOKEN_TEXT])
{
	const struct pairs *p = s->state;

	if (token < p->half)
		snprintf(text, SOURCE_TOKEN_TEXT, "k%d", token);
	else if (token < 2 * p->half)
		snprintf(text, SOURCE_TOKEN_TEXT, "v%d", token - p->half);
	else
		snprintf(text, SOURCE_TOKEN_TEXT, "x%d", token - 2 * p->half);
}
