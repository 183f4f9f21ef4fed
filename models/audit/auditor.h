/*
 * auditor - what all audits of one model share: the model, its weights, its programs, and batches.
 */
#ifndef MODELS_AUDIT_AUDITOR_H
#define MODELS_AUDIT_AUDITOR_H

#include "models/audit/audit.h"
#include "models/model_program.h"

/* The training batch. */
#define TRAINING_ROWS 2 /* a loss that compares examples needs two */
#define TRAINING_LENGTH 64

#define TARGETS 1000 /* the number of the batch whose tokens serve as targets */

struct auditor {
	struct config *config;
	const struct model_task *task;
	const struct backend *backend;
	const struct audit_options *options;
	struct audit_report *report;
	struct model *model;
	struct params *params;
	struct token_program training, logits; /* the second is open from audit_causality() on */
	bool *by_any, *by_main;	   /* parameters with a gradient: of some loss, of the main loss */
	int32_t *tokens, *changed; /* batch 0, and the same batch with some tokens changed */
	size_t bytes;		   /* of the logits */
	char *base, *now;	   /* logits of batch 0, and of the last run */
	double *sizes;		   /* the rms of each parameter's gradient of batch 0 .. */
	bool sized;		   /* .. once it is measured */
	bool compared, repeat;	   /* what auditor_gradients_repeat() found, once it looked */
};

/* Adds a finding to the report. */
enum status auditor_add(const struct auditor *a, const char *audit, const char *subject,
			bool passed, const char *detail, struct error *err) MUST_CHECK;

/* ----------------------------------------------------------------- programs */

/*
 * A program for the batches of this purpose.  All programs share the auditor's parameters; the
 * first program names them all.
 */
enum status auditor_open(const struct auditor *a, const struct model *m, enum model_purpose purpose,
			 struct token_program *t, struct error *err) MUST_CHECK;

/* A program of any purpose for a batch of the size of the training batch. */
enum status auditor_open_small(const struct auditor *a, const struct model *m,
			       enum model_purpose purpose, struct token_program *t,
			       struct error *err) MUST_CHECK;
int64_t auditor_training_length(const struct auditor *a);

/* Can the model decode so many tokens?  Not with a declared leak, which decoding cannot see. */
enum status auditor_can_decode(const struct auditor *a, const struct model *m, int64_t length,
			       bool *can, struct error *err) MUST_CHECK;
size_t auditor_small_logits(const struct auditor *a); /* how many they are */

/* Random tokens.  A batch has the same tokens each time its number is requested. */
void auditor_draw_tokens(const struct auditor *a, uint64_t number, int32_t *tokens, int64_t count);

/* Computes the losses and gradients of a batch; the second form sets the seed of dropout. */
enum status auditor_train(const struct auditor *a, struct token_program *t, int batch,
			  struct error *err) MUST_CHECK;
enum status auditor_train_seeded(const struct auditor *a, struct token_program *t, int batch,
				 uint64_t seed, struct error *err) MUST_CHECK;

enum status auditor_logits(struct token_program *t, const int32_t *tokens, char *logits,
			   struct error *err) MUST_CHECK;

/* A copy of the gradients of the last training batch; NULL: no memory. */
char *auditor_copy_gradients(const struct auditor *a, struct error *err) MUST_CHECK;

/* Does a gradient differ from its copy? */
enum status auditor_gradients_differ(const struct auditor *a, const char *copy, bool *differ,
				     struct error *err) MUST_CHECK;

/*
 * Batch 0, another batch, and batch 0 with another seed: does batch 0 have the same gradients both
 * times?  Then they depend neither on the batch before nor on the seed, and two audits are content.
 * If not, each audit must find its own cause.  With dropout nothing is run, and the answer is no.
 * The strengthened weights do not change, so the batches run only once.
 */
enum status auditor_gradients_repeat(struct auditor *a, bool *same, struct error *err) MUST_CHECK;

/* The sum of the squares of a parameter's values, or of those of its gradient. */
enum status auditor_squares(const struct auditor *a, int index, bool gradient, double *squares,
			    struct error *err) MUST_CHECK;

/* ------------------------------------------------------------------- audits */

/* Each adds its findings; FAIL only when the audit could not be made. */
enum status audit_wiring(struct auditor *a, struct error *err) MUST_CHECK;

/* Tensors that share memory, a table or layers. */
enum status audit_storage(struct auditor *a, struct error *err) MUST_CHECK;

/* With the weights of a run.  Needs audit_wiring() first. */
enum status audit_mechanism_presence(struct auditor *a, struct error *err) MUST_CHECK;

/* With strengthened weights; completes the findings of audit_mechanism_presence(). */
enum status audit_mechanism_size(struct auditor *a, struct error *err) MUST_CHECK;

/* Changes the audit's own weights.  Audits that follow must hold for any weights. */
enum status audit_one_batch(struct auditor *a, struct error *err) MUST_CHECK;

enum status audit_dropout(struct auditor *a, struct error *err) MUST_CHECK;
enum status audit_precision(struct auditor *a, struct error *err) MUST_CHECK;

/* Training, evaluation, logits and decoding score the same targets alike. */
enum status audit_graphs(struct auditor *a, struct error *err) MUST_CHECK;

/* Two programs, engine and oracle, agree on the reduced model.  With weights of its own. */
enum status audit_oracle(struct auditor *a, struct error *err) MUST_CHECK;
/* What is scored, in the graphs of training and evaluation, with tokens and targets changed. */
enum status audit_scored_causality(struct auditor *a, struct error *err) MUST_CHECK;

enum status audit_causality(struct auditor *a, struct error *err) MUST_CHECK;

/* Compares with the logits that audit_causality() left in `base`. */
enum status audit_state(struct auditor *a, struct error *err) MUST_CHECK;

#endif
