/*
 * run_audit - all audits of a run before it trains: its model, its optimizer and its data.
 */
#ifndef TOOLS_KABLATE_RUN_AUDIT_H
#define TOOLS_KABLATE_RUN_AUDIT_H

#include "tools/kablate/run_setup.h"

/*
 * Audits the data, and the model on weights of its own.  Free the report even after FAIL.  A setup
 * without data has only its model audited.
 */
enum status audit_run(const struct run_setup *setup, struct audit_report *report,
		      struct error *err) MUST_CHECK;

#endif
