/*
 * recall - in-context recall of MAD: key-value pairs with repeated keys.
 */
#include "data/source.h"
#include "data/tasks/option.h"
#include "data/tasks/pairs.h"

static enum status recall_open(struct source *s, struct config *c, struct error *err)
{
	if (option_int(c, "RECALL_VOCAB", 2, OPTION_MAX_VOCAB, &s->vocab, err))
		return FAIL;
	return pairs_open(s, 0, 0, err);
}

static const struct task recall = {
	.name = "recall",
	.open = recall_open,
	.close = pairs_close,
	.generate = pairs_generate,
	.spell = pairs_spell,
};
TASK(recall);
