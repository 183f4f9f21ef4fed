/* For every machine: numbers are widened again, the compiler makes SIMD of the loops. */
#include "core/backend/cpu/bf16_form.h"

enum { ROWS = 4, COLUMNS = 16 };

static void tile(int64_t k, const bf16 *restrict a, const bf16 *restrict b, float alpha, bool add,
		 float *restrict c, int64_t pitch)
{
	float sum[ROWS][COLUMNS] = { { 0 } };

	for (int64_t i = 0; i < k; i++)
		for (int r = 0; r < ROWS; r++) {
			const float x = bf16_widen(a[i * ROWS + r]);

#pragma omp simd
			for (int j = 0; j < COLUMNS; j++)
				sum[r][j] += x * bf16_widen(b[i * COLUMNS + j]);
		}
	for (int r = 0; r < ROWS; r++)
		for (int j = 0; j < COLUMNS; j++)
			c[r * pitch + j] = (add ? c[r * pitch + j] : 0) + alpha * sum[r][j];
}

/* A panel's lines are neighbours in memory. */
static inline void pack_across(int lines, bf16 *restrict panel, const float *restrict data,
			       int64_t pitch, int64_t k)
{
	for (int64_t i = 0; i < k; i++)
#pragma omp simd
		for (int j = 0; j < lines; j++)
			panel[i * lines + j] = bf16_round(data[i * pitch + j]);
}

static void left_across(bf16 *panel, const float *data, int64_t pitch, int64_t k)
{
	pack_across(ROWS, panel, data, pitch, k);
}

static void right_across(bf16 *panel, const float *data, int64_t pitch, int64_t k)
{
	pack_across(COLUMNS, panel, data, pitch, k);
}

const struct bf16_form bf16_plain = {
	.name = "plain",
	.side = { [BF16_LEFT] = { .lines = ROWS, .group = 1, .across = left_across },
		  [BF16_RIGHT] = { .lines = COLUMNS, .group = 1, .across = right_across } },
	.step = 1,
	.depth = 512,
	.rows = 128,
	.columns = 256,
	.tile = tile,
};
