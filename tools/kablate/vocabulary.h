/*
 * vocabulary - what the tokens of the configured data stand for.
 */
#ifndef TOOLS_KABLATE_VOCABULARY_H
#define TOOLS_KABLATE_VOCABULARY_H

#include "core/util/config.h"
#include "core/util/hash.h"

#define VOCABULARY_PATH_SIZE 4096

/*
 * The tokenizer that lies beside the configured token files, as tokenizer_open() takes it; FAIL:
 * the task has no text, or its files came without a tokenizer.
 */
enum status vocabulary_tokenizer(const struct config *c, char path[VOCABULARY_PATH_SIZE],
				 struct error *err) MUST_CHECK;

/* A name that two data sets share if their tokens mean the same; "": unknown. */
void vocabulary_name(const struct config *c, char name[SHA256_HEX_SIZE]);

#endif
