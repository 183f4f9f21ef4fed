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

#define PATIENCE_SECONDS (2 * LEASE_SECONDS) /* with another machine that writes the database */

struct database;
struct entry;

/* Counts are of runs, measurements and declarations. */
struct collect {
	const char *runs;    /* our directory of runs */
	const char *db_path; /* the database */
	FILE *out;	     /* gets a line for each run that changed or has a problem */
	int added, updated, unchanged, problems;
	struct known *known;   /* collect_update(), collect_merge(): what the database has */
	double batch_began;    /* monotonic seconds; 0: no batch is open */
	struct verify *verify; /* verify_runs(): what was found */
	bool is_busy;	       /* a process works on the run that is visited */
};

typedef enum status (*visitor)(struct collect *c, struct database *d, const char *path,
			       struct error *err);

/* What is called for each run and, unless NULL, for each measurement, declaration and report. */
struct visitors {
	visitor run, measurement, declaration, report;
};

/* Visits all that is below a directory.  A visitor's failure is reported and counted as a problem.
 */
enum status collect_visit(struct collect *c, struct database *d, const char *directory,
			  const struct visitors *visit, struct error *err) MUST_CHECK;

/*
 * A run locks its directory as long as it lives.  One that starts while the lock is held waits;
 * is_busy tells whether one was first.  `how`: LOCK_SH or LOCK_EX.
 */
enum status collect_lock(struct collect *c, const char *run_dir, int how, int *lock,
			 struct error *err) MUST_CHECK;

/* Is it the end of a run that is done? */
bool entry_ends_well(const struct entry *e);

/* Does make hold the run for done? */
bool run_is_done(const char *run_dir);

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
