/*
 * initial - do the weights begin as the configuration says?
 *
 * 64 elements of each tensor are drawn again from the stream of (seed, name), with the deviation or
 * the constant that the specification gives a tensor of this name.  What the model declares is not
 * asked.
 */
#ifndef MODELS_AUDIT_INITIAL_H
#define MODELS_AUDIT_INITIAL_H

#include "models/audit/audit.h"

/* Of parameters that no file and no update has changed. */
enum status audit_initial(const struct config *config, const struct params *params, uint64_t seed,
			  struct audit_report *report, struct error *err) MUST_CHECK;

#endif
