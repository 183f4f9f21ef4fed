/*
 * verify - is everything under RUNS as its programs wrote it?
 *
 * Looks at records, journals, weights, checkpoints, declarations and reports, and compares the
 * database with the journals.  Nothing of these is changed.  A line says what is wrong with what;
 * a note says what could not be checked.  RUNS/verified.json, beside the database, keeps what was
 * found about each run, for reports:
 *
 *     {"runs": {"EXPERIMENT/STEP/IDENTITY": {"heartbeat": 1760000000.5, "bound": true,
 *                                            "wrong": ["..", ".."]}, ..}}
 *
 * It holds for a run as long as the database has the same heartbeat.
 */
#ifndef TOOLS_RESULTS_VERIFY_H
#define TOOLS_RESULTS_VERIFY_H

#include "tools/results/collect.h"

/* c->problems counts what is wrong. */
enum status verify_runs(struct collect *c, struct error *err) MUST_CHECK;

#endif
