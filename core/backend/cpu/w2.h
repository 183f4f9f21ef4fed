/*
 * w2 - what the kernels of W2 attention share: the temperature of a head.
 */
#ifndef CPU_W2_H
#define CPU_W2_H

#include "core/backend/cpu/elementwise.h"

/* 1 / (|tau| + eps) */
static inline real inverse_temperature(real tau, real eps)
{
	return 1 / ((tau < 0 ? -tau : tau) + eps);
}

/* d |tau| / d tau; 0 where it has none */
static inline real sign(real tau)
{
	return (real)((tau > 0) - (tau < 0));
}

/* Sum over the rows of one head, rows being numbered [token, head]. */
static inline double head_sum(const double *x, int64_t rows, int64_t heads, int64_t head)
{
	double total = 0;

	for (int64_t r = head; r < rows; r += heads)
		total += x[r];
	return total;
}

#endif
