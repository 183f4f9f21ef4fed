/*
 * fingerprint - what a step trains, in a few lines, to be compared with another step's.
 *
 *     symbols - HASH          the model's symbols and their values
 *     symbol NAME - HASH      one of them that is no switch
 *     data - HASH             the identity of the data
 *     start - HASH            the file of the starting weights, if there is one
 *     rows training - HASH    some training rows of this seed
 *     rows validation - HASH
 *     graph - HASH            the training graph: tensors, operations, losses
 *     initial NAME RULE HASH  per parameter: shape and distribution, first values
 *     loss - NUMBER           of the first rows
 *     gradient - HASH         of the same rows
 *
 * A step and its baseline must be paired: with the same data they see the same rows, and parameters
 * that both have start with the same values, unless a symbol says otherwise.  A step that claims
 * another model must not train the same as its baseline.
 */
#ifndef TOOLS_KABLATE_FINGERPRINT_H
#define TOOLS_KABLATE_FINGERPRINT_H

#include <stdio.h>

#include "tools/kablate/run_setup.h"

/* The setup must be prepared; its weights are the first ones, and its gradients are overwritten. */
enum status fingerprint_take(struct run_setup *setup, FILE *file, struct error *err) MUST_CHECK;

/* Called once per comparison. */
typedef void (*fingerprint_visitor)(void *context, const struct audit_finding *finding);

/* Compare the texts of a step and of its baseline, both of the same seed. */
enum status fingerprint_compare(const char *mine, const char *baseline, fingerprint_visitor visit,
				void *context, struct error *err) MUST_CHECK;

/*
 * The same, with the text that the baseline's program prints (`PROGRAM fingerprint --seed N`).
 */
enum status fingerprint_compare_program(struct run_setup *setup, const char *program,
					fingerprint_visitor visit, void *context,
					struct error *err) MUST_CHECK;

#endif
