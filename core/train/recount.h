/*
 * recount - the sums of an evaluation, made a second time in another way.
 *
 * The losses are read from the program again and the targets made again, row by row.  What an
 * evaluation reports must be these sums.
 */
#ifndef CORE_TRAIN_RECOUNT_H
#define CORE_TRAIN_RECOUNT_H

#include "core/ranks/ranks.h"
#include "core/train/workload.h"

struct recount_sum {
	int64_t count; /* targets */
	long double loss, hits;
};

/* Of all targets, and by component. */
struct recount {
	struct recount_sum all, component[WORKLOAD_MAX_COMPONENTS];
};

/* What is needed to count. */
struct recounter {
	const struct workload *workload;
	const struct token_program *forward;
	int64_t rows, made;	 /* of a run of `forward`; those that recount_begin() made */
	double *nll, *hit;	 /* of such a run, replica by replica */
	struct workload_row all; /* the rows, one after the other */
};

/* What is pointed to must outlive it.  After a failure recounter_close() is due as well. */
enum status recounter_open(struct recounter *c, const struct workload *workload,
			   const struct token_program *forward, int replicas, int64_t rows,
			   struct error *err) MUST_CHECK;
void recounter_close(struct recounter *c);

/* Makes the rows from `first` on, which `forward` has just run, and reads their losses. */
void recount_begin(struct recounter *c, uint64_t first);

/* Adds what a replica scored on these rows. */
void recount_rows(const struct recounter *c, int replica, struct recount *sums);

/* The sum over all ranks; NULL: this process is alone. */
enum status recount_over_ranks(struct recount *sums, struct ranks *ranks,
			       struct error *err) MUST_CHECK;

/* Are these the mean loss, the accuracy and the number of targets? */
bool recount_agrees(const struct recount_sum *s, int64_t count, double loss, double accuracy);

#endif
