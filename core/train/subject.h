/*
 * subject - what is trained, and on what.
 *
 * core/ knows programs and parameters, not models or data: both reach the
 * training loop through these functions.
 */
#ifndef CORE_TRAIN_SUBJECT_H
#define CORE_TRAIN_SUBJECT_H

#include "core/engine/graph.h"
#include "core/engine/program.h"

/* Tensors through which the loop feeds and reads a graph. */
struct subject_io {
	struct tensor *tokens, *targets; /* i32 [B,T] */
	struct tensor *weights;		 /* [2]: 1 / scored targets, 1 / tokens of the update */
	struct tensor *nll, *hit;	 /* [B,T] per target; 0 where it is not scored */
};

/* One row of validation data. */
struct subject_row {
	int32_t *tokens, *targets;
	uint8_t *component;
	float *floor; /* NAN: unknown */
};

#define SUBJECT_MAX_COMPONENTS 8

struct metrics;

struct subject {
	void *context;
	int64_t length;
	void (*build)(void *context, struct graph *g, int64_t rows, struct subject_io *io);
	void (*train_row)(void *context, uint64_t iteration, uint64_t row, int32_t *tokens,
			  int32_t *targets);
	void (*valid_row)(void *context, uint64_t index, struct subject_row *row);
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

/* A graph of the subject, made runnable. */
struct stage {
	struct graph *g;
	struct subject_io io;
	struct program *p;
};

enum status stage_open(struct stage *s, const struct subject *subject, struct params *params,
		       int64_t rows, const struct backend *backend,
		       const struct program_options *options, struct error *err) MUST_CHECK;
void stage_close(struct stage *s);

/* The two weights of the output head's losses. */
void stage_weights(struct stage *s, double main, double z);

#endif
