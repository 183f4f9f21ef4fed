/*
 * machine - what this machine can do at best: products and memory.
 */
#ifndef TOOLS_BENCH_MACHINE_H
#define TOOLS_BENCH_MACHINE_H

#include "core/util/status.h"

/* What the machine can do at best, and the arrays that measured it. */
struct machine {
	double flops, bytes; /* per second */
	double bf16_flops;   /* in bfloat16; 0: the machine has no instructions for it */
	float *a, *b, *c;    /* arrays of the triad: 128 MiB each */
	const struct panel_form *form;
	int threads;
};

/* Measures with so many threads; the caller frees the result. */
enum status machine_measure(struct machine *m, int threads, struct error *err) MUST_CHECK;
void machine_free(struct machine *m);

/* a = b + s c: afterwards the caches hold nothing else. */
void machine_triad(const struct machine *m);

#endif
