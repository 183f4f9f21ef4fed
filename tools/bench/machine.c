#include "tools/bench/machine.h"

#include <assert.h>
#include <stdlib.h>

#include <omp.h>

#include "core/backend/cpu/panel.h"
#include "core/backend/cpu/blas.h"
#include "tools/bench/times.h"

#define SQUARE 2048	   /* side of the matrices that are multiplied */
#define TRIAD (32LL << 20) /* elements of each array */

void machine_triad(const struct machine *m)
{
	float *restrict a = m->a;
	const float *restrict b = m->b, *restrict c = m->c;

#pragma omp parallel for simd schedule(static)
	for (int64_t i = 0; i < TRIAD; i++)
		a[i] = b[i] + 0.5f * c[i];
}

static void product(const struct machine *m)
{
	const int64_t n = SQUARE;

	blas_gemm_f32(false, false, n, n, n, 1, m->b, n, m->c, n, 0, m->a, n);
}

/* As in training, one factor was packed before.  The arrays have room for it at their ends. */
static void bf16_products(const struct machine *m)
{
	const int64_t n = SQUARE;
	const struct panel_factor left = { .data = m->b, .pitch = n };
	const struct panel_factor right = { .packed = m->c, .packed_lines = n, .packed_k = n };

	panel_product(m->form, n, n, n, 1, &left, &right, false, m->a, n, m->a + n * n);
}

/* The threads that will use this memory touch it first. */
static float *new_array(int64_t n)
{
	float *array = aligned_alloc(64, (size_t)n * sizeof(*array)); /* n is a multiple of 16 */

#pragma omp parallel for schedule(static) if (array != NULL)
	for (int64_t i = 0; i < n; i++)
		array[i] = array ? (float)(i % 1021) / 1021 - 0.5f : 0;
	return array;
}

void machine_free(struct machine *m)
{
	free(m->a);
	free(m->b);
	free(m->c);
}

static double least_time(void (*work)(const struct machine *m), const struct machine *m)
{
	const double start = omp_get_wtime();
	struct times all = { .n = 0 };

	while (times_want_more(&all, start)) {
		const double begin = omp_get_wtime();

		work(m);
		times_add(&all, omp_get_wtime() - begin);
	}
	return times_quantile(&all, 0);
}

/* NULL: only the last, plain form runs here, and it is no ceiling. */
static const struct panel_form *matrix_form(void)
{
	for (const struct panel_form *const *f = panel_forms(PANEL_BF16); f[1]; f++)
		if (!panel_obstacle(*f))
			return *f;
	return NULL;
}

enum status machine_measure(struct machine *m, int threads, struct error *err)
{
	const int64_t n = SQUARE;
	const double operations = 2.0 * (double)n * (double)n * (double)n;

	*m = (struct machine){ .threads = threads };
	m->a = new_array(TRIAD);
	m->b = new_array(TRIAD);
	m->c = new_array(TRIAD);
	if (!m->a || !m->b || !m->c) {
		machine_free(m);
		return fail_memory(err, "arrays to measure the machine", 3 * TRIAD * sizeof(float));
	}
	m->flops = operations / least_time(product, m);
	m->bytes = 3.0 * TRIAD * sizeof(float) / least_time(machine_triad, m);
	m->form = matrix_form();
	if (m->form) {
		assert(panel_bytes(PANEL_BF16, n, n) <= TRIAD * sizeof(float));
		assert(panel_work(PANEL_BF16, n, n, n, true, threads) <=
		       (TRIAD - n * n) * sizeof(float));
		panel_pack(m->form, n, n,
			   &(struct panel_factor){ .data = m->b, .pitch = n, .across = true },
			   m->c);
		m->bf16_flops = operations / least_time(bf16_products, m);
	}
	return OK;
}
