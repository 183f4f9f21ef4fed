/*
 * provenance - what runs, under which name, built how and on what: the record
 * that goes beside every number.
 */
#ifndef TOOLS_KABLATE_PROVENANCE_H
#define TOOLS_KABLATE_PROVENANCE_H

#include "core/record/metrics.h"
#include "tools/kablate/run_setup.h"

#define MAX_SYMBOLS 1000 /* of the configuration; about 150 are there */

/* What only the caller knows.  Texts but the first two may be NULL. */
struct run_names {
	const char *experiment, *step, *baseline, *git, *scale;
	bool git_dirty;
};

/* The record points to the rest, to the setup and to the names: it stays where it was filled. */
struct provenance {
	struct run_record record;
	struct run_symbol symbols[MAX_SYMBOLS]; /* those that were read so far */
	char machine[300], blas[300];
};

void provenance_take(struct provenance *p, const struct run_setup *setup,
		     const struct run_names *names);

#endif
