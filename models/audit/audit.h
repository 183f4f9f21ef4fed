/*
 * audit - is the model what its configuration claims?
 *
 *   oracle     a second program, which shares no code with the engine, computes the same logits,
 *              losses and derivatives of the step's model, reduced in size
 *   wiring     every parameter tensor receives a gradient within a few batches;
 *              the report names a tensor that only an auxiliary loss reaches.  Tensors share
 *              storage where the configuration ties them, and nowhere else
 *   mechanism  switching an enabled mechanism off changes the logits.  A mechanism
 *              that acts through a loss changes gradients of the main loss's
 *              parameters instead.  With larger weights the change is large enough
 *              to matter, in every layer that the mechanism claims, and so are the
 *              gradients of the mechanism's own parameters
 *   causality  other tokens from position t on change logits, but no bit of the
 *              logits before t; nor, with other targets, a bit of the losses before t in
 *              the graphs of training and evaluation
 *   state      the logits and gradients of a batch do not depend on earlier batches;
 *              the logits of a row do not depend on the other rows of its batch
 *   one batch  a few updates on one batch make its loss fall
 *   training   evaluation has no dropout; training has dropout only if the
 *              configuration asks for it, at its rate; the logits are near those in double;
 *              training, evaluation, logits and decoding score the same targets alike
 *
 * Tokens are random.  The weights are drawn as for a run, but weights that start
 * at zero get small random values: otherwise what they multiply would not show.
 * Causality and state must hold for any weights; they are judged with larger ones.
 */
#ifndef MODELS_AUDIT_AUDIT_H
#define MODELS_AUDIT_AUDIT_H

#include "core/engine/program.h"
#include "models/model.h"

struct audit_finding {
	const char *audit; /* "wiring", "mechanism", "causality", "state", "one batch", .. */
	char subject[128]; /* a parameter, a symbol, what was compared */
	bool passed;
	char detail[160];
};

struct audit_report {
	struct audit_finding *list;
	int n, capacity;
	bool declared_leak; /* the configuration says that this arm sees the future */
	bool partial;	    /* an audit is switched off */
};

struct audit_options {
	bool oracle;
	bool wiring, causality, one_batch; /* mechanism belongs to wiring, state to causality */
	bool data, training, pairing;	   /* the program audits the pairing with the baseline */
	bool declared_leak;
	enum dtype type;
	int64_t rows;			/* of a batch whose logits are compared */
	int64_t length;			/* of its rows; at most the model's length */
	int64_t positions;		/* of the causality audit, evenly spread */
	uint64_t seed;			/* of weights and tokens */
	struct program_options program; /* those of the run */
};

/* What the configuration asks for, in sizes that fit the model. */
struct audit_options audit_configured(struct config *c, const struct model *m, enum dtype type,
				      uint64_t seed);

/*
 * FAIL only when the audit could not be made.  The audit switches single
 * mechanisms off in the configuration and back on.
 */
enum status audit_model(struct config *c, const struct model_task *task,
			const struct backend *backend, const struct audit_options *options,
			struct audit_report *report, struct error *err) MUST_CHECK;

/* Adds a finding of an audit that is made elsewhere. */
enum status audit_add(struct audit_report *report, const char *audit, const char *subject,
		      bool passed, const char *detail, struct error *err) MUST_CHECK;

/* Nothing failed, except for a declared leak. */
bool audit_passed(const struct audit_report *report);

void audit_print(const struct audit_report *report, FILE *file);
void audit_free(struct audit_report *report);

#endif
