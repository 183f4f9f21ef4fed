/*
 * tokens - files of token ids, memory-mapped: the reader and the writer.
 *
 * Two forms, both little-endian uint16 ids:
 *     nanoGPT  nothing but ids
 *     llm.c    256 int32 (20240520, 1, count, zeros), then count ids
 * Ours are llm.c shards with a side file (data/dataset.h).  If the directory has a side file, it
 * must list every shard with its number of tokens and its hash.  A file without the magic number is
 * raw. Refused are: a header (three words, then zeros) with another magic number, odd sizes, counts
 * that do not fit, and ids beyond the vocabulary.
 */
#ifndef DATA_TOKENS_H
#define DATA_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "core/util/hash.h"
#include "core/util/status.h"
#include "data/dataset.h"

struct tokens;

/*
 * Open the shards that match a pattern of glob(7), in the order of their names, as one stream. They
 * must lie in one directory and hold at least `least` tokens, all below `vocabulary` and below the
 * side file's.  Reads everything once, shards in parallel.
 */
enum status tokens_open(const char *pattern, uint32_t vocabulary, uint64_t least, struct tokens **t,
			struct error *err) MUST_CHECK;
void tokens_close(struct tokens *t);

uint64_t tokens_count(const struct tokens *t);
/* start + n <= tokens_count() */
void tokens_copy(const struct tokens *t, uint64_t start, size_t n, int32_t *out);
/* SHA-256 over the shards' hashes: the identity of the data. */
const char *tokens_hash(const struct tokens *t);
/* The side file, or NULL where there is none. */
const struct dataset *tokens_dataset(const struct tokens *t);
/* The directory of the shards. */
const char *tokens_directory(const struct tokens *t);

/* Find the ids in the bytes of a file; `listed` is its entry in the side file, or NULL. */
enum status tokens_parse(const uint8_t *data, size_t size, const struct shard_info *listed,
			 const uint16_t **id, uint64_t *count, struct error *err) MUST_CHECK;

/* Writes DIRECTORY/SPLIT-000000.bin and on, `limit` tokens in each. */
struct token_writer;

enum status token_writer_new(const char *directory, const char *split, uint64_t limit,
			     struct token_writer **w, struct error *err) MUST_CHECK;
/* Finished shards are added to `split`. */
enum status token_writer_add(struct token_writer *w, const uint16_t *id, size_t count,
			     struct split_info *split, struct error *err) MUST_CHECK;
enum status token_writer_finish(struct token_writer *w, struct split_info *split,
				struct error *err) MUST_CHECK;
void token_writer_free(struct token_writer *w);

#endif
