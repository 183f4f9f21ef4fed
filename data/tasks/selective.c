/*
 * selective - selective copying of MAD.
 *
 * N uniform tokens of 0 .. V-3 lie at random places among blanks V-2.  Then
 * come the marker V-1 and the N tokens in order, which are the targets.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/source.h"
#include "data/tasks/option.h"
#include "data/tasks/writer.h"

#define MAX_TOKENS 1024

struct selective {
	int tokens; /* N */
};

static enum status selective_open(struct source *s, struct config *c, struct error *err)
{
	struct selective *state;
	int64_t tokens;

	if (option_int(c, "SELECTIVE_VOCAB", 3, OPTION_MAX_VOCAB, &s->vocab, err) ||
	    option_int(c, "SELECTIVE_TOKENS", 1, MAX_TOKENS, &tokens, err))
		return FAIL;
	if (s->length < 2 * tokens)
		return fail(err,
			    "SELECTIVE_TOKENS=%lld: they and their copy need MODEL_BLOCK >= %lld",
			    (long long)tokens, (long long)(2 * tokens));
	state = malloc(sizeof(*state));
	if (!state)
		return fail_memory(err, "selective", sizeof(*state));
	state->tokens = (int)tokens;
	s->state = state;
	s->chance = log((double)(s->vocab - 2));
	s->floor = 0.0;
	s->accuracy = true;
	return OK;
}

static void selective_close(struct source *s)
{
	free(s->state);
}

/* Each set of `tokens` places among the first `places` has the same probability. */
static void scatter(struct writer *w, const int32_t *tokens, int count, int64_t places,
		    int32_t blank, struct rng_reader *random)
{
	int put = 0;

	while (w->at < places) {
		uint64_t places_left = (uint64_t)(places - w->at), left = (uint64_t)(count - put);

		writer_put(w, rng_next_below(random, places_left) < left ? tokens[put++] : blank);
	}
}

static void selective_generate(const struct source *s, enum purpose purpose,
			       struct rng_reader *random, struct row *out)
{
	const struct selective *state = s->state;
	int32_t tokens[MAX_TOKENS], blank = (int32_t)s->vocab - 2, marker = blank + 1;
	struct writer w = writer_start(s, out);

	(void)purpose;
	for (int i = 0; i < state->tokens; i++)
		tokens[i] = (int32_t)rng_next_below(random, (uint64_t)blank);
	scatter(&w, tokens, state->tokens, s->length - state->tokens, blank, random);
	writer_put(&w, marker);
	for (int i = 0; i < state->tokens; i++)
		writer_put_target(&w, tokens[i], 0, 0.0);
}

static void selective_spell(const struct source *s, int32_t token, char text[SOURCE_TOKEN_TEXT])
{
	if (token == s->vocab - 1)
		snprintf(text, SOURCE_TOKEN_TEXT, ">");
	else if (token == s->vocab - 2)
		snprintf(text, SOURCE_TOKEN_TEXT, "_");
	else
		snprintf(text, SOURCE_TOKEN_TEXT, "%d", token);
}

static const struct task selective = {
	.name = "selective",
	.open = selective_open,
	.close = selective_close,
	.generate = selective_generate,
	.spell = selective_spell,
};
TASK(selective);
