/*
 * replica - one run of the group that a trainer trains: its state, its records, and how it ends.
 *
 * Of the device, the run's own replica must be the chosen one.  FAIL: something outside the
 * training went wrong; a run that diverges is OK, and over.
 */
#ifndef CORE_TRAIN_REPLICA_H
#define CORE_TRAIN_REPLICA_H

#include "core/train/checkpoint.h"
#include "core/train/train.h"
#include "core/train/update.h"
#include "core/train/update_audit.h"

struct replica {
	struct train_run *run;
	int number;
	const struct backend *backend;
	struct checkpoint checkpoint;
	struct checkpoint_state state;
	int64_t saved;	       /* iteration of the newest whole checkpoint; -1: none */
	double started;	       /* when the run would have started, had nothing interrupted it */
	double loss, norm;     /* of the last update that is settled; norm: of its gradient */
	double validation;     /* loss of the last evaluation */
	struct data_sum given; /* this rank's rows that state.given does not cover */
	const struct update_audit *audit; /* NULL: none */
	int64_t unexplained; /* iteration in which it diverged, until the tensor is found; or 0
			      */
	bool is_best;	     /* the weights are the best so far, and not saved as such */
	bool is_unsaved;     /* a checkpoint of this iteration is missing */
	bool stops;	     /* a budget is used up */
	bool over;	     /* it ended before the others, or takes no part */
};

double seconds_now(void);

/* FAIL: one checkpoint alone takes more than the disk budget. */
enum status replica_open(struct replica *r, int number, struct train_run *run,
			 struct params *params, struct optimizer *optimizer,
			 struct error *err) MUST_CHECK;

/* It ends here, and is not updated any more; run->reason has been set. */
void replica_end(struct replica *r, enum train_end end);
void replica_end_by_budget(struct replica *r);
void replica_diverge(struct replica *r, int64_t iteration, const char *where);

/* The run ends as invalid: what was done is not what is configured. */
void replica_fail_audit(struct replica *r, const char *subject, const char *format, ...)
	PRINTF_LIKE(3, 4);

/* Counts the rows of all ranks so far into state.given. */
enum status replica_sum_rows(struct replica *r, struct error *err) MUST_CHECK;

/* What the issued updates did; `logging`: records the losses of the last one as well. */
void replica_settle(struct replica *r, const struct optim_reports *reports,
		    const struct loss_parts *parts, bool logging);

enum status replica_take_evaluation(struct replica *r, const struct evaluation *e,
				    int64_t iteration, struct error *err) MUST_CHECK;

/* If the last evaluation was the best one. */
enum status replica_save_best(struct replica *r, struct error *err) MUST_CHECK;

/* What is recorded once, after the last evaluation. */
enum status replica_conclude(struct replica *r, int64_t iteration, struct error *err) MUST_CHECK;

/* The end of a logging interval; `share`: of this process's memory. */
enum status replica_log(struct replica *r, int64_t iteration, double tokens_per_second,
			double share, bool commit, struct error *err) MUST_CHECK;

/* Is a checkpoint of this iteration missing?  What is recorded so far is on the disk then. */
enum status replica_prepare_save(struct replica *r, bool *missing, struct error *err) MUST_CHECK;

/* Is a budget of tokens used up, or (by this process's clock) of time? */
bool replica_out_of_tokens(const struct replica *r);
bool replica_out_of_time(const struct replica *r);

#endif
