/*
 * noisy - noisy in-context recall of MAD: recall with noise tokens between pairs.
 */
#include "data/source.h"
#include "data/tasks/option.h"
#include "data/tasks/pairs.h"

static enum status noisy_open(struct source *s, struct config *c, struct error *err)
{
	int64_t tokens, percent;

	if (option_int(c, "NOISY_VOCAB", 3, OPTION_MAX_VOCAB, &s->vocab, err) ||
	    option_int(c, "NOISY_TOKENS", 1, OPTION_MAX_VOCAB, &tokens, err) ||
	    option_int(c, "NOISY_PERCENT", 0, 90, &percent, err))
		return FAIL;
	return pairs_open(s, tokens, percent, err);
}

static const struct task noisy = {
	.name = "noisy",
	.open = noisy_open,
	.close = pairs_close,
	.generate = pairs_generate,
	.spell = pairs_spell,
};
TASK(noisy);
