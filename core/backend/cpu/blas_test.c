/* Tests of core/backend/cpu/blas: products in every form, threads, and the choice of kernels. */
#include <omp.h>
#include <string.h>

#include "core/backend/cpu/blas.h"
#include "core/util/test.h"

#define MAX 40 /* rows and columns of a test matrix, pitch included */

/* Small integers: every product is exact, in float too. */
static double element(int64_t i, int64_t j, int salt)
{
	return (double)((i * 7 + j * 3 + salt) % 11 - 5);
}

/* One product in both types against the definition, with pitches wider than the rows. */
static void check_product(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, double beta)
{
	static float af[MAX * MAX], bf[MAX * MAX], cf[MAX * MAX];
	static double ad[MAX * MAX], bd[MAX * MAX], cd[MAX * MAX];

	for (int64_t i = 0; i < MAX; i++)
		for (int64_t j = 0; j < MAX; j++) {
			int64_t at = i * MAX + j;

			af[at] = (float)(ad[at] = element(i, j, 1));
			bf[at] = (float)(bd[at] = element(i, j, 2));
			cf[at] = (float)(cd[at] = element(i, j, 3));
		}
	blas_gemm_f32(trans_a, trans_b, m, n, k, 2, af, MAX, bf, MAX, (float)beta, cf, MAX);
	blas_gemm_f64(trans_a, trans_b, m, n, k, 2, ad, MAX, bd, MAX, beta, cd, MAX);
	for (int64_t i = 0; i < MAX; i++)
		for (int64_t j = 0; j < MAX; j++) {
			double sum = 0, want = element(i, j, 3);

			for (int64_t l = 0; l < k; l++)
				sum += (trans_a ? element(l, i, 1) : element(i, l, 1)) *
				       (trans_b ? element(j, l, 2) : element(l, j, 2));
			if (i < m && j < n)
				want = 2 * sum + beta * want;
			assert_true(cf[i * MAX + j] == want);
			assert_true(cd[i * MAX + j] == want);
		}
}

static void test_products_follow_the_definition(void **state)
{
	static const int64_t sizes[][3] = {
		{ 1, 1, 1 }, { 3, 5, 7 }, { 17, 1, 9 }, { 1, 33, 2 }, { 31, 29, 37 }
	};

	(void)state;
	for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
		for (int form = 0; form < 8; form++)
			check_product(form & 1, form & 2, sizes[s][0], sizes[s][1], sizes[s][2],
				      form & 4 ? 1 : 0);
}

static void test_beta_zero_does_not_read_the_result(void **state)
{
	const float a[] = { 1, 2 }, b[] = { 3, 4 };
	float c[] = { (float)(0.0 / 0.0) };

	(void)state;
	blas_gemm_f32(false, false, 1, 1, 2, 1, a, 2, b, 1, 0, c, 1);
	assert_true(c[0] == 11);
}

/* Large enough that the library would use its threads. */
#define SIDE 160

static void fill_square(float *square, int salt)
{
	for (int64_t i = 0; i < SIDE * SIDE; i++)
		square[i] = (float)element(i / SIDE, i % SIDE, salt);
}

static void test_products_inside_a_parallel_region(void **state)
{
	static float a[SIDE * SIDE], b[SIDE * SIDE], alone[SIDE * SIDE], together[4][SIDE * SIDE];

	(void)state;
	blas_set_threads(2);
	fill_square(a, 1);
	fill_square(b, 2);
	blas_gemm_f32(false, false, SIDE, SIDE, SIDE, 1, a, SIDE, b, SIDE, 0, alone, SIDE);
#pragma omp parallel for num_threads(2) schedule(static)
	for (int i = 0; i < 4; i++)
		blas_gemm_f32(false, false, SIDE, SIDE, SIDE, 1, a, SIDE, b, SIDE, 0, together[i],
			      SIDE);
	for (int i = 0; i < 4; i++)
		assert_memory_equal(together[i], alone, sizeof(alone));
}

static void test_description_names_the_library(void **state)
{
	char text[BLAS_DESCRIPTION_TEXT];

	(void)state;
	assert_ptr_equal(blas_description(text), text);
	assert_true(strlen(text) > 0 && strlen(text) < sizeof(text));
}

static void test_better_core(void **state)
{
	static const struct {
		const char *core;
		struct cpu_features cpu;
		const char *want;
	} cases[] = {
		/* The Xeon that OpenBLAS 0.3.21 does not know: family 6, model 207. */
		{ "Prescott", { .avx2 = true, .avx512 = true, .bf16 = true }, "Cooperlake" },
		{ "Prescott", { .avx2 = true, .avx512 = true }, "SkylakeX" },
		{ "Prescott", { .avx2 = true }, "Haswell" },
		{ "Prescott", { .avx2 = false }, NULL },
		{ "Nehalem", { .avx2 = true }, "Haswell" },
		{ "Sandybridge", { .avx2 = true }, "Haswell" },
		{ "Haswell", { .avx2 = true, .avx512 = true }, "SkylakeX" },
		{ "Haswell", { .avx2 = true }, NULL },
		{ "Zen", { .avx2 = true }, NULL },
		{ "Zen", { .avx2 = true, .avx512 = true, .bf16 = true }, "Cooperlake" },
		{ "SkylakeX", { .avx2 = true, .avx512 = true, .bf16 = true }, NULL },
		{ "COOPERLAKE", { .avx2 = true, .avx512 = true, .bf16 = true }, NULL },
		{ "SapphireRapids", { .avx2 = true, .avx512 = true, .bf16 = true }, NULL },
		{ "neoversev1", { .avx2 = false }, NULL },
		{ "armv8", { .avx2 = false }, NULL },
		{ "Unknown", { .avx2 = true }, "Haswell" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *got = blas_better_core(cases[i].core, &cases[i].cpu);

		if (!got != !cases[i].want || (got && strcmp(got, cases[i].want) != 0))
			fail_msg("case %zu: %s became %s", i, cases[i].core, got ? got : "(kept)");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_products_follow_the_definition),
		cmocka_unit_test(test_beta_zero_does_not_read_the_result),
		cmocka_unit_test(test_products_inside_a_parallel_region),
		cmocka_unit_test(test_description_names_the_library),
		cmocka_unit_test(test_better_core),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
