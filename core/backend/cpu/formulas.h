/*
 * formulas - the functions that the formulas of core/ops/pointwise.h and rowwise.h use, beside
 * those of real.h.
 */
#ifndef CPU_FORMULAS_H
#define CPU_FORMULAS_H

#include "core/backend/cpu/elementwise.h"

#define POINTWISE_DEVICE
#include "core/ops/rowwise.h"
#define FORMULA static inline __attribute__((always_inline))

FORMULA real fast_divide(real a, real b)
{
	return a / b;
}

FORMULA real reciprocal_root(real x)
{
	return 1 / root(x);
}

FORMULA real size_of(real x)
{
	return x < 0 ? -x : x;
}

#endif
