/*
 * train - one run, from its first line of log to its last weight.
 *
 * The loop knows programs and parameters; struct workload says what is trained,
 * and on what.  All random numbers are functions of the seed and the iteration
 * alone, so a resumed run takes the same steps as an uninterrupted one.
 */
#ifndef CORE_TRAIN_TRAIN_H
#define CORE_TRAIN_TRAIN_H

#include "core/train/evaluate.h"
#include "core/record/metrics.h"
#include "core/optim/optim.h"
#include "core/train/progress.h"
#include "core/train/schedule.h"
#include "core/train/shards.h"
#include "core/train/workload.h"

struct train_options {
	uint64_t seed;
	int64_t iterations, batch, accumulate;
	int64_t eval_interval, log_interval, checkpoint_interval;
	int64_t checkpoint_keep, checkpoint_megabytes; /* 0: no limit */
	double seconds_budget, tokens_budget;	       /* 0: none */
	bool save_best;
	bool check_floor; /* a loss below the smallest possible one ends the run */
	struct schedule schedule;
	struct program_options program;
	struct shards *shards; /* NULL: one process, whose kernels add up micro-batches in place */
	bool ordered_sum;      /* the gradient of every micro-batch is made alone, then added */
	const char *run_dir;
	const char *identity;
	const struct safetensors_pair *about; /* as weights_save() takes it */
};

enum train_end {
	TRAIN_DONE,
	TRAIN_INTERRUPTED,
	TRAIN_DIVERGED,
	TRAIN_BUDGET,
	TRAIN_INVALID, /* the validation loss is lower than it can be */
};

struct trainer;

/*
 * With shards, every rank makes a trainer, and all of them call the same functions in the same
 * order. Rank 0 writes: the others have neither metrics nor a run directory.
 *
 * Builds the programs and takes all memory; runs nothing.  `params` must have
 * been initialised or loaded, and `optimizer` must be made for them.
 */
enum status trainer_create(struct trainer **t, const struct workload *workload,
			   const struct train_options *options, struct params *params,
			   struct optimizer *optimizer, const struct backend *backend,
			   struct error *err) MUST_CHECK;
void trainer_destroy(struct trainer *t);

/* Bytes of activations of the training and evaluation programs. */
size_t trainer_arena_bytes(const struct trainer *t);

/*
 * Seconds per iteration, from a few timed forward and backward passes that
 * leave weights and optimizer untouched.
 */
enum status trainer_estimate(struct trainer *t, double *seconds, struct error *err) MUST_CHECK;

/*
 * The main loss of the first update's last rows, as it is trained, and what it must be: the mean
 * over the scored targets alone.
 */
enum status trainer_first_loss(struct trainer *t, double *trained, double *mean,
			       struct error *err) MUST_CHECK;

/* The newest usable checkpoint of the run directory; *iteration is -1 when there is none. */
enum status trainer_resume(struct trainer *t, int64_t *iteration, struct progress *progress,
			   struct error *err) MUST_CHECK;

/*
 * Train to the end, or until a signal, a budget or divergence.  `reason` says
 * why, unless *end is TRAIN_DONE.  FAIL: something outside the training went wrong.
 */
enum status trainer_run(struct trainer *t, struct metrics *m, struct progress *progress,
			enum train_end *end, struct error *reason, struct error *err) MUST_CHECK;

#endif
