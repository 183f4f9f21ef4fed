/*
 * Memory: the training loop allocates nothing, and a failed allocation while
 * a program is made leaks nothing.  The linker sends our calls through the
 * __wrap functions below.
 */
#include <stdlib.h>
#include <string.h>

#include "core/backend/cpu/cpu.h"
#include "core/ops/op_case.h"
#include "core/engine/program.h"
#include "core/util/test.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *memory);

static long allocations; /* since the counter was reset */
static long alive;
static long fail_at; /* this allocation fails; 0: none */

static bool refused(void)
{
	return ++allocations == fail_at;
}

static void *counted(void *memory)
{
	alive += memory != NULL;
	return memory;
}

void *__wrap_malloc(size_t size)
{
	return refused() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
	return refused() ? NULL : counted(__real_calloc(n, size));
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
	return refused() ? NULL : counted(__real_aligned_alloc(alignment, size));
}

void *__wrap_realloc(void *memory, size_t size)
{
	if (refused())
		return NULL;
	return memory ? __real_realloc(memory, size) : counted(__real_realloc(NULL, size));
}

void __wrap_free(void *memory)
{
	alive -= memory != NULL;
	__real_free(memory);
}

/* A model of a few ops: residual norm, slices, attention, loss. */
static void build(struct graph *g)
{
	struct tensor *tokens = case_input(g, "tokens", I32, 2, 5);
	struct tensor *wte = case_param(g, "wte", 11, 8);
	struct tensor *x = op_embedding(g, "x", wte, NULL, tokens);
	struct tensor *qkv = op_linear(g, "qkv", x, case_param(g, "w", 8, 24), NULL);
	struct attention_attr attr = { .scale = 0.5, .band_window = -1, .dropout = 0.1 };
	struct attention_inputs in;
	struct tensor *sum;

	if (!qkv) /* the first allocation may have failed already */
		return;
	in = (struct attention_inputs){
		.q = graph_reshape(g, graph_slice(g, qkv, 0, 8), 4, SHAPE(2, 5, 2, 4)),
		.k = graph_reshape(g, graph_slice(g, qkv, 8, 8), 4, SHAPE(2, 5, 2, 4)),
		.v = graph_reshape(g, graph_slice(g, qkv, 16, 8), 4, SHAPE(2, 5, 2, 4)),
	};
	x = op_norm(g, "norm", NORM_LAYER, 1e-5, x,
		    graph_reshape(g, op_attention(g, "heads", &attr, &in).o, 3, SHAPE(2, 5, 8)),
		    case_param(g, "gain", 8), NULL, &sum);
	graph_loss(g, "main",
		   op_head_loss(g, "loss", op_gelu(g, "gelu", x), wte,
				case_input(g, "targets", I32, 2, 5),
				case_input(g, "weights", F32, 2))
			   .main,
		   1);
}

static enum status make_and_run(struct backend *cpu, int runs, struct error *err)
{
	const struct program_options options = { .train = true };
	struct params *params = NULL;
	struct graph *g = NULL;
	struct program *p = NULL;
	enum status status = FAIL;
	long before;

	if (params_create(&params, F32, err) != OK || graph_create(&g, params, true, err) != OK)
		goto destroy;
	build(g);
	if (graph_finish(g, err) != OK || params_allocate(params, cpu, true, err) != OK ||
	    params_initialise(params, 1, err) != OK ||
	    program_create(&p, g, cpu, &options, err) != OK)
		goto destroy;
	before = allocations;
	status = OK;
	for (int i = 0; i < runs && status == OK; i++) {
		const struct run run = { .seed = 1, .iteration = (uint64_t)i };

		status = program_run(p, &run, err);
	}
	assert_int_equal(allocations, before);
destroy:
	program_destroy(p);
	graph_destroy(g);
	params_destroy(params);
	return status;
}

static void test_running_allocates_nothing(void **state)
{
	struct backend cpu;
	struct error err;

	(void)state;
	fail_at = 0;
	for (enum precision precision = FLOAT32; precision <= BFLOAT16; precision++) {
		must(backend_cpu_open(&cpu, precision, 2, &err), &err);
		must(make_and_run(&cpu, 5, &err), &err);
	}
}

static void test_every_failed_allocation_is_survived(void **state)
{
	enum status status = FAIL;
	struct backend cpu;
	struct error err;
	long n;

	(void)state;
	must(backend_cpu_open(&cpu, BFLOAT16, 2, &err), &err); /* it allocates the most */
	for (n = 1; status != OK; n++) {
		long before = alive;

		err.text[0] = '\0';
		allocations = 0;
		fail_at = n;
		status = make_and_run(&cpu, 1, &err);
		fail_at = 0;
		assert_int_equal(alive, before);
		if (status != OK && !strstr(err.text, "memory"))
			fail_msg("allocation %ld failed, but the text is '%s'", n, err.text);
	}
	assert_true(n > 20); /* there was something to fail */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_running_allocates_nothing),
		cmocka_unit_test(test_every_failed_allocation_is_survived),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
