/*
 * collect - bring run directories into a database.
 *
 * A run stands at RUNS/EXPERIMENT/NAME.  The journals decide: of two that tell
 * the same run, one is taken for the other's continuation only if it begins
 * with the other, word for word; anything else is a conflict that a person has
 * to settle.  So are two measurements of one step's decoding that differ.
 */
#ifndef TOOLS_RESULTS_COLLECT_H
#define TOOLS_RESULTS_COLLECT_H

#include <stdio.h>

#include "core/util/status.h"

/* Counts are of runs and measurements. */
struct collect {
	const char *runs;    /* our directory of runs */
	const char *db_path; /* the database */
	FILE *out;	     /* a line for each that changed or has a problem */
	int added, updated, unchanged, problems;
};

/* Make the database's rows anew from our runs; a damaged database is put aside first. */
enum status collect_rebuild(struct collect *c, struct error *err) MUST_CHECK;

/*
 * Copy the records and journals of another directory of runs into ours and the database, and
 * EXPERIMENT/decode/STEP.json into ours.
 */
enum status collect_merge(struct collect *c, const char *other, struct error *err) MUST_CHECK;

#endif
