/*
 * bpe - the byte-pair encoding of GPT-2.
 *
 * (R. Sennrich et al., "Neural machine translation of rare words with subword units", ACL 2016;
 * A. Radford et al., "Language models are unsupervised multitask learners", 2019.)
 * A text is split into words (data/tokenizer/split.h).  A word starts as its bytes.  Then, again
 * and again, the neighbours (l, r) with the lowest rank in the list of merges are merged.
 *
 * The file is GPT-2's vocab.bpe: "#version: 0.2", then one merge "l r" per line; the rank is the
 * number of the line.  Bytes 33..126, 161..172 and 174..255 are written as the code points of the
 * same number; the other 68, in order, as U+0100, U+0101, ...  Ids: the 256 bytes, those with their
 * own code points first; then 256 + rank; then the end of text.  A file whose last line has no
 * newline is refused: it may be cut off.
 */
#ifndef DATA_TOKENIZER_BPE_H
#define DATA_TOKENIZER_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "core/util/status.h"
#include "data/tokenizer/tokenizer.h"

#define BPE_FILE "vocab.bpe"

enum { BPE_BYTES = 256 };

enum status bpe_parse(const uint8_t *file, size_t size, struct tokenizer **t,
		      struct error *err) MUST_CHECK;

/* From the two ids of each merge, in the order of their ranks. */
struct bpe_merge {
	uint16_t left, right;
};

enum status bpe_new(const struct bpe_merge *merge, size_t count, struct tokenizer **t,
		    struct error *err) MUST_CHECK;

/* The id of each byte. */
void bpe_byte_ids(uint16_t id_of[256]);

#endif
