/* Tests of core/backend/cpu/bf16: every form against the definition, and the choice of one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "core/backend/cpu/bf16.h"
#include "core/backend/cpu/bf16_form.h"
#include "core/test.h"

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

/* Edges of all panels, steps, blocks and chunks on every side, and none. */
static const struct shape shapes[] = {
	{ 1, 1, 1 },	 { 3, 5, 7 },	   { 8, 12, 4 },    { 32, 32, 32 },   { 33, 31, 33 },
	{ 17, 1, 9 },	 { 1, 65, 2 },	   { 64, 48, 64 },  { 40, 37, 96 },   { 257, 20, 24 },
	{ 5, 530, 130 }, { 20, 20, 1100 }, { 16, 8, 4200 }, { 300, 250, 40 },
};

struct matrices {
	float a[MAX_SIZE], b[MAX_SIZE], c[MAX_SIZE], old[MAX_SIZE];
	char packed_a[4 * MAX_SIZE], packed_b[4 * MAX_SIZE];
};

/* What differs between two products of the same shape. */
struct way {
	bool trans_a, trans_b, pack_a, pack_b, add;
	float alpha;
};

static struct way way_number(int i)
{
	return (struct way){
		.trans_a = i & 1,
		.trans_b = i & 2,
		.add = i & 4,
		.alpha = i & 8 ? 0.125f : 1,
		.pack_b = i & 16,
		.pack_a = (i & 48) == 48, /* never alone */
	};
}

#define WAYS 64

/* Rows are longer than what is used of them. */
static struct bf16_factor factor(const float *data, bool across, int64_t lines, int64_t k)
{
	return (struct bf16_factor){ .data = data,
				     .across = across,
				     .pitch = (across ? lines : k) + 3 };
}

static void multiply(const struct bf16_form *form, const struct shape *s, const struct way *w,
		     struct matrices *x)
{
	struct bf16_factor a = factor(x->a, w->trans_a, s->m, s->k);
	struct bf16_factor b = factor(x->b, !w->trans_b, s->n, s->k);
	void *work = aligned_alloc(
		64, (bf16_work_bytes(s->m, s->n, s->k, w->pack_b, omp_get_max_threads()) + 63) /
			    64 * 64);

	assert_non_null(work);
	assert_true(bf16_packed_bytes(s->m, s->k) <= sizeof(x->packed_a));
	assert_true(bf16_packed_bytes(s->n, s->k) <= sizeof(x->packed_b));
	memset(x->packed_a, 0xff, sizeof(x->packed_a));
	memset(x->packed_b, 0xff, sizeof(x->packed_b));
	memcpy(x->c, x->old, sizeof(x->c));
	if (w->pack_a) {
		bf16_pack(form, BF16_LEFT, s->m, s->k, &a, x->packed_a);
		a.packed = x->packed_a;
		a.packed_k = s->k;
	}
	if (w->pack_b) {
		bf16_pack(form, BF16_RIGHT, s->n, s->k, &b, x->packed_b);
		b.packed = x->packed_b;
		b.packed_k = s->k;
	}
	bf16_product(form, s->m, s->n, s->k, w->alpha, &a, &b, w->add, x->c, s->n + 2, work);
	free(work);
}

static double rounded(const struct bf16_factor *f, int64_t line, int64_t i)
{
	return (double)bf16_widen(
		bf16_round(f->data[f->across ? i * f->pitch + line : line * f->pitch + i]));
}

static void check_product(const struct bf16_form *form, const struct shape *s, const struct way *w,
			  struct matrices *x)
{
	const struct bf16_factor a = factor(x->a, w->trans_a, s->m, s->k);
	const struct bf16_factor b = factor(x->b, !w->trans_b, s->n, s->k);

	multiply(form, s, w, x);
	for (int64_t i = 0; i < s->m; i++)
		for (int64_t j = 0; j < s->n + 2; j++) {
			const int64_t at = i * (s->n + 2) + j;
			double sum = 0, size = 0, want;

			if (j >= s->n) { /* beyond the matrix: untouched */
				assert_true(x->c[at] == x->old[at]);
				continue;
			}
			for (int64_t l = 0; l < s->k; l++) {
				double p = rounded(&a, i, l) * rounded(&b, j, l);

				sum += p;
				size += fabs(p);
			}
			want = w->alpha * sum + (w->add ? (double)x->old[at] : 0);
			size = w->alpha * size + fabs(want);
			if (!(fabs((double)x->c[at] - want) <=
			      BF16_TOLERANCE * (double)(s->k + 1) * size))
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

static void check_definition(const struct bf16_form *form)
{
	struct matrices *x = make_matrices();

	omp_set_num_threads(2);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (int way = 0; way < WAYS; way++) {
			const struct way w = way_number(way);

			check_product(form, &shapes[i], &w, x);
		}
	free(x);
}

/* Any number of threads, also called by each of several threads, packed or not: the same bits. */
static void check_bits(const struct bf16_form *form)
{
	struct matrices *x = make_matrices();
	float *first = malloc(sizeof(x->c));

	assert_non_null(first);
	for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (int threads = 1; threads <= 5; threads++) {
			const struct way w = { .alpha = 1, .add = true, .pack_b = threads == 4 };

			omp_set_num_threads(threads);
			multiply(form, &shapes[i], &w, x);
			if (threads == 1)
				memcpy(first, x->c, sizeof(x->c));
			assert_memory_equal(first, x->c, sizeof(x->c));
		}
	omp_set_num_threads(2);
	free(first);
	free(x);
}

/* Packed with more lines and elements than a product uses: attention's growing prefixes. */
static void check_prefix(const struct bf16_form *form)
{
	enum { M = 20, N = 64, K = 96, SHORT_N = 40, SHORT_K = 64 };
	struct matrices *x = make_matrices();
	struct bf16_factor a = { .data = x->a, .pitch = SHORT_K };
	struct bf16_factor b = { .data = x->b, .pitch = K }, whole = b;
	char *work = malloc(bf16_work_bytes(M, N, K, false, 2));

	assert_non_null(work);
	bf16_pack(form, BF16_RIGHT, N, K, &b, x->packed_b);
	whole.packed = x->packed_b;
	whole.packed_k = K;
	bf16_product(form, M, SHORT_N, SHORT_K, 1, &a, &b, false, x->c, N, work);
	bf16_product(form, M, SHORT_N, SHORT_K, 1, &a, &whole, false, x->old, N, work);
	for (int i = 0; i < M; i++)
		assert_memory_equal(x->c + i * N, x->old + i * N, SHORT_N * sizeof(float));
	free(work);
	free(x);
}

/* --------------------------------------------------------------- all the forms */

static const struct bf16_form *form_named(const char *name)
{
	for (int i = 0; bf16_forms[i]; i++)
		if (strcmp(bf16_name(bf16_forms[i]), name) == 0)
			return bf16_forms[i];
	return NULL;
}

/* Not all of them run on one machine: those that do not are skipped, which is counted. */
static const struct bf16_form *form_or_skip(const char *name)
{
	const struct bf16_form *form = form_named(name);
	const char *obstacle = form ? bf16_obstacle(form) : "made for other processors";

	if (obstacle) {
		print_message("form %s is untested: %s\n", name, obstacle);
		skip();
	}
	return form;
}

static void test_form(void **state)
{
	const struct bf16_form *form = form_or_skip(*state);

	check_definition(form);
	check_bits(form);
	check_prefix(form);
}

static void test_the_environment_chooses(void **state)
{
	const struct bf16_form *form = NULL;
	struct error err;

	(void)state;
	setenv(BF16_VARIABLE, "plain", 1);
	must(bf16_choose(&form, &err), &err);
	assert_string_equal(bf16_name(form), "plain");
	setenv(BF16_VARIABLE, "abacus", 1);
	assert_int_equal(bf16_choose(&form, &err), FAIL);
	assert_non_null(strstr(err.text, "abacus"));
	unsetenv(BF16_VARIABLE);
	must(bf16_choose(&form, &err), &err);
	assert_null(bf16_obstacle(form));
	assert_true(form == bf16_forms[0] || bf16_obstacle(bf16_forms[0]));
}

#define FORM(name)                                                     \
	{                                                              \
		"test_form_" name, test_form, NULL, NULL, (void *)name \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rounds_to_nearest_even),
		FORM("amx"),
		FORM("avx512"),
		FORM("bfmmla"),
		FORM("plain"),
		cmocka_unit_test(test_the_environment_chooses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
