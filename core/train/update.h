/*
 * update - the passes of one update: forward and backward over its micro-batches, of all runs.
 *
 * The ranks of a run share the micro-batches.  Afterwards the gradients are in the parameters, or
 * in the shards, and every rank has the losses of all micro-batches.
 */
#ifndef CORE_TRAIN_UPDATE_H
#define CORE_TRAIN_UPDATE_H

#include "core/train/data_sum.h"
#include "core/train/train.h"

struct update {
	const struct train_run *runs; /* by replica */
	int n;
	int helpers;			 /* threads of the host, for several runs */
	int *makers, n_makers;		 /* the first run of each seed: the others have its rows */
	const struct workload *workload; /* what the runs have in common */
	const struct train_options *options;
	const struct backend *backend;
	struct ranks *ranks; /* NULL: this process is alone */
	struct token_program training;
	struct run *run;	   /* by replica: what the kernels find of it */
	int32_t *tokens, *targets; /* [accumulate, n, batch, length] */
	int64_t *scored;	   /* targets, by replica */
	struct data_sum *given;	   /* by replica: to this rank's programs, by the last update */
	double *weights;	   /* [n, 2] of the losses, as the graph's type */
	int n_losses;		   /* of a micro-batch */
	double *losses;		   /* device: of the micro-batches, one after another */
	double *seen_losses;	   /* the same on the host, replica by replica */
	double *own_losses, *all_losses; /* by round and loss; by rank, round and loss */
};

/* Losses by their plain names, weighted: summed over layers and micro-batches. */
#define MAX_LOSS_PARTS 8

struct loss_parts {
	int n;
	const char *name[MAX_LOSS_PARTS];
	double value[MAX_LOSS_PARTS];
	double total;
};

/* What is pointed to must outlive the update.  After a failure update_close() is due as well. */
enum status update_open(struct update *u, const struct train_run *runs, int n,
			struct params *params, const struct backend *backend, struct error *err);
void update_close(struct update *u);

int64_t update_tokens(const struct update *u);
int update_losses(const struct update *u);

enum status update_run(struct update *u, int64_t iteration, struct error *err);

/* Reads the losses of the last update, of all replicas; then those of replica i. */
void update_read_losses(struct update *u);
void update_loss_parts(const struct update *u, int i, struct loss_parts *parts);

/*
 * The last micro-batch of this rank: its rows, and the loss of each of its targets, one replica
 * after the other; of replica i the loss "main", and its mean by target.
 */
struct update_rows {
	const int32_t *tokens, *targets;
	int64_t n; /* tokens of a replica */
};
struct update_rows update_last_rows(const struct update *u);
void update_read_nll(const struct update *u, double *nll);
void update_read_last(const struct update *u, int i, const double *nll, double *trained,
		      double *mean);

#endif
