/*
 * workload - what is trained, and on what.
 *
 * core/ knows programs and parameters, not models or data: both reach the
 * training loop through these functions.
 */
#ifndef CORE_TRAIN_WORKLOAD_H
#define CORE_TRAIN_WORKLOAD_H

#include "core/engine/graph.h"
#include "core/engine/program.h"

/* Tensors through which the loop feeds and reads a graph. */
struct workload_io {
	struct tensor *tokens, *targets; /* i32 [B,T] */
	struct tensor *weights;		 /* [2]: 1 / scored targets, 1 / tokens of the update */
	struct tensor *nll, *hit;	 /* [B,T] per target; 0 where it is not scored */
};

/* One row of validation data. */
struct workload_row {
	int32_t *tokens, *targets;
	uint8_t *component;
	float *floor; /* NAN: unknown */
};

#define WORKLOAD_MAX_COMPONENTS 8

struct metrics;

struct workload {
	void *context;
	int64_t length;
	void (*build)(void *context, struct graph *g, int64_t rows, struct workload_io *io);
	void (*train_row)(void *context, uint64_t iteration, uint64_t row, int32_t *tokens,
			  int32_t *targets);
	void (*valid_row)(void *context, uint64_t index, struct workload_row *row);
	uint64_t valid_rows;
	const char *const *components; /* names, ends with NULL; NULL: none */
	double bytes_per_token;	       /* 0: unknown */
	/* Further numbers to record at an evaluation; may be NULL. */
	enum status (*measure)(void *context, struct metrics *m, int64_t iteration,
			       struct error *err);
	/* Numbers to record once, after the last evaluation; may be NULL. */
	enum status (*conclude)(void *context, struct metrics *m, int64_t iteration,
				struct error *err);
};

/* A graph of the workload, made runnable. */
struct workload_program {
	struct graph *g;
	struct workload_io io;
	struct program *p;
};

enum status workload_program_open(struct workload_program *s, const struct workload *workload,
				  struct params *params, int64_t rows,
				  const struct backend *backend,
				  const struct program_options *options,
				  struct error *err) MUST_CHECK;
void workload_program_close(struct workload_program *s);

/* The two weights of the output head's losses. */
void workload_program_weights(struct workload_program *s, double main, double z);

#endif
