/*
 * train - runs, from their first line of log to their last weight.
 *
 * The loop knows programs and parameters; struct workload says what is trained,
 * and on what.  All random numbers are functions of the seed and the iteration
 * alone, so a resumed run takes the same steps as an uninterrupted one.
 *
 * Several runs of one step train together, as replicas of one program: each iteration is one pass
 * over all of them.  Rows, losses, clipping, rates, records and checkpoints are each run's own, and
 * a run that ends early or fails leaves the others as they are.  A single run is a group of one.
 */
#ifndef CORE_TRAIN_TRAIN_H
#define CORE_TRAIN_TRAIN_H

#include "core/train/evaluate.h"
#include "core/record/metrics.h"
#include "core/optim/optim.h"
#include "core/train/phases.h"
#include "core/train/progress.h"
#include "core/train/prune.h"
#include "core/train/schedule.h"
#include "core/train/shards.h"
#include "core/train/workload.h"

struct config;

struct train_options {
	uint64_t seed; /* runs of a group that have the same one train on the same rows */
	int64_t iterations, batch, accumulate;
	int64_t eval_interval, log_interval, checkpoint_interval;
	int64_t checkpoint_keep, checkpoint_megabytes; /* 0: no limit */
	double seconds_budget, tokens_budget;	       /* 0: none */
	bool save_best;
	bool check_floor; /* a loss below the smallest possible one ends the run */
	struct schedule schedule;
	struct prune_options prune;
	struct program_options program;
	struct shards *shards; /* NULL: one process, whose kernels add up micro-batches in place */
	bool ordered_sum;      /* the gradient of every micro-batch is made alone, then added */
	const struct config *audited; /* updates must be those of this one; NULL: no audit */
	double scoring_tolerance;     /* nats between training and evaluation; 0: not audited */
	struct phases *phases;	      /* NULL: times are not measured */
	/* Called after the last update and its evaluation: samples and records follow.  Or NULL. */
	void (*trained)(void *context);
	void *trained_context;
	const char *run_dir;
	const char *identity;
	const struct safetensors_pair *about; /* as weights_save() takes it */
};

enum train_end {
	TRAIN_DONE,
	TRAIN_INTERRUPTED,
	TRAIN_DIVERGED,
	TRAIN_BUDGET,
	TRAIN_INVALID, /* an audit failed: what was done is not what is configured */
	TRAIN_FAILED,  /* something outside the training went wrong, such as a full disk */
};

/* One run of a group.  All have the same programs, intervals and number of iterations. */
struct train_run {
	struct workload workload;
	struct train_options options;
	struct metrics *metrics; /* from trainer_run() on; NULL: this rank records nothing */
	bool left_out;		 /* set before trainer_run(): it takes no part */
	enum train_end end;
	struct error reason; /* unless it ends with TRAIN_DONE */
};

struct trainer;

/*
 * With shards, every rank makes a trainer of one run, and all of them call the same functions in
 * the same order. Rank 0 writes: the others have neither metrics nor a run directory.
 *
 * Builds the programs and takes all memory; runs nothing.  `runs` must outlive the trainer. Replica
 * i of `params` must have been initialised or loaded for runs[i], and `optimizer` must be made for
 * them.
 */
enum status trainer_create(struct trainer **t, struct train_run *runs, int n, struct params *params,
			   struct optimizer *optimizer, const struct backend *backend,
			   struct error *err) MUST_CHECK;
void trainer_destroy(struct trainer *t);

/* Bytes of activations of the training and evaluation programs, of one run. */
size_t trainer_arena_bytes(const struct trainer *t);

/*
 * Seconds per iteration, from a few timed forward and backward passes that
 * leave weights and optimizer untouched.
 */
enum status trainer_estimate(struct trainer *t, double *seconds, struct error *err) MUST_CHECK;

/*
 * By run: the main loss of the first update's last rows, as it is trained, and what it must be: the
 * mean over the scored targets alone.  The evaluation scores the same rows: without dropout alike.
 */
struct first_loss {
	double trained, mean;
	double difference; /* the largest, of a target's loss, between training and evaluation */
};
enum status trainer_first_loss(struct trainer *t, struct first_loss *losses,
			       struct error *err) MUST_CHECK;

/* Loads the newest usable checkpoint of runs[i]; *iteration is -1 when there is none. */
enum status trainer_resume(struct trainer *t, int i, int64_t *iteration, struct progress *progress,
			   struct error *err) MUST_CHECK;

/*
 * Train until every run has come to its end, or a signal, a budget or divergence stops it.  All
 * runs that take part must have resumed at the same iteration.  FAIL: the device failed, or a rank;
 * no run can go on.
 */
enum status trainer_run(struct trainer *t, struct progress *progress, struct error *err) MUST_CHECK;

#endif
