/*
 * bench_decode - measures what decoding costs: state, time to the first token,
 * time per token, and the limits of the machine, as JSON.
 */
#ifndef TOOLS_KABLATE_BENCH_DECODE_H
#define TOOLS_KABLATE_BENCH_DECODE_H

#include <stdio.h>

#include "tools/kablate/run_setup.h"

struct bench_decode_options {
	const char *contexts; /* "1024,2048" */
	int64_t batch;
	double seconds;	    /* seconds to spend on each number */
	const char *record; /* what is measured, and where, as JSON */
};

/* The weights are drawn, not trained: no number depends on them. */
enum status bench_decode(struct run_setup *setup, const struct bench_decode_options *o, FILE *out,
			 struct error *err) MUST_CHECK;

#endif
