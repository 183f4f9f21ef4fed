/*
 * measure - one op: each of its passes by itself, with cold caches.
 */
#ifndef TOOLS_BENCH_MEASURE_H
#define TOOLS_BENCH_MEASURE_H

#include "core/engine/backend.h"
#include "core/engine/program.h"
#include "tools/bench/cases.h"
#include "tools/bench/machine.h"

struct result {
	const struct bench *bench;
	enum pass pass;
	double median;	  /* seconds */
	double low, high; /* a quarter of the measurements lies below, a quarter above */
	double flops, bytes;
	double plain; /* linear: median seconds of the bare products; else 0 */
};

#define MAX_RESULTS 2 /* a forward and a backward pass */

struct results {
	struct result list[MAX_RESULTS];
	int n;
};

enum status measure_bench(const struct machine *m, const struct bench *bench,
			  const struct backend *backend, struct results *results,
			  struct error *err) MUST_CHECK;

/* The least seconds the pass could take on this machine, and what bounds it. */
double result_bound(const struct result *r, const struct machine *m, bool *by_flops);

#endif
