/*
 * token_program - a graph that reads rows of tokens, made runnable.
 *
 * Graph and program are opened and closed together.  Training, evaluation,
 * audits, decoding and measurements all run models this way.
 */
#ifndef CORE_TRAIN_TOKEN_PROGRAM_H
#define CORE_TRAIN_TOKEN_PROGRAM_H

#include "core/engine/graph.h"
#include "core/engine/program.h"

/* The tensors that are filled before a run and read after it; NULL: the graph has none. */
struct token_io {
	struct tensor *tokens, *targets; /* i32 [B,T] */
	struct tensor *weights;		 /* [2]: 1 / scored targets, 1 / tokens of the update */
	struct tensor *nll, *hit;	 /* [B,T] per target; 0 where it is not scored */
};

struct token_program {
	struct graph *g;
	struct program *p;
	struct token_io io;
};

/* Describes a graph (errors stick to it) and says which tensors it is fed through. */
typedef void (*token_graph_builder)(void *context, struct graph *g, struct token_io *io);

/*
 * Allocates the parameters, with gradients when options->train, and the state
 * of a graph that continues.  After FAIL nothing is open.
 */
enum status token_program_open(struct token_program *t, token_graph_builder build, void *context,
			       struct params *params, const struct backend *backend,
			       const struct program_options *options, struct error *err) MUST_CHECK;

/* Closing a zeroed or closed one does nothing. */
void token_program_close(struct token_program *t);

/* The batch of the next run; `targets` may be NULL. */
void token_program_feed(struct token_program *t, const int32_t *tokens, const int32_t *targets);

/* The two weights of the output head's losses. */
void token_program_weigh(struct token_program *t, double main, double z);

#endif
