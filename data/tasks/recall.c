/*
 * recall - in-context recall of MAD: key-value pairs with repeated keys.
 */
#include "data/tasks/option.h"
#include "data/tasks/pairs.h"
#include "data/tasks/tasks.h"

static enum status recall_open(struct source *s, struct config *c, struct error *err)
{
	if (option_int(c, "RECALL_VOCAB", 2, OPTION_MAX_VOCAB, &s->vocab, err))
		return FAIL;
	return pairs_open(s, 0, 0, err);
}

const struct task task_recall = {
	.name = "recall",
	.open = recall_open,
	.close = pairs_close,
	.generate = pairs_generate,
};
