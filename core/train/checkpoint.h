/*
 * checkpoint - a moment of a run from which it can go on, bit by bit.
 *
 * RUN_DIR/checkpoint-00000500/ holds weights.safetensors, optimizer.safetensors
 * and state.json.  It is written under another name, brought to the disk and
 * then renamed, so that a directory of this name is always whole (a removal that was
 * killed may leave a part of one: it is passed over like any damaged one); an old one
 * is removed only after the new one is durable.
 */
#ifndef CORE_TRAIN_CHECKPOINT_H
#define CORE_TRAIN_CHECKPOINT_H

#include "core/optim/optim.h"
#include "core/engine/params.h"

struct checkpoint_state {
	int64_t iteration;
	int64_t best_iteration; /* -1: not evaluated yet */
	double best_loss;
	double tokens;	/* seen in training */
	double seconds; /* spent in training */
	int64_t clips;	/* updates clipped since the last logging interval */
};

struct checkpoint {
	const char *run_dir;
	const char *identity; /* of the run: a checkpoint of another one is refused */
	struct params *params;
	struct optimizer *optimizer;
	int64_t keep;	   /* how many of the newest are kept, at least 1 */
	int64_t megabytes; /* disk budget; 0: none.  The newest is always kept. */
};

/* Bytes of tensors in one checkpoint. */
double checkpoint_bytes(const struct checkpoint *c);

/* Save, then remove what is no longer to be kept. */
enum status checkpoint_save(const struct checkpoint *c, const struct checkpoint_state *state,
			    struct error *err) MUST_CHECK;

/* Remove what is not to be kept beside checkpoint `saved`; checkpoint_save() ends with it. */
enum status checkpoint_prune(const struct checkpoint *c, int64_t saved,
			     struct error *err) MUST_CHECK;

/*
 * Load the newest whole checkpoint.  A damaged one is passed over, with the
 * reason told to `warn`; one of another run is an error.  *found is false
 * when there is none.
 */
enum status checkpoint_load(const struct checkpoint *c, struct checkpoint_state *state, bool *found,
			    void (*warn)(void *context, const char *text), void *context,
			    struct error *err) MUST_CHECK;

/* Weights alone, as safetensors: the final ones, the best ones, an export. */
enum status weights_save(const struct params *params, const char *path, const char *identity,
			 struct error *err) MUST_CHECK;

#endif
