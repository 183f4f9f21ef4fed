/*
 * lengths - the loss by position, at lengths beyond the trained one.
 *
 * Rows pass through a decoder piece by piece, so at any length memory holds only
 * the state of one row and the activations of one piece.  Every length is judged
 * on about as many tokens as a validation holds.
 */
#ifndef TOOLS_KABLATE_LENGTHS_H
#define TOOLS_KABLATE_LENGTHS_H

#include <stdio.h>

#include "tools/kablate/run_setup.h"

/*
 * `lengths` is "512,1024", or NULL for the trained length.  The weights are loaded from a file; the
 * result says whose they are.
 */
enum status evaluate_lengths(struct run_setup *setup, const char *lengths, const char *weights,
			     bool json, FILE *out, struct error *err) MUST_CHECK;

/*
 * Records the same for a run: length/N/loss and length/N/accuracy, both also for the stretch of
 * positions that begins at P (length/N/loss/P), length/N/rows and length/N/state_bytes.
 */
enum status record_lengths(struct run_setup *setup, const char *lengths, struct metrics *m,
			   int64_t iteration, struct error *err) MUST_CHECK;

#endif
