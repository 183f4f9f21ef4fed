/*
 * workload - what is trained, and on what.
 *
 * core/ knows programs and parameters, but neither models nor data.  The
 * training loop reaches both through these functions.
 */
#ifndef CORE_TRAIN_WORKLOAD_H
#define CORE_TRAIN_WORKLOAD_H

#include "core/train/token_program.h"

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
	void (*build)(void *context, struct graph *g, int64_t rows, struct token_io *io);
	void (*train_row)(void *context, uint64_t iteration, uint64_t row, int32_t *tokens,
			  int32_t *targets);
	void (*valid_row)(void *context, uint64_t index, struct workload_row *row);
	uint64_t valid_rows;
	const char *const *components; /* names, ends with NULL; NULL: none */
	double bytes_per_token;	       /* 0: unknown */
	const char *layer_prefix;      /* records name layer N by this and N */
	/* Runs what measure() reads, for all replicas at once; may be NULL. */
	enum status (*probe)(void *context, struct error *err);
	/* Further numbers to record at an evaluation; may be NULL. */
	enum status (*measure)(void *context, struct metrics *m, int64_t iteration,
			       struct error *err);
	/* Numbers to record once, after the last evaluation; may be NULL. */
	enum status (*conclude)(void *context, struct metrics *m, int64_t iteration,
				struct error *err);
};

/* The workload's graph for this many rows, made runnable. */
enum status workload_open(struct token_program *t, const struct workload *workload,
			  struct params *params, int64_t rows, const struct backend *backend,
			  const struct program_options *options, struct error *err) MUST_CHECK;

#endif
