/*
 * elementwise - loops over a stretch of numbers that fits in the nearest cache.
 *
 * Kernels walk their tensors in rows or chunks and use these loops on each, so
 * that one pass over memory gives several gradients.  The destination may be one
 * of the sources.
 */
#ifndef CPU_ELEMENTWISE_H
#define CPU_ELEMENTWISE_H

#include "core/backend/cpu/real.h"

#define CHUNK 2048 /* elements: three stretches of floats fill 24 KiB of a 32 KiB cache */

static inline int64_t chunk_count(int64_t n)
{
	return (n + CHUNK - 1) / CHUNK;
}

/* Length of the chunk that starts at `first`. */
static inline int64_t chunk_length(int64_t first, int64_t n)
{
	return n - first < CHUNK ? n - first : CHUNK;
}

/* The first contribution overwrites a gradient; the others add to it. */
static inline void put(real *d, bool add, real value)
{
	*d = add ? *d + value : value;
}

/* Of a node with struct factor_attr: the learned factor, input `learned`, or the constant. */
static inline real factor(const struct call *c, int learned)
{
	const struct factor_attr *attr = c->node->attr;

	return c->in[learned] ? *(const real *)c->in[learned] : (real)attr->constant;
}

/* d = f x, or d += f x */
static inline void put_scaled(real *d, bool add, real f, const real *x, int64_t n)
{
	if (add) {
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			d[i] += f * x[i];
	} else {
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			d[i] = f * x[i];
	}
}

/* d = x y, or d += x y */
static inline void put_product(real *d, bool add, const real *x, const real *y, int64_t n)
{
	if (add) {
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			d[i] += x[i] * y[i];
	} else {
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			d[i] = x[i] * y[i];
	}
}

static inline void map_lanes(real (*f)(real), const real *restrict x, int n, real *restrict y)
{
#pragma omp simd
	for (int l = 0; l < n; l++)
		y[l] = f(x[l]);
}

/* y = f(x), where y is not x; a function of the same file becomes part of the loop. */
static inline void map(real (*f)(real), const real *restrict x, int64_t n, real *restrict y)
{
	int64_t i = 0;

	for (; i + LANES <= n; i += LANES)
		map_lanes(f, x + i, LANES, y + i);
	map_lanes(f, x + i, (int)(n - i), y + i);
}

/* y = log(1 + exp(x)) + eps, where y is not x */
static inline void softplus_row(const real *restrict x, int64_t n, real eps, real *restrict y)
{
	map(fast_softplus, x, n, y);
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		y[i] += eps;
}

/*
 * A sum consists of LANES partial sums, which do not wait for one another.  They are
 * added pairwise, then the rest: in the same order on every machine.
 */
static inline real sum_lanes(const real lane[LANES])
{
	real half[LANES / 2], quarter[LANES / 4];

	for (int l = 0; l < LANES / 2; l++)
		half[l] = lane[l] + lane[l + LANES / 2];
	for (int l = 0; l < LANES / 4; l++)
		quarter[l] = half[l] + half[l + LANES / 4];
	return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

static inline real sum(const real *x, int64_t n)
{
	real lane[LANES] = { 0 }, total;
	int64_t i = 0;

	for (; i + LANES <= n; i += LANES)
#pragma omp simd
		for (int l = 0; l < LANES; l++)
			lane[l] += x[i + l];
	total = sum_lanes(lane);
	for (; i < n; i++)
		total += x[i];
	return total;
}

static inline real dot(const real *x, const real *y, int64_t n)
{
	real lane[LANES] = { 0 }, total;
	int64_t i = 0;

	for (; i + LANES <= n; i += LANES)
#pragma omp simd
		for (int l = 0; l < LANES; l++)
			lane[l] += x[i + l] * y[i + l];
	total = sum_lanes(lane);
	for (; i < n; i++)
		total += x[i] * y[i];
	return total;
}

/* The sums of chunks or rows, added in their order: the same for any number of threads. */
static inline double sum_partial(const double *partial, int64_t n)
{
	double total = 0;

	for (int64_t i = 0; i < n; i++)
		total += partial[i];
	return total;
}

#endif
