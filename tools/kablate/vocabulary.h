/*
 * vocabulary - what the tokens of the configured data stand for: the text of a
 * tokenizer, or the letters in which a generated task is shown to a reader.
 */
#ifndef TOOLS_KABLATE_VOCABULARY_H
#define TOOLS_KABLATE_VOCABULARY_H

#include <stdio.h>

#include "core/util/config.h"
#include "core/util/hash.h"
#include "data/source.h"
#include "data/tokenizer/tokenizer.h"

#define VOCABULARY_PATH_SIZE 4096

struct vocabulary {
	struct tokenizer *tokenizer; /* NULL: the source spells tokens, with blanks between them */
	const struct source *source;
};

/*
 * `tokenizer` is as for tokenizer_open(); NULL: the tokenizer of the configured text.  Tokens of
 * generated tasks, and of token files without a tokenizer, are spelt.
 */
enum status vocabulary_open(struct vocabulary *v, const struct config *c,
			    const struct source *source, const char *tokenizer,
			    struct error *err) MUST_CHECK;
void vocabulary_close(struct vocabulary *v);

/* The number of tokens, and the token that ends a text; -1: there is none. */
int64_t vocabulary_size(const struct vocabulary *v);
int32_t vocabulary_end(const struct vocabulary *v);

/* Append the tokens of a text. */
enum status vocabulary_encode(const struct vocabulary *v, const char *text, struct ids *ids,
			      struct error *err) MUST_CHECK;

/* Writes tokens[at], with its component unless that is the task's first. */
void vocabulary_write(const struct vocabulary *v, const int32_t *tokens, int64_t at, FILE *out);

/*
 * What the tokens stand for: {"tokenizer": PATH or "bytes"}, or {"tokens": [TEXT, ...]} of a
 * generated task.
 */
void vocabulary_json(const struct config *c, const struct source *source, FILE *out);

/* The path of the tokenizer beside the configured token files; FAIL: there is none. */
enum status vocabulary_tokenizer(const struct config *c, char path[VOCABULARY_PATH_SIZE],
				 struct error *err) MUST_CHECK;

/* A name that two data sets share if their tokens mean the same; "": unknown. */
void vocabulary_name(const struct config *c, char name[SHA256_HEX_SIZE]);

#endif
