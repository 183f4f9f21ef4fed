/*
 * split - the words of GPT-2's byte-pair encoding.
 *
 * The published pattern is
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * Apart from the contractions, the pattern only asks whether a symbol is a letter (L), a number
 * (N), white space (\s) or none of these.  So it is matched by hand with a table of classes, which
 * PCRE2 makes once.  \s is Unicode's White_Space, as in the published encoder; PCRE2's own \s also
 * holds U+180E.  Bytes that are not valid UTF-8 have no class.
 */
#ifndef DATA_TOKENIZER_SPLIT_H
#define DATA_TOKENIZER_SPLIT_H

#include <stddef.h>
#include <stdint.h>

#include "core/util/status.h"

struct split;

enum status split_new(struct split **split, struct error *err) MUST_CHECK;
void split_free(struct split *split);

/* The end of the word that starts at p < end. */
const uint8_t *split_next(const struct split *split, const uint8_t *p, const uint8_t *end);

/*
 * Where to cut a long text so that its parts have the words of the whole: at most `limit`
 * if there is such a place, otherwise the first one after it, otherwise `size`.
 */
size_t split_cut(const uint8_t *text, size_t size, size_t limit);

/* The version of Unicode that the classes follow. */
void split_unicode_version(char version[24]);

#endif
