/*
 * model_program - a model made runnable for one purpose.
 */
#ifndef MODELS_MODEL_PROGRAM_H
#define MODELS_MODEL_PROGRAM_H

#include "models/model.h"

struct model_use {
	enum model_purpose purpose;
	int64_t rows, length;
	/* For runs that continue each other (graph_continue()); otherwise state is NULL. */
	struct params *state;
	int64_t capacity;
	struct program_options program; /* `train` is set by the purpose */
};

/* As token_program_open().  MODEL_TRAIN has a backward pass. */
enum status model_program_open(struct token_program *t, const struct model *m,
			       const struct model_use *use, struct params *params,
			       const struct backend *backend, struct error *err) MUST_CHECK;

#endif
