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

/* False once there are enough, or a second has passed since `start`, by omp_get_wtime(). */
bool times_want_more(const struct times *t, double start);
void times_add(struct times *t, double second);

/* The time below which this part of the measurements lies; 0.5 is the median. */
double times_quantile(struct times *t, double part);

#endif
