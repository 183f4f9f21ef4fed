/*
 * checkpoint - a saved state of a run; the run goes on from it with the same bits.
 *
 * RUN_DIR/checkpoint-00000500/ holds weights.safetensors, optimizer.safetensors
 * and state.json.  The directory is written under another name, synced to the
 * disk and then renamed, so it is never half written.  An old checkpoint is
 * removed only after the new one is safe on the disk.  A removal that was killed
 * may leave a part of a checkpoint; loading skips it like any damaged one.
 */
#ifndef CORE_TRAIN_CHECKPOINT_H
#define CORE_TRAIN_CHECKPOINT_H

#include "core/optim/optim.h"
#include "core/train/data_sum.h"
#include "core/engine/params.h"
#include "core/record/metrics.h"
#include "core/util/safetensors.h"

struct checkpoint_state {
	int64_t iteration;
	int64_t best_iteration; /* -1: not evaluated yet */
	double best_loss;
	double tokens;		     /* seen in training */
	double seconds;		     /* spent in training */
	int64_t clips;		     /* updates clipped since the last logging interval */
	struct data_sum given;	     /* training rows; of an older form: unknown */
	uint64_t digest;	     /* update_audit_digest(); 0: unknown */
	struct journal_mark journal; /* how far the journal had come; no lines: not known */
};

struct checkpoint {
	const char *run_dir;
	const char *identity; /* of the run; checkpoints of other runs are refused */
	const struct safetensors_pair
		*about; /* written into the weights' file; see weights_save() */
	struct params *params;
	struct optimizer *optimizer;
	int replica;	       /* of the backend */
	struct shards *shards; /* NULL: the optimizer has the state of all parameters */
	int64_t keep;	       /* how many of the newest are kept, at least 1 */
	int64_t megabytes;     /* disk budget; 0: none.  The newest is always kept. */
};

/* Bytes of tensors in one checkpoint. */
double checkpoint_bytes(const struct checkpoint *c);

/* The newest checkpoint, whole or not; -1: there is none. */
int64_t checkpoint_newest(const char *run_dir);

/*
 * Save, then remove older checkpoints beyond the limits.  Several threads may save at a time, each
 * the checkpoint of another run.
 */
enum status checkpoint_save(const struct checkpoint *c, const struct checkpoint_state *state,
			    struct error *err) MUST_CHECK;

/* Remove checkpoints beyond the limits, never `saved`.  checkpoint_save() ends with this. */
enum status checkpoint_prune(const struct checkpoint *c, int64_t saved,
			     struct error *err) MUST_CHECK;

/*
 * Load the newest whole checkpoint up to which the journal is whole, too.  Others are passed
 * over and put aside, and `warn` gets the reason.  One of another run is an error.  So it is
 * if checkpoints are whole but the journal covers none of them: it is not thrown away
 * unasked.  *found is false when there is none.
 */
enum status checkpoint_load(const struct checkpoint *c, struct checkpoint_state *state, bool *found,
			    void (*warn)(void *context, const char *text), void *context,
			    struct error *err) MUST_CHECK;

/*
 * Are all checkpoints whole, of the run with this identity, and covered by its journal?  Nothing is
 * changed; `wrong` gets a line for each that is not.
 */
enum status checkpoint_check_all(const char *run_dir, const char *identity,
				 void (*wrong)(void *context, const char *text), void *context,
				 struct error *err) MUST_CHECK;

/* The weights alone, as weights_save() writes them; by several threads as well. */
enum status checkpoint_save_weights(const struct checkpoint *c, const char *path,
				    struct error *err) MUST_CHECK;

/* In the metadata of final weights: params_hash(). */
#define WEIGHTS_HASH "parameters_sha256"

/*
 * Weights alone, as safetensors: the final ones, an export.  Of replicas, those of the chosen
 * one.  `about` says in the file's metadata what they are weights of; it ends with a NULL key,
 * NULL: nothing is said.
 */
enum status weights_save(const struct params *params, const char *path,
			 const struct safetensors_pair *about, struct error *err) MUST_CHECK;

#endif
