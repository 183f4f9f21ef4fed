/*
 * f32_x86 - products of floats on x86-64: one description of tile and packing
 * for vectors of any width.  Floats that are rounded while they are packed also
 * serve as bfloat16.
 *
 * A tile of ROWS x VECTORS vectors of sums stays in registers; for each
 * element a vector of B is loaded and each number of A is broadcast from
 * memory.  At the edges of a matrix only the rows and vectors that exist are
 * made.  A file that includes this defines
 *
 *     ROWS, VECTORS           of a tile; even, and 2
 *     EACH_ROWS(x)            x(1) .. x(ROWS)
 *     CODE                    the attribute that allows the instructions
 *     vector, LANES           some floats
 *     zeros(), load(p), broadcast(p), multiply_add(a, b, c), store(p, v)
 *     mask, first_lanes(n), load_some(mask, p), store_some(mask, p, v)
 */
#include <immintrin.h>

#include "core/util/bf16.h"
#include "core/backend/cpu/panel_form.h"

enum {
	COLUMNS = VECTORS * LANES,
	STEP = 4,
	LINE = 16,  /* floats of a cache line */
	AHEAD = 16, /* elements: B comes from the second cache (GPT-2's shapes, AVX-512: 15 %) */
};

#define ALWAYS static inline __attribute__((always_inline))

/* -------------------------------------------------------------------- tiles */

/*
 * The sums of `rows` rows and `vectors` vectors, both known when this is compiled.  Rows and
 * elements of A are so far apart; in a panel 1 and ROWS.
 */
CODE ALWAYS void sum_up(int rows, int vectors, int64_t k, const float *a, int64_t row_step,
			int64_t element_step, const float *b, vector sum[ROWS][VECTORS])
{
#pragma GCC unroll 16
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 16
		for (int v = 0; v < vectors; v++)
			sum[r][v] = zeros();
	for (int64_t i = 0; i < k; i++, a += element_step, b += COLUMNS) {
		vector right[VECTORS];

#pragma GCC unroll 16
		for (int v = 0; v < vectors; v++)
			right[v] = load(b + v * LANES);
#pragma GCC unroll 16
		for (int j = 0; j < vectors * LANES; j += LINE)
			_mm_prefetch((const char *)(b + AHEAD * COLUMNS + j), _MM_HINT_T0);
#pragma GCC unroll 16
		for (int r = 0; r < rows; r++) {
			const vector left = broadcast(a + r * row_step);

#pragma GCC unroll 16
			for (int v = 0; v < vectors; v++)
				sum[r][v] = multiply_add(left, right[v], sum[r][v]);
		}
	}
}

CODE ALWAYS void put(float *c, vector sum, vector alpha, bool add)
{
	store(c, multiply_add(sum, alpha, add ? load(c) : zeros()));
}

CODE ALWAYS void put_some(mask some, float *c, vector sum, vector alpha, bool add)
{
	store_some(some, c, multiply_add(sum, alpha, add ? load_some(some, c) : zeros()));
}

CODE static void tile(int64_t k, const void *a, const void *b, float alpha, bool add, float *c,
		      int64_t pitch)
{
	const volatile float kept = alpha; /* in memory: in a register it would displace a sum */
	vector sum[ROWS][VECTORS], factor;

#pragma GCC unroll 16
	for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
		for (int j = 0; j < COLUMNS; j += LINE)
			_mm_prefetch((const char *)(c + r * pitch + j), _MM_HINT_T0);
	sum_up(ROWS, VECTORS, k, a, 1, ROWS, b, sum);
	factor = broadcast(&kept);
#pragma GCC unroll 16
	for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 16
		for (int v = 0; v < VECTORS; v++)
			put(c + r * pitch + v * LANES, sum[r][v], factor, add);
}

/* As a tile, but the last vector may not be whole. */
CODE ALWAYS void part(int rows, int vectors, int64_t k, const float *a, int64_t row_step,
		      int64_t element_step, const float *b, float alpha, bool add, float *c,
		      int64_t pitch, int columns)
{
	const int last = vectors - 1;
	const volatile float kept = alpha; /* in memory: in a register it would displace a sum */
	vector sum[ROWS][VECTORS], factor;
	mask some;

	sum_up(rows, vectors, k, a, row_step, element_step, b, sum);
	factor = broadcast(&kept);
	some = first_lanes(columns - last * LANES);
#pragma GCC unroll 16
	for (int r = 0; r < rows; r++, c += pitch) {
#pragma GCC unroll 16
		for (int v = 0; v < last; v++)
			put(c + v * LANES, sum[r][v], factor, add);
		put_some(some, c + last * LANES, sum[r][last], factor, add);
	}
}

/* Either step of A is 1. */
#define PART_OF(rows)                                                                             \
	CODE static void part_##rows(int64_t k, const float *a, int64_t row_step,                 \
				     int64_t element_step, const float *b, float alpha, bool add, \
				     float *c, int64_t pitch, int columns)                        \
	{                                                                                         \
		if (columns <= LANES && row_step == 1)                                            \
			part(rows, 1, k, a, 1, element_step, b, alpha, add, c, pitch, columns);   \
		else if (columns <= LANES)                                                        \
			part(rows, 1, k, a, row_step, 1, b, alpha, add, c, pitch, columns);       \
		else if (row_step == 1)                                                           \
			part(rows, VECTORS, k, a, 1, element_step, b, alpha, add, c, pitch,       \
			     columns);                                                            \
		else                                                                              \
			part(rows, VECTORS, k, a, row_step, 1, b, alpha, add, c, pitch, columns); \
	}
#define NAME_OF(rows) part_##rows,

EACH_ROWS(PART_OF)

static void row_tail(int64_t k, const float *a, int64_t row_step, int64_t element_step,
		     const void *b, float alpha, bool add, float *c, int64_t pitch, int64_t rows,
		     int64_t columns)
{
	static void (*const of_rows[])(int64_t, const float *, int64_t, int64_t, const float *,
				       float, bool, float *, int64_t, int) = { EACH_ROWS(NAME_OF) };

	of_rows[rows - 1](k, a, row_step, element_step, b, alpha, add, c, pitch, (int)columns);
}

/* ------------------------------------------------------------------ packing */

/* Four elements of four lines, from rows to columns. */
CODE ALWAYS void pack_square(int lines, float *to, const float *from, int64_t pitch)
{
	__m128 r0 = _mm_loadu_ps(from), r1 = _mm_loadu_ps(from + pitch);
	__m128 r2 = _mm_loadu_ps(from + 2 * pitch), r3 = _mm_loadu_ps(from + 3 * pitch);

	_MM_TRANSPOSE4_PS(r0, r1, r2, r3);
	_mm_storeu_ps(to, r0);
	_mm_storeu_ps(to + lines, r1);
	_mm_storeu_ps(to + 2 * lines, r2);
	_mm_storeu_ps(to + 3 * lines, r3);
}

/* Four elements of two lines. */
CODE ALWAYS void pack_pair(int lines, float *to, const float *from, int64_t pitch)
{
	const __m128 r0 = _mm_loadu_ps(from), r1 = _mm_loadu_ps(from + pitch);
	const __m128 first = _mm_unpacklo_ps(r0, r1), last = _mm_unpackhi_ps(r0, r1);

	_mm_storel_pi((__m64 *)to, first);
	_mm_storeh_pi((__m64 *)(to + lines), first);
	_mm_storel_pi((__m64 *)(to + 2 * lines), last);
	_mm_storeh_pi((__m64 *)(to + 3 * lines), last);
}

CODE ALWAYS void pack_along(int lines, float *panel, const float *data, int64_t pitch, int64_t k)
{
	for (int64_t i = 0; i < k; i += STEP, panel += STEP * lines) {
#pragma GCC unroll 16
		for (int l = 0; l + 4 <= lines; l += 4)
			pack_square(lines, panel + l, data + l * pitch + i, pitch);
		if (lines % 4)
			pack_pair(lines, panel + lines - 2, data + (lines - 2) * pitch + i, pitch);
	}
}

CODE ALWAYS void pack_across(int lines, float *panel, const float *data, int64_t pitch, int64_t k)
{
	const mask some = first_lanes(lines % LANES);

	for (int64_t i = 0; i < k; i++, panel += lines, data += pitch) {
#pragma GCC unroll 16
		for (int l = 0; l + LANES <= lines; l += LANES)
			store(panel + l, load(data + l));
		if (lines % LANES)
			store_some(some, panel + lines / LANES * LANES,
				   load_some(some, data + lines / LANES * LANES));
	}
}

CODE ALWAYS void round_panel(float *restrict panel, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		panel[i] = bf16_widen(bf16_round(panel[i]));
}

CODE ALWAYS void round_along(int lines, float *panel, const float *data, int64_t pitch, int64_t k)
{
	pack_along(lines, panel, data, pitch, k);
	round_panel(panel, lines * k);
}

CODE ALWAYS void round_across(int lines, float *panel, const float *data, int64_t pitch, int64_t k)
{
	pack_across(lines, panel, data, pitch, k);
	round_panel(panel, lines * k);
}

CODE PANEL_PACKER(left_along, pack_along, ROWS)
CODE PANEL_PACKER(left_across, pack_across, ROWS)
CODE PANEL_PACKER(right_along, pack_along, COLUMNS)
CODE PANEL_PACKER(right_across, pack_across, COLUMNS)
CODE PANEL_PACKER(left_along_rounded, round_along, ROWS)
CODE PANEL_PACKER(left_across_rounded, round_across, ROWS)
CODE PANEL_PACKER(right_along_rounded, round_along, COLUMNS)
CODE PANEL_PACKER(right_across_rounded, round_across, COLUMNS)

#define F32_PANELS                                                     \
	.element = PANEL_F32,                                          \
	.side = { [PANEL_LEFT] = { ROWS, 1, left_along, left_across }, \
		  [PANEL_RIGHT] = { COLUMNS, 1, right_along, right_across } }

/* bfloat16 where no instruction multiplies it faster than floats. */
#define ROUNDED_PANELS                                                                 \
	.element = PANEL_BF16, .rounded = true,                                        \
	.side = { [PANEL_LEFT] = { ROWS, 1, left_along_rounded, left_across_rounded }, \
		  [PANEL_RIGHT] = { COLUMNS, 1, right_along_rounded, right_across_rounded } }

/* The part of C that is made at a time: B's panels come from the second cache. */
#define TILES                                                                          \
	.step = STEP, .depth = 256, .rows = 252, .columns = 512, .obstacle = obstacle, \
	.tile = tile, .part = row_tail
