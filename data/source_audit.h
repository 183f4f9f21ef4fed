/*
 * source_audit - are the rows of a source what a comparison takes them for?
 *
 *   targets   each is the next token of its row, or follows the task's own rule; training
 *             scores as many of a row as validation
 *   seeds     another seed sees other training rows, and so does another iteration; of the first
 *             rows at least half as many are different as of validation
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

/* The rows that the training asks for, of this seed and of another, and those of the evaluation. */
struct source_rows {
	void *context;
	void (*train)(void *context, uint64_t seed, uint64_t iteration, uint64_t row,
		      struct row *out);
	void (*valid)(void *context, uint64_t index, struct row *out);
};

/* `updates` of `batch` rows are to be trained on.  FAIL only when the audit could not be made. */
enum status source_audit(const struct source *s, const struct source_rows *rows, int64_t updates,
			 int64_t batch,
			 void (*visit)(void *context, const struct source_finding *finding),
			 void *context, struct error *err) MUST_CHECK;

#endif
