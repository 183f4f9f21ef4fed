/*
 * audit_memo - what the oracle found about a step, kept for its other seeds.
 *
 * The audit's weights and tokens do not depend on the seed.  So the first run of a step keeps its
 * findings in a file of the experiment, named after the step's program, configuration and
 * environment, and later runs record the same findings.  Findings of a failed audit are not kept.
 */
#ifndef TOOLS_KABLATE_AUDIT_MEMO_H
#define TOOLS_KABLATE_AUDIT_MEMO_H

#include "models/audit/audit.h"

/* Adds the findings in the file.  False: there is no such file, or it is not whole. */
bool audit_memo_load(const char *path, struct audit_report *r);

/* Keeps the oracle's findings, if there are any and all passed. */
enum status audit_memo_save(const char *path, const struct audit_report *r,
			    struct error *err) MUST_CHECK;

#endif
