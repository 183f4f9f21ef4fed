/*
 * graphs - the same rows, scored by every graph that a model has.
 */
#ifndef MODELS_AUDIT_GRAPHS_H
#define MODELS_AUDIT_GRAPHS_H

#include "models/model_program.h"

enum scoring { BY_TRAINING, BY_EVALUATION, BY_LOGITS, BY_DECODING, SCORINGS };
extern const char *const scoring_names[SCORINGS];

/* A model with its parameters on a device, and rows of tokens. */
struct scored_rows {
	const struct model *model;
	struct params *params;
	const struct backend *backend;
	struct program_options program;
	int64_t rows, length;
	const int32_t *tokens, *targets; /* [rows,length]; target -1: not scored */
	bool decodes;			 /* this model can decode */
};

/* The share of the update's loss that each target, and each token, has. */
struct row_weights {
	double target, token;
};
struct row_weights scored_rows_weights(const struct scored_rows *r);

/* Minus the log of each target's probability, [rows,length]; 0 where there is no target. */
enum status scored_rows_nll(const struct scored_rows *r, enum scoring how, double *nll,
			    struct error *err) MUST_CHECK;

/* [rows,length,vocab] */
enum status scored_rows_logits(const struct scored_rows *r, double *logits,
			       struct error *err) MUST_CHECK;

/* How much a target's nll may differ between two graphs of a model. */
double scoring_tolerance(enum dtype type, enum precision precision);

/* The largest difference of two of these. */
double nll_difference(const double *a, const double *b, int64_t n);

#endif
