/*
 * source_audit - are the rows of a source what a comparison takes them for?
 *
 *   targets   each is the next token of its row, or follows the task's own rule
 *   seeds     another seed sees other training rows, and so does another iteration
 *   overlap   validation rows are no training rows: no stretch of WINDOW tokens (a whole row
 *             where rows are shorter, or are drawn one by one) occurs in both; a few repeated
 *             texts are counted, more of them mean that the ranges overlap
 */
#ifndef DATA_SOURCE_AUDIT_H
#define DATA_SOURCE_AUDIT_H

#include "data/source.h"

struct source_finding {
	const char *subject;
	bool passed;
	char detail[160];
};

/* `updates` of `batch` rows are to be trained on.  FAIL only when the audit could not be made. */
enum status source_audit(const struct source *s, int64_t updates, int64_t batch,
			 void (*visit)(void *context, const struct source_finding *finding),
			 void *context, struct error *err) MUST_CHECK;

#endif
