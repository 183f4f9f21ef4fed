/*
 * prepare - text to token shards with a side file.
 *
 * Three stages work side by side on batches of spans: one thread reads batch k + 1, all encode
 * batch k, one writes batch k - 1.  Spans are written in the order of the text, so the result does
 * not depend on the number of threads.  In each split the end of text stands between documents.
 *
 * Everything is written to OUT.tmp and synced; one rename then makes it OUT.  An interrupted
 * preparation leaves OUT as it was, and the next one removes OUT.tmp.
 */
#ifndef DATA_PREPARE_H
#define DATA_PREPARE_H

#include <stdint.h>
#include <stdio.h>

#include "core/util/status.h"
#include "data/dataset.h"
#include "data/distinct.h"
#include "data/input.h"
#include "data/tokenizer/tokenizer.h"

/* The shard size of llm.c's data scripts. */
#define PREPARE_SHARD_TOKENS 100000000

struct prepare_options {
	const char *out; /* a directory: new, empty, or with prepared data */
	uint64_t shard_tokens;
	int threads;
	FILE *progress; /* a terminal, or NULL */
	/* Of the paths that were given, in their order: each is a component; 0: the text is one. */
	char (*component)[COMPONENT_NAME_SIZE];
	size_t components;
	const struct distinct *distinct; /* what is left out, or NULL */
};

/* The caller frees *result with dataset_free(). */
enum status prepare(struct input *in, const struct tokenizer *t,
		    const struct prepare_options *options, struct dataset *result,
		    struct error *err) MUST_CHECK;

/* The vocabulary of all characters in the input. */
enum status prepare_characters(struct input *in, struct tokenizer **t,
			       struct error *err) MUST_CHECK;

/* A byte-pair vocabulary from the training part of the input. */
enum status prepare_vocabulary(struct input *in, uint32_t vocabulary, int threads,
			       struct tokenizer **t, struct error *err) MUST_CHECK;

#endif
