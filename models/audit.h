/*
 * audit - is the model what its configuration claims?
 *
 *   wiring     every parameter tensor receives a gradient within a few batches;
 *              one that only an auxiliary loss reaches is named as such
 *   mechanism  switching an enabled mechanism off changes the logits or, for one
 *              that acts through a loss, a gradient that the main loss has, too;
 *              with larger weights it does so by a size that can matter, in every
 *              layer that it claims, and its own parameters have such gradients
 *   causality  other tokens from position t on change logits, but no bit of those
 *              before t
 *   state      neither what ran before a batch nor, for a row, the other rows of
 *              its batch change a bit of its logits; nor, for a batch, of gradients
 *   one batch  a few updates on one batch make its loss fall
 *   training   evaluation has no dropout; training has it only where it is asked for;
 *              the logits are near those in double
 *
 * Tokens are random.  The weights are drawn as for a run, but those that start
 * at zero are moved: what they multiply would not show.  Causality and state
 * have to hold for any weights and are judged with larger ones.
 */
#ifndef MODELS_AUDIT_H
#define MODELS_AUDIT_H

#include "core/engine/backend.h"
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
	bool wiring, causality, one_batch; /* mechanism belongs to wiring, state to causality */
	bool data, training, pairing; /* pairing with the baseline is audited by the program */
	bool declared_leak;
	enum dtype type;
	int64_t rows, length; /* of a batch whose logits are compared; length: at most the model's */
	int64_t positions;    /* of the causality audit, evenly spread */
	uint64_t seed;	      /* of weights and tokens */
};

/* What the configuration asks for, in sizes that fit the model. */
struct audit_options audit_configured(struct config *c, const struct model *m, enum dtype type,
				      uint64_t seed);

/*
 * FAIL only when the audit could not be made.  The configuration is read
 * again with single mechanisms off; it is left as it was.
 */
enum status audit_model(struct config *c, const struct model_task *task,
			const struct backend *backend, const struct audit_options *options,
			struct audit_report *report, struct error *err) MUST_CHECK;

/* For what others audit: one more finding. */
enum status audit_add(struct audit_report *report, const char *audit, const char *subject,
		      bool passed, const char *detail, struct error *err) MUST_CHECK;

/* Nothing failed, except for a leak that is declared. */
bool audit_passed(const struct audit_report *report);

void audit_print(const struct audit_report *report, FILE *file);
void audit_free(struct audit_report *report);

#endif
