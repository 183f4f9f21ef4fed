/*
 * few - products y [n,O] = x [n,I] W with few rows n: the time is that of
 * reading W once, in long stretches, and not that of the arithmetic.
 */
#ifndef CPU_FEW_H
#define CPU_FEW_H

#include "core/backend/cpu/real.h"

#define FEW_ROWS 8	/* more are left to the library */
#define FEW_RESULTS 4096 /* of y, which stay in the first cache while W passes */
#define FEW_TOGETHER 4	/* rows of W that one visit of y adds up */

static inline void few_add_rows(const real *restrict x, const real *restrict w, int64_t w_pitch,
				real *restrict y, int64_t n)
{
	const real *w1 = w + w_pitch, *w2 = w1 + w_pitch, *w3 = w2 + w_pitch;
	const real x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];

#pragma omp simd
	for (int64_t o = 0; o < n; o++)
		y[o] += (x0 * w[o] + x1 * w1[o]) + (x2 * w2[o] + x3 * w3[o]);
}

static inline void few_add_row(real x, const real *restrict w, real *restrict y, int64_t n)
{
#pragma omp simd
	for (int64_t o = 0; o < n; o++)
		y[o] += x * w[o];
}

/* y += x W, W [I,O]; the thread's own columns of it. */
static inline void few_add(const real *x, int64_t x_pitch, int64_t n, int64_t I, const real *w,
			   int64_t w_pitch, int64_t O, real *y, int64_t y_pitch)
{
	const int64_t block = FEW_RESULTS / n, whole = I - I % FEW_TOGETHER;

	for (int64_t o = 0; o < O; o += block) {
		const int64_t width = O - o < block ? O - o : block;

		for (int64_t i = 0; i < whole; i += FEW_TOGETHER)
			for (int64_t r = 0; r < n; r++)
				few_add_rows(x + r * x_pitch + i, w + i * w_pitch + o, w_pitch,
					     y + r * y_pitch + o, width);
		for (int64_t i = whole; i < I; i++)
			for (int64_t r = 0; r < n; r++)
				few_add_row(x[r * x_pitch + i], w + i * w_pitch + o,
					    y + r * y_pitch + o, width);
	}
}

static inline void few_four_dots(const real *restrict x, const real *restrict w, int64_t w_pitch,
				 int64_t n, real *restrict y)
{
	const real *w1 = w + w_pitch, *w2 = w1 + w_pitch, *w3 = w2 + w_pitch;
	real y0 = 0, y1 = 0, y2 = 0, y3 = 0;

#pragma omp simd reduction(+ : y0, y1, y2, y3)
	for (int64_t i = 0; i < n; i++) {
		y0 += x[i] * w[i];
		y1 += x[i] * w1[i];
		y2 += x[i] * w2[i];
		y3 += x[i] * w3[i];
	}
	y[0] = y0;
	y[1] = y1;
	y[2] = y2;
	y[3] = y3;
}

/* y = x W', W [O,I]; the thread's own rows of it. */
static inline void few_dots(const real *x, int64_t x_pitch, int64_t n, int64_t I, const real *w,
			    int64_t w_pitch, int64_t O, real *y, int64_t y_pitch)
{
	const int64_t whole = O - O % FEW_TOGETHER;

	for (int64_t o = 0; o < whole; o += FEW_TOGETHER)
		for (int64_t r = 0; r < n; r++)
			few_four_dots(x + r * x_pitch, w + o * w_pitch, w_pitch, I,
				      y + r * y_pitch + o);
	for (int64_t o = whole; o < O; o++)
		for (int64_t r = 0; r < n; r++) {
			real sum = 0;

#pragma omp simd reduction(+ : sum)
			for (int64_t i = 0; i < I; i++)
				sum += x[r * x_pitch + i] * w[o * w_pitch + i];
			y[r * y_pitch + o] = sum;
		}
}

/* The columns of y that belong to the calling thread: whole cache lines of floats. */
static inline void few_share(int64_t O, int64_t *first, int64_t *last)
{
	const int64_t line = 16;

	thread_share((O + line - 1) / line, first, last);
	*first = *first * line < O ? *first * line : O;
	*last = *last * line < O ? *last * line : O;
}

#endif
