/*
 * bpe_train - a byte-pair vocabulary made from a text.
 *
 * Count the words of the text.  Then, until the vocabulary is full, make a token of the most
 * frequent pair of neighbours (on a tie: the smaller left id, then the smaller right id).  A pair
 * whose bytes are a token already is skipped, so every token has different bytes.
 */
#ifndef DATA_TOKENIZER_BPE_TRAIN_H
#define DATA_TOKENIZER_BPE_TRAIN_H

#include <stddef.h>
#include <stdint.h>

#include "core/util/status.h"
#include "data/tokenizer/intern.h"
#include "data/tokenizer/split.h"
#include "data/tokenizer/tokenizer.h"

/* The words met so far and how often; start from zero. */
struct word_counts {
	struct strings words;
	uint64_t *count;
	size_t room;
};

enum status word_counts_add(struct word_counts *c, const struct split *split, const uint8_t *text,
			    size_t size, struct error *err) MUST_CHECK;
/* Add the counts of `from`, for instance those of another thread. */
enum status word_counts_merge(struct word_counts *c, const struct word_counts *from,
			      struct error *err) MUST_CHECK;
void word_counts_free(struct word_counts *c);

/* `vocabulary` ids in all: 256 bytes, the merges, the end of text. */
enum status bpe_train(const struct word_counts *c, uint32_t vocabulary, struct tokenizer **t,
		      struct error *err) MUST_CHECK;

#endif
