#include "tools/bench/times.h"

#include <stdlib.h>

#include <omp.h>

#define TIMES_MIN 7 /* measurements of one thing, at least */
#define SECONDS 1.0 /* after which no more are added */

void times_add(struct times *t, double second)
{
	t->second[t->n++] = second;
}

static int compare_seconds(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

double times_quantile(struct times *t, double part)
{
	qsort(t->second, (size_t)t->n, sizeof(t->second[0]), compare_seconds);
	return t->second[(int)(part * (t->n - 1) + 0.5)];
}

bool times_want_more(const struct times *t, double start)
{
	return t->n < TIMES_MIN || (t->n < TIMES_MAX && omp_get_wtime() - start < SECONDS);
}
