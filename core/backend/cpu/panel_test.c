/* Tests of core/backend/cpu/panel: every form against the definition, and the choice of one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "core/util/bf16.h"
#include "core/backend/cpu/panel_form.h"
#include "core/util/test.h"

#define MAX_SIZE 200000 /* elements of a test matrix */

/* ------------------------------------------------------------------ rounding */

static float from_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static void test_rounds_to_nearest_even(void **state)
{
	(void)state;
	assert_int_equal(bf16_round(1), 0x3f80);
	assert_int_equal(bf16_round(from_bits(0x3f808000)), 0x3f80); /* tie: the even one, below */
	assert_int_equal(bf16_round(from_bits(0x3f818000)), 0x3f82); /* tie: the even one, above */
	assert_int_equal(bf16_round(from_bits(0x3f808001)), 0x3f81);
	assert_int_equal(bf16_round(from_bits(0x3f807fff)), 0x3f80);
	assert_int_equal(bf16_round(from_bits(0xbf818000)), 0xbf82);
	assert_int_equal(bf16_round(from_bits(0x7f7fffff)), 0x7f80); /* overflows to infinity */
	assert_int_equal(bf16_round(-INFINITY), 0xff80);
	assert_true(isnan(bf16_widen(bf16_round(from_bits(0x7fffffff)))));
	assert_true(isnan(bf16_widen(bf16_round(from_bits(0x7f800001)))));
	for (uint32_t x = 0; x < 0x7f80; x++)
		assert_int_equal(bf16_round(bf16_widen((bf16)x)), x);
}

/* ------------------------------------------------------------------ products */

/* Neither representable nor regular; about as large as what a model multiplies. */
static float number(uint64_t i)
{
	const uint64_t mixed = (i + 1) * 0x9e3779b97f4a7c15u;

	return (float)((double)(mixed >> 40) * 0x1p-23 - 1);
}

struct shape {
	int64_t m, n, k;
};

/* Sizes at, below and above all panels, steps, blocks and chunks. */
static const struct shape shapes[] = {
	{ 1, 1, 1 },	 { 3, 5, 7 },	   { 8, 12, 4 },    { 32, 32, 32 },
	{ 33, 31, 33 },	 { 17, 1, 9 },	   { 1, 65, 2 },    { 64, 48, 64 },
	{ 40, 37, 96 },	 { 257, 20, 24 },  { 5, 530, 130 }, { 20, 20, 1100 },
	{ 16, 8, 4200 }, { 300, 250, 40 }, { 16, 28, 40 },  { 3, 8200, 7 },
};

struct matrices {
	float a[MAX_SIZE], b[MAX_SIZE], c[MAX_SIZE], old[MAX_SIZE];
	char packed[8 * MAX_SIZE];
	double seen_a[MAX_SIZE], seen_b[MAX_SIZE]; /* as a form sees them, k numbers a line */
	double sum[MAX_SIZE], size[MAX_SIZE]; /* of the products of an element; of their sizes */
};

/* What differs between two products of the same shape. */
struct way {
	bool trans_a, trans_b, pack_b, add;
	float alpha;
};

static struct way way_number(int i)
{
	return (struct way){
		.add = i & 1,
		.alpha = i & 2 ? 0.125f : 1,
		.pack_b = i & 4,
		.trans_a = i & 8,
		.trans_b = i & 16,
	};
}

#define WAYS 32
#define WAYS_OF_A_DEFINITION 8 /* the same transpositions */

/* Rows are longer than what is used of them. */
static struct panel_factor factor(const float *data, bool across, int64_t lines, int64_t k)
{
	return (struct panel_factor){ .data = data,
				      .across = across,
				      .pitch = (across ? lines : k) + 3 };
}

/* Of the result; its rows, too, are longer than what is used of them. */
static size_t result_bytes(const struct shape *s)
{
	return (size_t)(s->m * (s->n + 2)) * sizeof(float);
}

static void multiply(const struct panel_form *form, const struct shape *s, const struct way *w,
		     struct matrices *x)
{
	const struct panel_factor a = factor(x->a, w->trans_a, s->m, s->k);
	struct panel_factor b = factor(x->b, !w->trans_b, s->n, s->k);
	void *work = aligned_alloc(
		64, (panel_work(form->element, s->m, s->n, s->k, w->pack_b, omp_get_max_threads()) +
		     63) / 64 *
			    64);

	assert_non_null(work);
	assert_true(panel_bytes(form->element, s->n, s->k) <= sizeof(x->packed));
	memset(x->packed, 0xff, panel_bytes(form->element, s->n, s->k));
	memcpy(x->c, x->old, result_bytes(s));
	if (w->pack_b) {
		panel_pack(form, s->n, s->k, &b, x->packed);
		b.packed = x->packed;
		b.packed_lines = s->n;
		b.packed_k = s->k;
	}
	panel_product(form, s->m, s->n, s->k, w->alpha, &a, &b, w->add, x->c, s->n + 2, work);
	free(work);
}

/* A factor as the form sees it. */
static void see(const struct panel_form *form, const struct panel_factor *f, int64_t lines,
		int64_t k, double *out)
{
	for (int64_t line = 0; line < lines; line++)
		for (int64_t i = 0; i < k; i++) {
			const float x =
				f->data[f->across ? i * f->pitch + line : line * f->pitch + i];

			out[line * k + i] =
				(double)(form->element == PANEL_BF16 ? bf16_widen(bf16_round(x))
								     : x);
		}
}

/* The definition of a product, which all its ways of the same transpositions share. */
static void define(const struct panel_form *form, const struct shape *s, const struct way *w,
		   struct matrices *x)
{
	const struct panel_factor a = factor(x->a, w->trans_a, s->m, s->k);
	const struct panel_factor b = factor(x->b, !w->trans_b, s->n, s->k);

	see(form, &a, s->m, s->k, x->seen_a);
	see(form, &b, s->n, s->k, x->seen_b);
	for (int64_t i = 0; i < s->m; i++)
		for (int64_t j = 0; j < s->n; j++) {
			double sum = 0, size = 0;

			for (int64_t l = 0; l < s->k; l++) {
				double p = x->seen_a[i * s->k + l] * x->seen_b[j * s->k + l];

				sum += p;
				size += fabs(p);
			}
			x->sum[i * s->n + j] = sum;
			x->size[i * s->n + j] = size;
		}
}

static void check_product(const struct panel_form *form, const struct shape *s, const struct way *w,
			  struct matrices *x)
{
	multiply(form, s, w, x);
	for (int64_t i = 0; i < s->m; i++)
		for (int64_t j = 0; j < s->n + 2; j++) {
			const int64_t at = i * (s->n + 2) + j;
			double want, size;

			if (j >= s->n) { /* beyond the matrix: untouched */
				assert_true(x->c[at] == x->old[at]);
				continue;
			}
			want = w->alpha * x->sum[i * s->n + j] + (w->add ? (double)x->old[at] : 0);
			size = w->alpha * x->size[i * s->n + j] + fabs(want);
			if (!(fabs((double)x->c[at] - want) <=
			      PANEL_TOLERANCE * (double)(s->k + 1) * size))
				fail_msg(
					"%lld x %lld x %lld, row %lld, column %lld: %.9g, not %.9g",
					(long long)s->m, (long long)s->n, (long long)s->k,
					(long long)i, (long long)j, (double)x->c[at], want);
		}
}

static struct matrices *make_matrices(void)
{
	struct matrices *x = malloc(sizeof(*x));

	assert_non_null(x);
	for (uint64_t i = 0; i < MAX_SIZE; i++) {
		x->a[i] = number(i);
		x->b[i] = number(i + MAX_SIZE);
		x->old[i] = number(i + 2 * MAX_SIZE);
	}
	return x;
}

static void check_definition(const struct panel_form *form)
{
	struct matrices *x = make_matrices();

	omp_set_num_threads(2);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (int way = 0; way < WAYS; way++) {
			const struct way w = way_number(way);

			if (way % WAYS_OF_A_DEFINITION == 0)
				define(form, &shapes[i], &w, x);
			check_product(form, &shapes[i], &w, x);
		}
	free(x);
}

/* Any number of threads, also inside a parallel region, packed or not: the same bits. */
static void check_bits(const struct panel_form *form)
{
	struct matrices *x = make_matrices();
	float *first = malloc(sizeof(x->c));

	assert_non_null(first);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (int threads = 1; threads <= 5; threads++) {
			const struct way w = { .alpha = 1, .add = true, .pack_b = threads == 4 };

			omp_set_num_threads(threads);
#pragma omp parallel num_threads(1) if (threads == 5)
			multiply(form, &shapes[i], &w, x);
			if (threads == 1)
				memcpy(first, x->c, result_bytes(&shapes[i]));
			assert_memory_equal(first, x->c, result_bytes(&shapes[i]));
		}
	omp_set_num_threads(2);
	free(first);
	free(x);
}

/* Packed with more lines and elements than a product uses: attention's growing prefixes. */
static void check_prefix(const struct panel_form *form)
{
	enum { M = 20, N = 64, K = 1500, SHORT_N = 40, SHORT_K = 1400 }; /* more than a layer */
	struct matrices *x = make_matrices();
	struct panel_factor a = { .data = x->a, .pitch = SHORT_K };
	struct panel_factor b = { .data = x->b, .pitch = K }, whole = b;
	char *work = malloc(panel_work(form->element, M, N, K, false, 2));

	assert_non_null(work);
	panel_pack(form, N, K, &b, x->packed);
	whole.packed = x->packed;
	whole.packed_lines = N;
	whole.packed_k = K;
	panel_product(form, M, SHORT_N, SHORT_K, 1, &a, &b, false, x->c, N, work);
	panel_product(form, M, SHORT_N, SHORT_K, 1, &a, &whole, false, x->old, N, work);
	for (int i = 0; i < M; i++)
		assert_memory_equal(x->c + i * N, x->old + i * N, SHORT_N * sizeof(float));
	free(work);
	free(x);
}

/* --------------------------------------------------------------- all the forms */

/* A form that was compiled, but that this processor lacks, is skipped. */
static void test_form(void **state)
{
	const struct panel_form *form = *state;

	if (panel_obstacle(form))
		skip("%s", panel_obstacle(form));
	check_definition(form);
	check_bits(form);
	check_prefix(form);
}

static void test_the_environment_chooses(void **state)
{
	const struct panel_form *form = NULL;
	struct error err;

	(void)state;
	setenv(PANEL_BF16_VARIABLE, "plain", 1);
	must(panel_choose(&form, PANEL_BF16, &err), &err);
	assert_string_equal(panel_name(form), "plain");
	setenv(PANEL_BF16_VARIABLE, "abacus", 1);
	assert_int_equal(panel_choose(&form, PANEL_BF16, &err), FAIL);
	assert_non_null(strstr(err.text, "abacus"));
	unsetenv(PANEL_BF16_VARIABLE);
	must(panel_choose(&form, PANEL_BF16, &err), &err);
	assert_null(panel_obstacle(form));
	assert_ptr_equal(form, panel_fastest(PANEL_BF16));
}

static void test_floats_may_be_left_to_the_blas(void **state)
{
	const struct panel_form *form = &bf16_plain;
	struct error err;

	(void)state;
	setenv(PANEL_F32_VARIABLE, "blas", 1);
	must(panel_choose(&form, PANEL_F32, &err), &err);
	assert_null(form);
	setenv(PANEL_F32_VARIABLE, "plain", 1); /* one of bfloat16 */
	assert_int_equal(panel_choose(&form, PANEL_F32, &err), FAIL);
	assert_non_null(strstr(err.text, PANEL_F32_VARIABLE "=plain"));
	unsetenv(PANEL_F32_VARIABLE);
	must(panel_choose(&form, PANEL_F32, &err), &err);
	assert_ptr_equal(form, panel_fastest(PANEL_F32));
}

#define MOST_FORMS 16

static int test_forms(void)
{
	struct CMUnitTest forms[MOST_FORMS];
	size_t n = 0;

	for (enum panel_element e = PANEL_BF16; e <= PANEL_F32; e++)
		for (const struct panel_form *const *f = panel_forms(e); *f && n < MOST_FORMS; f++)
			forms[n++] = (struct CMUnitTest){ .name = panel_name(*f),
							  .test_func = test_form,
							  .initial_state = (void *)(uintptr_t)*f };
	return _cmocka_run_group_tests("forms", forms, n, NULL, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rounds_to_nearest_even),
		cmocka_unit_test(test_the_environment_chooses),
		cmocka_unit_test(test_floats_may_be_left_to_the_blas),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) + test_forms();
}
