/*
 * reduced_engine - what the engine computes for a reduced model, in one precision.
 */
#ifndef MODELS_AUDIT_REDUCED_ENGINE_H
#define MODELS_AUDIT_REDUCED_ENGINE_H

#include "models/audit/graphs.h"

enum { REDUCED_LOSSES = 16 };

struct reduced_loss {
	const char *name; /* without the layer */
	double value;	  /* with its weight, over all layers */
};

struct reduced_engine {
	struct scored_rows rows;
	bool drops; /* with dropout: there is nothing to score but the training graph */
	struct token_program training; /* gradients are those of its last run */
	double *logits, *nll[SCORINGS];
	struct reduced_loss loss[REDUCED_LOSSES];
	int n_losses;
	int32_t *
		*routes; /* by layer: [rows,length,k] keys that topk chose; NULL: no such routing */
	int64_t k;
};

/* Makes parameters and the training graph.  The backend must outlive the engine. */
enum status reduced_engine_open(struct reduced_engine *e, const struct model *m, enum dtype type,
				const struct backend *backend, struct error *err) MUST_CHECK;
void reduced_engine_close(struct reduced_engine *e);

/* Random weights of a size with which every part matters; floats, so that all precisions have them.
 */
void reduced_weights(const struct param *p, uint64_t seed, double *values);

/* Sets the batch and computes losses and gradients. */
enum status reduced_engine_train(struct reduced_engine *e, struct error *err) MUST_CHECK;

/* After reduced_engine_train(): routes, and of every graph that is scored logits and nll. */
enum status reduced_engine_score(struct reduced_engine *e, struct error *err) MUST_CHECK;

/* Does something that depends on parameters hold no gradient, although other nodes read it? */
bool reduced_engine_detaches(const struct reduced_engine *e);

#endif
