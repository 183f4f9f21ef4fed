#include "models/audit/auditor.h"

#include <stdlib.h>
#include <string.h>

#define NEIGHBOURS 10 /* the number of the first batch that serves as other rows */

/* Runs batch 0 again, after the changed batches: the logits must be the same. */
static enum status compare_logits(struct auditor *a, bool *same, struct error *err)
{
	if (auditor_logits(&a->logits, a->tokens, a->now, err) != OK)
		return FAIL;
	*same = memcmp(a->base, a->now, a->bytes) == 0;
	return OK;
}

/* All rows but one get other tokens: no bit of that row's logits may change. */
static enum status compare_neighbours(struct auditor *a, bool *same, struct error *err)
{
	const int64_t T = a->options->length, rows = a->options->rows;
	const size_t bytes = a->bytes / (size_t)rows;

	*same = true;
	for (int64_t kept = 0; kept<rows; kept += rows> 1 ? rows - 1 : 1) {
		auditor_draw_tokens(a, (uint64_t)(NEIGHBOURS + kept), a->changed, rows * T);
		memcpy(a->changed + kept * T, a->tokens + kept * T, (size_t)T * sizeof(*a->tokens));
		if (auditor_logits(&a->logits, a->changed, a->now, err) != OK)
			return FAIL;
		*same = *same && memcmp(a->base + (size_t)kept * bytes,
					a->now + (size_t)kept * bytes, bytes) == 0;
	}
	return OK;
}

/*
 * If each row of batch 0 kept its logits after another batch, beside other rows, then batch 0 need
 * not run again.
 */
static enum status audit_logits(struct auditor *a, struct error *err)
{
	bool alone, same = true;

	if (compare_neighbours(a, &alone, err) != OK)
		return FAIL;
	if (!(alone && a->options->rows <= 2) && compare_logits(a, &same, err) != OK)
		return FAIL;
	if (auditor_add(a, "state", "logits", same,
			same ? "" : "those of a batch depend on the batch before it", err) != OK)
		return FAIL;
	return auditor_add(a, "state", "neighbours", alone,
			   alone ? "" : "the logits of a row depend on the other rows of its batch",
			   err);
}

/* Runs batch 0 before and after another batch: the gradients must be the same. */
static enum status compare_gradients(struct auditor *a, bool *same, struct error *err)
{
	enum status status = FAIL;
	bool differ = true;
	char *copy;

	if (auditor_train(a, &a->training, 0, err) != OK)
		return FAIL;
	copy = auditor_copy_gradients(a, err);
	if (copy && auditor_train(a, &a->training, 1, err) == OK &&
	    auditor_train(a, &a->training, 0, err) == OK)
		status = auditor_gradients_differ(a, copy, &differ, err);
	free(copy);
	*same = !differ;
	return status;
}

static enum status audit_gradients(struct auditor *a, struct error *err)
{
	bool same;

	if (auditor_gradients_repeat(a, &same, err) != OK ||
	    (!same && compare_gradients(a, &same, err) != OK))
		return FAIL;
	return auditor_add(a, "state", "gradients", same,
			   same ? "" : "those of a batch depend on the batch before it", err);
}

enum status audit_state(struct auditor *a, struct error *err)
{
	if (audit_logits(a, err) != OK)
		return FAIL;
	return audit_gradients(a, err);
}
