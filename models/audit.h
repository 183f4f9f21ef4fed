/*
 * audit - is the model what its configuration claims?
 *
 *   wiring     every parameter tensor receives a non-zero gradient within a few
 *              batches; one that only an auxiliary loss reaches is named as such
 *   mechanism  switching an enabled mechanism off changes the logits or, for one
 *              that acts through a loss, a gradient
 *   causality  changing the token at t leaves all logits before t bit-identical
 *   state      what ran before a batch changes no bit of its logits
 *
 * Tokens are random; the weights are those the run would start from.
 */
#ifndef MODELS_AUDIT_H
#define MODELS_AUDIT_H

#include "core/backend.h"
#include "models/model.h"

struct audit_finding {
	const char *audit; /* "wiring", "mechanism", "causality", "state" */
	char subject[128]; /* a parameter, a symbol, a position */
	bool passed;
	char detail[160];
};

struct audit_report {
	struct audit_finding *list;
	int n, capacity;
	bool declared_leak; /* an arm that says itself that it sees the future */
};

struct audit_options {
	int64_t rows, length; /* of a batch; length is at most the model's */
	int batches;	      /* of the wiring audit */
	uint64_t seed;	      /* of weights and tokens */
};

/* Sensible sizes for this model: every position up to 128 is changed once. */
struct audit_options audit_defaults(const struct model *m, uint64_t seed);

/*
 * FAIL only when the audit could not be made.  The configuration is read
 * again with single mechanisms off; it is left as it was.
 */
enum status audit_model(struct config *c, int64_t vocab, const struct backend *backend,
			const struct audit_options *options, struct audit_report *report,
			struct error *err) MUST_CHECK;

/* Nothing failed, but for the leak of an arm that declares it. */
bool audit_passed(const struct audit_report *report);

void audit_print(const struct audit_report *report, FILE *file);
void audit_free(struct audit_report *report);

#endif
