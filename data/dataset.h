/*
 * dataset - the side file of prepared data: it describes the shards beside it.
 *
 * DIRECTORY/data.json names the tokenizer (its file lies in the same directory), the vocabulary,
 * the source, and for each split its documents, bytes of text, tokens and shards.  The SHA-256 of a
 * shard covers its tokens without the header, so it does not depend on the form of the file.
 */
#ifndef DATA_DATASET_H
#define DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/util/hash.h"
#include "core/util/status.h"
#include "data/input.h"

#define DATASET_FILE "data.json"

/* The end of an error about data: how to repair it. */
#define DATASET_REMEDY "prepare the data with `make data`"

enum { DATASET_NAME_SIZE = 64, DATASET_COMPONENTS = 8, COMPONENT_NAME_SIZE = 24 };

struct shard_info {
	char file[DATASET_NAME_SIZE];
	uint64_t tokens;
	char sha256[SHA256_HEX_SIZE];
};

struct split_info {
	uint64_t documents, bytes, tokens;
	struct shard_info *shard;
	size_t shards;
};

/* A part of the text that evaluations also show alone; the tokens of a split are in the order of
 * components. */
struct component_info {
	char name[COMPONENT_NAME_SIZE];
	uint64_t tokens[SPLITS];
};

struct dataset {
	char tokenizer[DATASET_NAME_SIZE];	/* its kind */
	char tokenizer_file[DATASET_NAME_SIZE]; /* empty for bytes */
	char unicode[DATASET_NAME_SIZE];	/* version of the classes that split words */
	uint32_t vocabulary;
	int32_t end_of_text; /* between documents; -1: there is none */
	bool divided;	     /* a single text: the last part is validation; else by document */
	double valid_share;
	uint64_t source_files, source_bytes;
	char source_sha256[SHA256_HEX_SIZE];
	uint64_t duplicates, leaks; /* documents left out (data/distinct.h) */
	struct component_info component[DATASET_COMPONENTS];
	size_t components; /* 0: the text is one */
	struct split_info split[SPLITS];
};

/* "train" or "valid", also the first part of a shard's name. */
const char *split_name(enum data_split split);

/* Letters, digits and _: it becomes part of the names of metrics. */
bool component_name_fits(const char *name);

enum status split_add_shard(struct split_info *split, const struct shard_info *shard,
			    struct error *err) MUST_CHECK;

enum status dataset_write(const struct dataset *d, const char *directory,
			  struct error *err) MUST_CHECK;
enum status dataset_read(const char *directory, struct dataset *d, struct error *err) MUST_CHECK;
enum status dataset_parse(const uint8_t *json, size_t size, struct dataset *d,
			  struct error *err) MUST_CHECK;
void dataset_free(struct dataset *d);

/* The shard of this name, or NULL. */
const struct shard_info *dataset_find(const struct dataset *d, const char *file);

#endif
