/*
 * times - repeated measurements of one thing.
 */
#ifndef TOOLS_BENCH_TIMES_H
#define TOOLS_BENCH_TIMES_H

#include <stdbool.h>

#define TIMES_MAX 51

struct times {
	double second[TIMES_MAX];
	int n;
};

/* False once there are enough times, or a second has passed since `start` (omp_get_wtime()). */
bool times_want_more(const struct times *t, double start);
void times_add(struct times *t, double second);

/* This share of the measurements is below the result; 0.5 gives the median. */
double times_quantile(struct times *t, double part);

#endif
