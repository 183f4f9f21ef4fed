/*
 * collect - bring run directories into a database.
 *
 * A run is in RUNS/EXPERIMENT/NAME.  The journals decide: of two journals of the
 * same run, one continues the other only if it begins with the other, word for
 * word.  Anything else is a conflict that a person has to settle; so are two
 * different measurements of one step's decoding.
 */
#ifndef TOOLS_RESULTS_COLLECT_H
#define TOOLS_RESULTS_COLLECT_H

#include <stdio.h>

#include "core/util/status.h"

/* Counts are of runs, measurements and declarations. */
struct collect {
	const char *runs;    /* our directory of runs */
	const char *db_path; /* the database */
	FILE *out;	     /* gets a line for each run that changed or has a problem */
	int added, updated, unchanged, problems;
	struct known *known; /* collect_update(), collect_merge(): what the database has */
	double batch_began;  /* monotonic seconds; 0: no batch is open */
	bool is_busy;	     /* a process works on the run that is visited */
};

/* Makes all rows of the database again from our runs; puts a damaged database aside first. */
enum status collect_rebuild(struct collect *c, struct error *err) MUST_CHECK;

/*
 * Takes in those of our runs whose journals are longer than the database knows: runs on other
 * machines write only their journals.
 */
enum status collect_update(struct collect *c, struct error *err) MUST_CHECK;

/*
 * Copies the records and journals of another directory of runs into ours and into the database, and
 * EXPERIMENT/decode/STEP.json and EXPERIMENT/declaration.json into ours.
 */
enum status collect_merge(struct collect *c, const char *other, struct error *err) MUST_CHECK;

#endif
