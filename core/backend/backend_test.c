/*
 * What every backend does apart from kernels: copies in order, searches, numbers collected,
 * parameters rounded, work kept and done again, memory counted.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/open.h"
#include "core/engine/program.h"
#include "core/engine/replay.h"
#include "core/util/bf16.h"
#include "core/ops/op_case.h"
#include "core/util/test.h"

#define COUNT 4096

static struct backend open_device(void)
{
	return backend_for_tests(FLOAT32, 2);
}

/* More than a device can hold back for later, from memory of the host that changes at once. */
static void test_uploads_arrive_in_order(void **state)
{
	struct backend b = open_device();
	float *host = malloc(COUNT * sizeof(*host));
	float *device = b.alloc(&b, 2 * COUNT * sizeof(*device));

	(void)state;
	for (int round = 0; round < 2000; round++) {
		for (int i = 0; i < COUNT; i++)
			host[i] = (float)(round + i);
		b.upload(&b, device + (round % 2) * COUNT, host, COUNT * sizeof(*host));
	}
	for (int half = 0; half < 2; half++) {
		b.download(&b, host, device + half * COUNT, COUNT * sizeof(*host));
		for (int i = 0; i < COUNT; i++)
			assert_true(host[i] == (float)(1998 + half + i));
	}
	b.release(&b, device);
	free(host);
}

static void test_large_uploads(void **state)
{
	struct backend b = open_device();
	const size_t n = (size_t)5 << 20;
	char *host = malloc(n), *back = malloc(n), *device = b.alloc(&b, n);

	(void)state;
	for (size_t i = 0; i < n; i++)
		host[i] = (char)(i % 251);
	b.upload(&b, device, host, n);
	b.download(&b, back, device, n);
	assert_memory_equal(host, back, n);
	b.release(&b, device);
	free(host);
	free(back);
}

/* Rows of 30 elements, 32 apart; what lies between them is not looked at. */
static void test_finds_the_first_that_is_not_finite(void **state)
{
	static const double bad[] = { NAN, INFINITY, -INFINITY };
	struct backend b = open_device();
	double host[64 * 32] = { 0 };
	void *device = b.alloc(&b, sizeof(host));

	(void)state;
	for (int row = 0; row < 64; row++)
		host[row * 32 + 31] = NAN;
	b.upload(&b, device, host, sizeof(host));
	assert_int_equal(b.find_nonfinite(&b, device, F64, 64, 30, 32), -1);
	assert_int_equal(b.find_nonfinite(&b, device, F64, 1, 64 * 32, 64 * 32), 31);
	for (int i = 0; i < 3; i++) {
		host[(50 - i) * 32 + 7] = bad[i];
		b.upload(&b, device, host, sizeof(host));
		assert_int_equal(b.find_nonfinite(&b, device, F64, 64, 30, 32), (50 - i) * 30 + 7);
	}
	b.release(&b, device);
}

static void test_collects_numbers_of_either_type(void **state)
{
	struct backend b = open_device();
	float narrow[100];
	double wide[100], seen[100], *to = b.alloc(&b, sizeof(seen));
	float *from_narrow = b.alloc(&b, sizeof(narrow));
	double *from_wide = b.alloc(&b, sizeof(wide));
	const void *places[100], *wide_places[100], **list = b.alloc(&b, sizeof(places));

	(void)state;
	for (int i = 0; i < 100; i++) {
		narrow[i] = (float)i + 0.1F;
		wide[i] = i + 0.2;
		places[i] = from_narrow + 99 - i;
		wide_places[i] = from_wide + 99 - i;
	}
	b.upload(&b, from_narrow, narrow, sizeof(narrow));
	b.upload(&b, from_wide, wide, sizeof(wide));
	b.upload(&b, list, places, sizeof(places));
	b.collect(&b, F32, list, 100, to);
	b.download(&b, seen, to, sizeof(seen));
	for (int i = 0; i < 100; i++)
		assert_true(seen[i] == (double)narrow[99 - i]);
	b.upload(&b, list, wide_places, sizeof(wide_places));
	b.collect(&b, F64, list, 100, to);
	b.download(&b, seen, to, sizeof(seen));
	for (int i = 0; i < 100; i++)
		assert_true(seen[i] == wide[99 - i]);
	b.release(&b, to);
	b.release(&b, list);
	b.release(&b, from_narrow);
	b.release(&b, from_wide);
}

#define VALUES (2 * PARAM_CHUNK + 3)

struct visited {
	const double *expected;
	int64_t next;
};

static void check_piece(void *context, int64_t first, int64_t n, double *values)
{
	struct visited *v = context;

	assert_int_equal(first, v->next);
	assert_memory_equal(values, v->expected + first, (size_t)n * sizeof(*values));
	memset(values, 0, (size_t)n * sizeof(*values)); /* allowed: the copy is its own */
	v->next += n;
}

static void check_pieces(enum dtype type)
{
	const struct param_init init = { .kind = INIT_NORMAL, .value = 1 };
	const int64_t changed = PARAM_CHUNK - 1, count = PARAM_CHUNK + 2;
	struct backend b = backend_for_tests(FLOAT32, 2);
	double *values = calloc(VALUES, sizeof(*values)), *seen = calloc(VALUES, sizeof(*seen));
	struct visited data = { .expected = values }, gradient = { .expected = seen };
	struct params *p;
	struct error err;
	int index;

	assert_non_null(values);
	assert_non_null(seen);
	must(params_create(&p, type, &err), &err);
	must(params_name(p, "w", &init, 1, (int64_t[]){ VALUES }, &index, &err), &err);
	must(params_allocate(p, &b, true, &err), &err);
	must(param_visit(p, index, true, check_piece, &gradient, &err), &err); /* of zeros */
	for (int i = 0; i < VALUES; i++)
		values[i] = i;
	must(param_set(p, index, values, &err), &err);
	for (int64_t i = changed; i < changed + count; i++)
		values[i] = -0.5 * (double)i;
	must(param_set_part(p, index, changed, count, values + changed, &err), &err);
	must(param_visit(p, index, false, check_piece, &data, &err), &err);
	assert_int_equal(data.next, VALUES);
	assert_int_equal(gradient.next, VALUES);
	must(param_get(p, index, false, seen, &err), &err);
	assert_memory_equal(seen, values, VALUES * sizeof(*values));
	params_destroy(p);
	free(values);
	free(seen);
}

static void test_reads_parameters_in_pieces(void **state)
{
	(void)state;
	check_pieces(F32);
	check_pieces(F64);
}

/* Parameters w0, w1, .. of these dimensions, with memory. */
static struct params *matrices(const struct backend *b, const int64_t (*dim)[2], int n)
{
	const struct param_init init = { .kind = INIT_NORMAL, .value = 1 };
	struct params *p;
	struct error err;
	char name[16];
	int index;

	must(params_create(&p, F32, &err), &err);
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "w%d", i);
		must(params_name(p, name, &init, 2, dim[i], &index, &err), &err);
	}
	must(params_allocate(p, b, false, &err), &err);
	return p;
}

static void ask_for_copy(struct params *p, int index, int which, size_t size)
{
	const struct param_copy *copy;
	struct error err;

	must(param_copy_of(p, index, which, (size_t)p->list[index].count * size, &copy, &err),
	     &err);
}

#define MATRICES 300 /* more than a GPU rounds at once */

/* Of all sizes up to 4 blocks of a kernel; every third is not copied. */
static struct params *many_matrices(const struct backend *b)
{
	int64_t dim[MATRICES][2];
	struct params *p;
	struct error err;

	for (int i = 0; i < MATRICES; i++) {
		dim[i][0] = i % 7 + 1;
		dim[i][1] = i % 50 ? i % 50 : 1200;
	}
	p = matrices(b, dim, MATRICES);
	for (int i = 0; i < MATRICES; i++)
		if (i % 3)
			ask_for_copy(p, i, 0, sizeof(bf16));
	must(params_initialise(p, 1, &err), &err);
	return p;
}

static void check_rounded(const struct params *p, int index)
{
	const int64_t n = p->list[index].count;
	float *exact = malloc((size_t)n * sizeof(*exact));
	bf16 *rounded = malloc((size_t)n * sizeof(*rounded));

	p->backend->download(p->backend, exact, param_data(p, index), (size_t)n * sizeof(*exact));
	p->backend->download(p->backend, rounded, p->list[index].copy[0].memory,
			     (size_t)n * sizeof(*rounded));
	for (int64_t i = 0; i < n; i++)
		assert_int_equal(rounded[i], bf16_round(exact[i]));
	free(exact);
	free(rounded);
}

/* The copies of the CPU are panels: product_test.c has them. */
static void test_rounds_many_parameters(void **state)
{
	struct backend b = backend_for_tests(BFLOAT16, 2);
	struct params *p;

	(void)state;
	p = many_matrices(&b);
	params_prepare(p);
	for (int i = 0; i < MATRICES; i++)
		if (i % 3)
			check_rounded(p, i);
	params_destroy(p);
}

/* Whole tiles, as a GPU transposes them, and parts of some in each direction. */
static const int64_t transposed_shapes[][2] = { { 1, 1 },   { 1, 70 },	{ 70, 1 },  { 32, 64 },
						{ 31, 33 }, { 33, 31 }, { 100, 7 }, { 65, 130 } };
#define TRANSPOSED (int)(sizeof(transposed_shapes) / sizeof(*transposed_shapes))

/* With transposed copies, whose numbers have so many bytes. */
static struct params *transposed_matrices(const struct backend *b, size_t size)
{
	struct params *p = matrices(b, transposed_shapes, TRANSPOSED);

	for (int i = 0; i < TRANSPOSED; i++)
		ask_for_copy(p, i, 1, size);
	return p;
}

static void check_transposed(const struct params *p, int index, size_t size)
{
	const struct param *q = &p->list[index];
	float *exact = malloc((size_t)q->count * sizeof(*exact));
	void *transposed = malloc((size_t)q->count * size);

	p->backend->download(p->backend, exact, param_data(p, index),
			     (size_t)q->count * sizeof(*exact));
	p->backend->download(p->backend, transposed, q->copy[1].memory, (size_t)q->count * size);
	for (int64_t i = 0; i < q->count; i++) {
		const float x = exact[i % q->dim[0] * q->dim[1] + i / q->dim[0]];

		if (size == sizeof(bf16))
			assert_int_equal(((bf16 *)transposed)[i], bf16_round(x));
		else
			assert_true(((float *)transposed)[i] == x);
	}
	free(exact);
	free(transposed);
}

/* Copies in the type of products, which follow the parameters. */
static void check_all_transposed(enum precision precision, size_t size)
{
	struct backend b = backend_for_tests(precision, 2);
	struct params *p = transposed_matrices(&b, size);
	struct error err;

	for (uint64_t seed = 1; seed <= 2; seed++) {
		must(params_initialise(p, seed, &err), &err);
		params_prepare(p);
		for (int i = 0; i < p->n; i++)
			check_transposed(p, i, size);
	}
	params_destroy(p);
}

static void test_transposes_parameters(void **state)
{
	(void)state;
	check_all_transposed(FLOAT32, sizeof(float));
	check_all_transposed(BFLOAT16, sizeof(bf16));
}

struct work {
	struct backend *b;
	double *to, *cleared;
	const void **places; /* of one double */
	int asked;
};

static void ask(void *context)
{
	struct work *w = context;

	w->asked++;
	w->b->collect(w->b, F64, w->places, 1, w->to);
	w->b->zero(w->b, w->cleared, sizeof(*w->cleared));
}

/* What is kept works on what device memory holds when it is done, not when it was asked for. */
static void test_kept_work_reads_memory_anew(void **state)
{
	struct backend b = open_device();
	double *memory = b.alloc(&b, 3 * sizeof(*memory));
	const void *place = memory, **places = b.alloc(&b, sizeof(place));
	struct work w = { &b, memory + 1, memory + 2, places, 0 };
	struct replay replay = { 0 };
	struct error err;
	double now[3];

	(void)state;
	b.upload(&b, places, &place, sizeof(place));
	for (int i = 1; i <= 5; i++) {
		const double fresh[3] = { i, -1, -1 };

		b.upload(&b, memory, fresh, sizeof(fresh));
		replay_run(&replay, &b, ask, &w);
		b.download(&b, now, memory, sizeof(now));
		assert_true(now[0] == i && now[1] == i && now[2] == 0);
	}
	assert_int_equal(w.asked, b.capture ? 2 : 5);
	replay_reset(&replay, &b);
	replay_run(&replay, &b, ask, &w);
	assert_int_equal(w.asked, b.capture ? 3 : 6);
	replay_reset(&replay, &b);
	must(b.wait(&b, &err), &err);
	b.release(&b, memory);
	b.release(&b, places);
}

static void test_memory_is_counted(void **state)
{
	struct backend b = open_device();
	struct backend_memory before, during, after;
	void *block, *more;

	(void)state;
	b.memory(&b, &before);
	block = b.alloc(&b, 100);
	more = b.alloc(&b, (size_t)64 << 20);
	b.memory(&b, &during);
	b.release(&b, block);
	b.release(&b, more);
	b.memory(&b, &after);
	assert_true(during.taken == before.taken + 100 + (64 << 20));
	assert_true(during.most >= during.taken && after.most == during.most);
	assert_true(after.taken == before.taken);
	assert_true(during.free > 0 && during.free < during.total);
	assert_true(strlen(during.device) > 8);
}

/* Sums have parts for all multiprocessors of the GPU, and records name their number. */
static void test_follows_multiprocessors(void **state)
{
	const struct program_options train = { .train = true };
	struct backend b = open_device(), larger = b;
	char device[200], expected[32];
	size_t bytes, more;
	struct params *params;
	struct graph *g;
	struct error err;

	(void)state;
	larger.units *= 4;
	must(params_create(&params, F32, &err), &err);
	must(graph_create(&g, params, true, &err), &err);
	graph_seeded_output(g, "y",
			    op_norm(g, "norm", NORM_LAYER, 1e-5, case_param(g, "x", COUNT, 64),
				    NULL, case_param(g, "w", 64), NULL, NULL));
	must(graph_finish(g, &err), &err);
	must(program_measure(g, &b, &train, &bytes, &err), &err);
	must(program_measure(g, &larger, &train, &more, &err), &err);
	assert_true(more > bytes);
	b.describe(&b, device, sizeof(device));
	snprintf(expected, sizeof(expected), ", %d SMs,", b.units);
	assert_non_null(strstr(device, expected));
	graph_destroy(g);
	params_destroy(params);
}

/* The tables of a device without a softmax, or without its backward pass. */
static bool has_forward;

static const struct kernels *const *kernels_lacking(enum dtype type)
{
	static const struct kernels *table[OP_COUNT];
	static struct kernels partial;
	struct backend b = open_device();

	memcpy(table, b.kernels(type), sizeof(table));
	partial = *table[OP_softmax];
	partial.backward = NULL;
	table[OP_softmax] = has_forward ? &partial : NULL;
	return table;
}

static void test_lacks_a_kernel(void **state)
{
	const struct program_options train = { .train = true };
	struct backend b = open_device();
	struct params *params;
	struct program *p;
	struct graph *g;
	struct error err;
	char expected[120];

	(void)state;
	b.kernels = kernels_lacking;
	must(params_create(&params, F32, &err), &err);
	must(graph_create(&g, params, true, &err), &err);
	graph_seeded_output(g, "y",
			    op_softmax(g, "probabilities", case_param(g, "x", 3, 4), UNMASKED));
	must(graph_finish(g, &err), &err);
	must(params_allocate(params, &b, true, &err), &err);
	for (int i = 0; i < 2; i++) {
		has_forward = i;
		snprintf(expected, sizeof(expected),
			 "softmax 'probabilities': the %s backend has no %skernel for this op",
			 b.name, i ? "backward " : "");
		assert_int_equal(program_create(&p, g, &b, &train, &err), FAIL);
		assert_string_equal(err.text, expected);
	}
	graph_destroy(g);
	params_destroy(params);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_uploads_arrive_in_order),
		cmocka_unit_test(test_large_uploads),
		cmocka_unit_test(test_finds_the_first_that_is_not_finite),
		cmocka_unit_test(test_collects_numbers_of_either_type),
		cmocka_unit_test(test_reads_parameters_in_pieces),
		cmocka_unit_test(test_kept_work_reads_memory_anew),
		cmocka_unit_test(test_lacks_a_kernel),
	};
	const struct CMUnitTest gpu[] = {
		cmocka_unit_test(test_rounds_many_parameters),
		cmocka_unit_test(test_transposes_parameters),
		cmocka_unit_test(test_memory_is_counted),
		cmocka_unit_test(test_follows_multiprocessors),
	};
	int failed;

	failed = cmocka_run_group_tests_name("backend", tests, NULL, NULL);
	if (strcmp(backend_name_for_tests(), "cpu") != 0)
		failed += cmocka_run_group_tests_name("GPU", gpu, NULL, NULL);
	return failed;
}
