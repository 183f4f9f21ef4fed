/*
 * compression - MAD's compression: a row must be rebuilt from the state of its last token.
 *
 * T - 1 uniform tokens of 0 .. V-2, then the marker V-1.  The target at each
 * place but the marker's is the place's own token.  So the task needs a model
 * with a decoder (CONFIG_MODEL_DECODER), whose logits of all places come from
 * the marker's state.
 */
#include <math.h>
#include <stdio.h>

#include "data/source.h"
#include "data/tasks/option.h"
#include "data/tasks/writer.h"

static enum status compression_open(struct source *s, struct config *c, struct error *err)
{
	if (option_int(c, "COMPRESSION_VOCAB", 3, OPTION_MAX_VOCAB, &s->vocab, err))
		return FAIL;
	s->chance = log((double)(s->vocab - 1));
	s->floor = 0.0;
	s->accuracy = true;
	return OK;
}

static void compression_generate(const struct source *s, enum purpose purpose,
				 struct rng_reader *random, struct row *out)
{
	const int32_t marker = (int32_t)s->vocab - 1;

	(void)purpose;
	for (int64_t t = 0; t < s->length - 1; t++) {
		out->tokens[t] = (int32_t)rng_next_below(random, (uint64_t)marker);
		row_target(out, t, out->tokens[t], 0, 0.0);
	}
	out->tokens[s->length - 1] = marker;
}

static void compression_spell(const struct source *s, int32_t token, char text[SOURCE_TOKEN_TEXT])
{
	if (token == s->vocab - 1)
		snprintf(text, SOURCE_TOKEN_TEXT, ">");
	else
		snprintf(text, SOURCE_TOKEN_TEXT, "%d", token);
}

static const struct task compression = {
	.name = "compression",
	.open = compression_open,
	.generate = compression_generate,
	.spell = compression_spell,
	.reconstructs = true,
};
TASK(compression);
