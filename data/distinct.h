/*
 * distinct - which documents say something that no other document of the input says.
 *
 * A document is seen as its shingles: all runs of SHINGLE_WORDS words (letters, digits, _), of
 * which one in SHINGLE_SAMPLE is kept, by its hash, so that equal runs are kept everywhere or
 * nowhere.  In the order of the input, a training document is left out if DUPLICATE_SHARE of its
 * shingles occur in training documents before it; a validation document is left out if LEAK_SHARE
 * of them occur in any training document that is kept, or DUPLICATE_SHARE in validation documents
 * before it. Equal documents are found at any length: a hash of all their words is one more
 * shingle.  So nothing is seen twice, and no validation document is made of what was trained on,
 * even if its parts come from many documents.
 */
#ifndef DATA_DISTINCT_H
#define DATA_DISTINCT_H

#include "data/input.h"

enum { SHINGLE_WORDS = 13, SHINGLE_SAMPLE = 16 };
#define DUPLICATE_SHARE 0.8
#define LEAK_SHARE 0.5

/* What of a whole input is left out, by the number of the document. */
struct distinct {
	uint8_t *is_left_out;
	uint64_t documents;
	uint64_t duplicates,
		leaks; /* left out: training or validation again, training in validation */
};

/* Reads files twice: standard input is refused.  The caller frees *d with distinct_free(). */
enum status distinct_find(char *const *paths, size_t count, double valid_share, struct distinct *d,
			  struct error *err) MUST_CHECK;
void distinct_free(struct distinct *d);

#endif
