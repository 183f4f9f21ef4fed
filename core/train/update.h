/*
 * update - the passes of one update: forward and backward over its micro-batches.
 *
 * The ranks of a run share the micro-batches.  Afterwards the gradients are in the parameters, or
 * in the shards, and every rank has the losses of all micro-batches.
 */
#ifndef CORE_TRAIN_UPDATE_H
#define CORE_TRAIN_UPDATE_H

#include "core/train/train.h"

struct update {
	const struct workload *workload;
	const struct train_options *options;
	const struct backend *backend;
	struct ranks *ranks; /* NULL: this process is alone */
	struct token_program training;
	int32_t *tokens, *targets;	 /* [accumulate * batch, length] */
	int64_t scored;			 /* targets */
	int n_losses;			 /* of a micro-batch */
	double *losses;			 /* device: of the micro-batches, one after another */
	double *seen_losses;		 /* the same on the host */
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
enum status update_open(struct update *u, const struct workload *workload,
			const struct train_options *options, struct params *params,
			const struct backend *backend, struct error *err);
void update_close(struct update *u);

int64_t update_tokens(const struct update *u);
int update_losses(const struct update *u);

enum status update_run(struct update *u, int64_t iteration, struct error *err);

/* The losses of the last update. */
void update_read_losses(struct update *u, struct loss_parts *parts);

#endif
