/*
 * evaluate - the loss on fixed validation rows: cross-entropy alone.
 */
#ifndef CORE_TRAIN_EVALUATE_H
#define CORE_TRAIN_EVALUATE_H

#include "core/train/data_sum.h"
#include "core/train/recount.h"

/* Means over scored targets, of all or of one component. */
struct score {
	int64_t count;
	double loss;	 /* nats */
	double floor;	 /* smallest possible loss; NAN: unknown */
	double error;	 /* standard error of loss - floor; NAN: unknown */
	double accuracy; /* share of targets that are the model's first choice */
};

struct evaluation {
	struct score all, component[WORKLOAD_MAX_COMPONENTS];
	double bits_per_byte;  /* NAN: bytes are unknown */
	struct data_sum given; /* rows that were uploaded */
	double difference;     /* what evaluator_compare_trained() found; 0: it was not asked */
	struct recount recount;
};

struct evaluator;

/* Of `replicas` models; with ranks there is one. */
enum status evaluator_create(struct evaluator **e, const struct workload *workload, int replicas,
			     struct params *params, int64_t rows, const struct backend *backend,
			     const struct program_options *options, struct error *err) MUST_CHECK;
void evaluator_destroy(struct evaluator *e);

/* Divide the work with the other ranks, which evaluate at the same time and get the same result. */
enum status evaluator_share(struct evaluator *e, struct ranks *ranks, struct error *err) MUST_CHECK;

/* All replicas on the same rows; out[i] is replica i's. */
enum status evaluate(struct evaluator *e, struct evaluation *out, struct error *err) MUST_CHECK;

/*
 * Scores other rows, as many of each replica as evaluator_create() has, one replica after the
 * other: by replica, the largest difference of a target's loss from `nll`.
 */
enum status evaluator_compare(struct evaluator *e, const int32_t *tokens, const int32_t *targets,
			      const double *nll, double *differences, struct error *err) MUST_CHECK;

/*
 * Scores the last rows of the evaluation again, with the program that trains, which must have as
 * many rows and no dropout, and records the largest difference of a target's loss in out[i].
 */
enum status evaluator_compare_trained(struct evaluator *e, struct token_program *training,
				      struct evaluation *out, struct error *err) MUST_CHECK;

size_t evaluator_arena_bytes(const struct evaluator *e);

#endif
