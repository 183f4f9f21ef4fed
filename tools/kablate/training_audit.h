/*
 * training_audit - does the optimizer do what the configuration says?
 *
 *   decay       without a gradient, an update shrinks exactly the parameters of the group that
 *               decays: matrices (no embedding, no vector), or all
 *   rate        with equal gradients, all parameters move alike (adamw, sgd)
 *   clipping    a gradient ten times as long as allowed is clipped, and only if clipping is on
 *   schedule    the learning rate of single updates, by the formula in Kconfig
 *   parameters  each tensor is counted once, and another seed draws other values
 *
 * The audit uses weights of its own.  It repeats the rules of the configuration on purpose.
 */
#ifndef TOOLS_KABLATE_TRAINING_AUDIT_H
#define TOOLS_KABLATE_TRAINING_AUDIT_H

#include "tools/kablate/run_setup.h"

/* Adds findings to the report; FAIL only when the audit could not be made. */
enum status training_audit(const struct run_setup *setup, struct audit_report *report,
			   struct error *err) MUST_CHECK;

#endif
