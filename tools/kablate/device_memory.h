/*
 * device_memory - what a run takes of a GPU's memory, known before it starts.
 *
 * Every block that the run will ask the backend for is counted: `own` is what the
 * backend says it gave when the trainer is made.  What CUDA and its libraries take
 * beside it is measured, and so is about right.
 */
#ifndef TOOLS_KABLATE_DEVICE_MEMORY_H
#define TOOLS_KABLATE_DEVICE_MEMORY_H

#include "core/util/memory.h"
#include "tools/kablate/run_setup.h"

/* In bytes. */
struct device_memory {
	double weights; /* with the copies that kernels keep */
	double gradients, optimizer;
	double activations; /* and workspace, of training */
	double evaluation;  /* ... of evaluation and measurements */
	double own;	    /* all of these */
	double each;	   /* the same as the device rounds them up: what a further replica takes */
	double audits;	   /* at most, before the first update */
	double conclusion; /* at most, after the last: a sample, rows of other lengths */
	double whole;	   /* of the process, audits aside */
	double needed;	   /* of what is free once the device is open */
};

/* Only where setup->backend.memory is not NULL. */
enum status device_memory_predict(const struct run_setup *setup, struct device_memory *m,
				  struct error *err) MUST_CHECK;

void device_memory_print(const struct device_memory *m, FILE *file);

/*
 * Note what *n runs at once are going to take, or fewer (*n says how many) if there is no room for
 * all.  While others that are starting leave no room, it waits; then it fails with one sentence
 * that says what would fit.  On a CPU it does nothing.
 */
enum status device_memory_reserve(const struct run_setup *setup, int *n,
				  struct error *err) MUST_CHECK;

/*
 * Waits until no other process of this user trains replicas on the device, or a signal stops the
 * run; those who wait get their turn in the order in which they came.  Processes that share a GPU
 * take turns of milliseconds there: six groups of six runs took 50 s together, and 3 s each alone.
 * The turn ends when its descriptor is closed; -1: there are no turns.
 */
int device_turn_take(const struct run_setup *setup);

/* The reservation has been allocated, except the memory of audits that are still to come. */
void device_memory_taken(const struct run_setup *setup, bool audits_to_come);

#endif
