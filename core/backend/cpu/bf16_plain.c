/* For every machine: widens the numbers again; the compiler makes SIMD of the loops. */
#include "core/util/bf16.h"
#include "core/backend/cpu/panel_form.h"

enum { ROWS = 4, COLUMNS = 16 };

static void tile(int64_t k, const void *left, const void *right, float alpha, bool add,
		 float *restrict c, int64_t pitch)
{
	const bf16 *restrict a = left, *restrict b = right;
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

static inline void pack_along(int lines, bf16 *restrict panel, const float *restrict data,
			      int64_t pitch, int64_t k)
{
	for (int64_t i = 0; i < k; i++)
		for (int j = 0; j < lines; j++)
			panel[i * lines + j] = bf16_round(data[j * pitch + i]);
}

static inline void pack_across(int lines, bf16 *restrict panel, const float *restrict data,
			       int64_t pitch, int64_t k)
{
	for (int64_t i = 0; i < k; i++)
#pragma omp simd
		for (int j = 0; j < lines; j++)
			panel[i * lines + j] = bf16_round(data[i * pitch + j]);
}

PANEL_PACKER(left_along, pack_along, ROWS)
PANEL_PACKER(left_across, pack_across, ROWS)
PANEL_PACKER(right_along, pack_along, COLUMNS)
PANEL_PACKER(right_across, pack_across, COLUMNS)

const struct panel_form bf16_plain = {
	.name = "plain",
	.element = PANEL_BF16,
	.side = { [PANEL_LEFT] = { ROWS, 1, left_along, left_across },
		  [PANEL_RIGHT] = { COLUMNS, 1, right_along, right_across } },
	.step = 1,
	.depth = 512,
	.rows = 128,
	.columns = 256,
	.tile = tile,
};
