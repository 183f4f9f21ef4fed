/*
 * state_text - reads the state.json of a checkpoint.
 */
#ifndef CORE_TRAIN_STATE_TEXT_H
#define CORE_TRAIN_STATE_TEXT_H

#include <cjson/cJSON.h>

#include "core/train/checkpoint.h"
#include "core/util/hash.h"

#define STATE_HASH "  \"sha256\": " /* of all that stands before it in the state */

void state_hash(const char *text, size_t size, char hex[SHA256_HEX_SIZE]);

/* NULL: the text is damaged.  The caller deletes what it gets: the identity and the hashes of files
 * are in it. */
cJSON *state_parse(const char *text, struct checkpoint_state *state, struct optim_scalars *scalars);

#endif
