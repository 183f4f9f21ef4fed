/*
 * gemv - products y [n,O] = x [n,I] W with few rows n: reading W once takes
 * the time, not the arithmetic.
 *
 * Memory is fastest if each thread reads one long stretch.  So threads share W by its
 * rows, in either orientation.  (On a Neoverse V1, one core, 768 x 3072
 * and 3072 x 768, as a share of the speed of a plain sum: 108% and 101% with
 * 16 rows together, 99% and 81% with 4; dealt by columns 91% and 62%.  Short
 * rows are read one by one: at 768 x 128 95%, 16 together 56%.)
 */
#ifndef CORE_BACKEND_CPU_GEMV_H
#define CORE_BACKEND_CPU_GEMV_H

#include "core/backend/cpu/elementwise.h"

#define SKINNY_ROWS 8	/* the library multiplies more rows */
#define FEW_TOGETHER 16 /* rows of W [I,O] that one visit of y adds up */
#define FEW_NARROW 256	/* columns up to which rows are short */
#define FEW_COLUMNS 512 /* of those rows that stay near for the second row of y */

/* Room for the threads' parts of y. */
static inline size_t skinny_workspace(int64_t n, int64_t O, int threads)
{
	return (size_t)(threads * n * O) * sizeof(real);
}

/* FEW_TOGETHER rows */
static inline void skinny_add_rows(const real *restrict x, const real *restrict w, int64_t w_pitch,
				   real *restrict y, int64_t width)
{
	const int64_t whole = width - width % LANES;

	for (int64_t o = 0; o < whole; o += LANES)
#pragma omp simd
		for (int l = 0; l < LANES; l++) {
			real sum = y[o + l];

			for (int k = 0; k < FEW_TOGETHER; k++)
				sum += x[k] * w[k * w_pitch + o + l];
			y[o + l] = sum;
		}
	for (int64_t o = whole; o < width; o++)
		for (int k = 0; k < FEW_TOGETHER; k++)
			y[o] += x[k] * w[k * w_pitch + o];
}

static inline void skinny_add_row(real x, const real *restrict w, real *restrict y, int64_t width)
{
#pragma omp simd
	for (int64_t o = 0; o < width; o++)
		y[o] += x * w[o];
}

/* y [n,O] += x W, W [I,O]; by the calling thread alone. */
static inline void skinny_add(const real *x, int64_t x_pitch, int64_t n, int64_t I, const real *w,
			      int64_t w_pitch, int64_t O, real *y, int64_t y_pitch)
{
	const int64_t whole = O > FEW_NARROW ? I - I % FEW_TOGETHER : 0;
	const int64_t block = n > 1 ? FEW_COLUMNS : O;

	for (int64_t i = 0; i < whole; i += FEW_TOGETHER)
		for (int64_t o = 0; o < O; o += block)
			for (int64_t r = 0; r < n; r++)
				skinny_add_rows(x + r * x_pitch + i, w + i * w_pitch + o, w_pitch,
						y + r * y_pitch + o, O - o < block ? O - o : block);
	for (int64_t i = whole; i < I; i++)
		for (int64_t r = 0; r < n; r++)
			skinny_add_row(x[r * x_pitch + i], w + i * w_pitch, y + r * y_pitch, O);
}

/*
 * y [n,O] = x W + b, W [I,O], b or NULL: all threads of a parallel region
 * together, each with some rows of W; their sums are joined in their order.
 */
static inline void skinny_product(const real *x, int64_t x_pitch, int64_t n, int64_t I,
				  const real *w, int64_t O, const real *b, real *work, real *y)
{
	const int threads = omp_get_num_threads();
	real *part = work + omp_get_thread_num() * n * O;
	int64_t first, last;

	thread_share((I + FEW_TOGETHER - 1) / FEW_TOGETHER, &first, &last);
	first *= FEW_TOGETHER;
	last = last * FEW_TOGETHER < I ? last * FEW_TOGETHER : I;
	memset(part, 0, (size_t)(n * O) * sizeof(real));
	if (first < last)
		skinny_add(x + first, x_pitch, n, last - first, w + first * O, O, O, part, O);
#pragma omp barrier
	thread_share(O, &first, &last);
	for (int64_t r = 0; r < n; r++)
		for (int64_t o = first; o < last; o++) {
			real sum = b ? b[o] : 0;

			for (int t = 0; t < threads; t++)
				sum += work[(t * n + r) * O + o];
			y[r * O + o] = sum;
		}
}

/* y [n,O] = x W', W [O,I]: all threads of a parallel region together. */
static inline void skinny_dots(const real *x, int64_t x_pitch, int64_t n, int64_t I, const real *w,
			       int64_t O, real *y)
{
	int64_t first, last;

	thread_share(O, &first, &last);
	for (int64_t o = first; o < last; o++)
		for (int64_t r = 0; r < n; r++)
			y[r * O + o] = dot(x + r * x_pitch, w + o * I, I);
}

#endif
