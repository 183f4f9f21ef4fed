/*
 * weights_record - compares what a weights file says about its model with this model.
 *
 * The metadata of our files hold "identity" of the run, "tokenizer" where the
 * data have one, and "CONFIG_X" for every symbol that decides the function
 * (models/function.h).  A file without them is foreign: nothing can be compared.  The
 * final weights of a run also hold WEIGHTS_HASH, which the journal has, too.
 */
#ifndef TOOLS_KABLATE_WEIGHTS_RECORD_H
#define TOOLS_KABLATE_WEIGHTS_RECORD_H

#include "core/train/checkpoint.h"
#include "core/util/hash.h"
#include "core/util/pool.h"
#include "core/util/safetensors.h"
#include "models/model.h"

#define WEIGHTS_RECORD_PAIRS 100

struct weights_record {
	struct pool pool;
	char tokenizer[SHA256_HEX_SIZE], hash[SHA256_HEX_SIZE];
	struct safetensors_pair pair[WEIGHTS_RECORD_PAIRS + 1]; /* ends with a NULL key */
	int n;
};

/* `identity` may still be empty, and must outlive the record. */
enum status weights_record_make(struct weights_record *r, const struct config *c, int64_t vocab,
				const char *identity, struct error *err) MUST_CHECK;
void weights_record_free(struct weights_record *r);

/* For the final weights: their hash. */
void weights_record_add_hash(struct weights_record *r, const char *hash);

/* What a file was found to be. */
struct weights_origin {
	bool foreign; /* the file does not name its model */
	char identity[SHA256_HEX_SIZE];
};

/*
 * FAIL if the file is damaged, or of another model than ours: the error names every difference that
 * weights_allowed() does not allow.  `note` gets the allowed ones.
 */
enum status weights_record_compare(const struct weights_record *ours, const char *path,
				   const char *allow, void (*note)(void *context, const char *text),
				   void *context, struct weights_origin *origin,
				   struct error *err) MUST_CHECK;

/* FAIL if the file lies in the directory of a run that recorded another hash of these parameters.
 */
enum status weights_record_check(const struct params *params, const char *path,
				 struct error *err) MUST_CHECK;

#endif
