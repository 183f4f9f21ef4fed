/*
 * Tests of core/backend/cpu/product: products in bfloat16 inside a program.  Packed weights are
 * never stale, programs share copies where they are kept, and runs repeat bit by bit.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/cpu/panel.h"
#include "core/ops/op_case.h"
#include "core/optim/optim.h"
#include "core/backend/cpu/cpu.h"
#include "core/engine/program.h"
#include "core/util/test.h"

enum { B = 2, T = 70, E = 40, H = 5, D = 8, F = 72, V = 61 };

#define ERROR 1e-2 /* of the largest gradient of a tensor; seen: less than 4e-3 */

struct fixture {
	struct backend backend;
	struct params *params;
	struct graph *graph;
	struct program *program;
	struct error err;
};

/* As small as a model's, so that the softmax does not saturate. */
#define weight(g, name, ...)                                                                  \
	graph_param(g, name, &(const struct param_init){ .kind = INIT_NORMAL, .value = 0.2 }, \
		    (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)),              \
		    SHAPE(__VA_ARGS__))

/* All ops with products, and a weight that is read twice, in both orientations. */
static void build_graph(struct graph *g)
{
	struct tensor *tokens = case_input(g, "tokens", I32, B, T);
	struct tensor *wte = weight(g, "wte", V, E), *up = weight(g, "up", E, F);
	struct tensor *x = op_embedding(g, "x", wte, NULL, tokens);
	struct tensor *qkv = op_linear(g, "qkv", x, weight(g, "w", E, 3 * E), NULL);
	struct attention_attr attr = { .scale = 0.3, .band_window = 3, .band = 0.1 };
	struct attention_inputs in = {
		.q = graph_reshape(g, graph_slice(g, qkv, 0, E), 4, SHAPE(B, T, H, D)),
		.k = graph_reshape(g, graph_slice(g, qkv, E, E), 4, SHAPE(B, T, H, D)),
		.v = graph_reshape(g, graph_slice(g, qkv, 2 * E, E), 4, SHAPE(B, T, H, D)),
	};
	struct tensor *o = op_head_linear(g, "heads", op_attention(g, "attention", &attr, &in).o,
					  weight(g, "blocks", H, D, D));

	x = op_add(g, "sum", x, graph_reshape(g, o, 3, SHAPE(B, T, E)));
	x = op_norm(g, "norm", NORM_RMS, 1e-5, x, NULL, weight(g, "gain", E), NULL, NULL);
	x = op_linear(g, "mlp.up", x, up, weight(g, "bias", F));
	x = op_linear_transposed(g, "mlp.down", op_gelu(g, "mlp.gelu", x), up);
	x = op_norm(g, "last", NORM_RMS, 1e-5, x, NULL, weight(g, "last_gain", E), NULL, NULL);
	graph_loss(g, "main",
		   op_head_loss(g, "loss", x, wte, case_input(g, "targets", I32, B, T),
				case_input(g, "weights", F32, 2))
			   .main,
		   1);
}

static void fill_inputs(struct fixture *f)
{
	const float weights[2] = { 1.0f / (B * T), 0 };
	int32_t tokens[B * T];

	for (int i = 0; i < B * T; i++)
		tokens[i] = i * i % V;
	for (int i = 0; i < f->graph->n_tensors; i++) {
		const struct tensor *t = f->graph->tensors[i];

		if (t->kind == TENSOR_INPUT)
			program_upload(f->program, t,
				       t->type == I32 ? (const void *)tokens : weights);
	}
}

static void open_fixture(struct fixture *f, enum precision precision, int threads)
{
	const struct program_options options = { .train = true };

	*f = (struct fixture){ 0 };
	must(backend_cpu_open(&f->backend, precision, threads, &f->err), &f->err);
	must(params_create(&f->params, F32, &f->err), &f->err);
	must(graph_create(&f->graph, f->params, true, &f->err), &f->err);
	build_graph(f->graph);
	must(graph_finish(f->graph, &f->err), &f->err);
	must(params_allocate(f->params, &f->backend, true, &f->err), &f->err);
	must(params_initialise(f->params, 3, &f->err), &f->err);
	must(program_create(&f->program, f->graph, &f->backend, &options, &f->err), &f->err);
	fill_inputs(f);
}

static void close_fixture(struct fixture *f)
{
	program_destroy(f->program);
	graph_destroy(f->graph);
	params_destroy(f->params);
}

static double run(struct fixture *f, uint64_t micro)
{
	const struct run r = { .seed = 1, .iteration = 1, .micro = micro };

	must(program_run(f->program, &r, &f->err), &f->err);
	return program_scalar(f->program, f->graph->outputs[0].tensor);
}

static size_t gradient_bytes(const struct fixture *f)
{
	return (size_t)f->params->total * sizeof(float);
}

/* ---------------------------------------------------------------------- tests */

static void test_gradients_are_those_of_float_but_for_the_rounding(void **state)
{
	struct fixture narrow, wide;

	(void)state;
	open_fixture(&narrow, BFLOAT16, 2);
	open_fixture(&wide, FLOAT32, 2);
	assert_true(fabs(run(&narrow, 0) / run(&wide, 0) - 1) < 1e-3);
	assert_memory_not_equal(narrow.params->grad, wide.params->grad, gradient_bytes(&wide));
	for (int i = 0; i < wide.params->n; i++) {
		const float *a = param_grad(narrow.params, i), *b = param_grad(wide.params, i);
		const struct param *p = &wide.params->list[i];
		float most = 0;

		for (int64_t j = 0; j < p->count; j++)
			most = fmaxf(most, fabsf(b[j]));
		for (int64_t j = 0; j < p->count; j++)
			if (!(fabsf(a[j] - b[j]) <= (float)ERROR * most))
				fail_msg("d %s[%lld] is %g, in float %g", p->name, (long long)j,
					 (double)a[j], (double)b[j]);
	}
	close_fixture(&narrow);
	close_fixture(&wide);
}

static void test_runs_repeat_bit_by_bit(void **state)
{
	const int times = test_is_sampled() ? 1 : 3;

	(void)state;
	for (int threads = 1; threads <= 3; threads++) {
		struct fixture f;
		void *first;

		open_fixture(&f, BFLOAT16, threads);
		run(&f, 0);
		first = malloc(gradient_bytes(&f));
		assert_non_null(first);
		memcpy(first, f.params->grad, gradient_bytes(&f));
		for (int i = 0; i < times; i++) {
			run(&f, 0);
			assert_memory_equal(first, f.params->grad, gradient_bytes(&f));
		}
		free(first);
		close_fixture(&f);
	}
}

/* Two fixtures, one of which was used with other weights before: the same results. */
static void check_fresh(struct fixture *used)
{
	struct fixture fresh;

	open_fixture(&fresh, BFLOAT16, 2);
	for (int i = 0; i < used->params->n; i++) {
		double *values = malloc((size_t)used->params->list[i].count * sizeof(*values));

		must(param_get(used->params, i, false, values, &used->err), &used->err);
		must(param_set(fresh.params, i, values, &fresh.err), &fresh.err);
		free(values);
	}
	assert_true(run(used, 0) == run(&fresh, 0));
	assert_memory_equal(used->params->grad, fresh.params->grad, gradient_bytes(used));
	close_fixture(&fresh);
}

static void test_changed_weights_are_packed_again(void **state)
{
	const struct optim_options options = {
		.kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8
	};
	struct optimizer *optimizer;
	struct optim_report report;
	struct fixture f;
	double loss;

	(void)state;
	open_fixture(&f, BFLOAT16, 2);
	loss = run(&f, 0);
	must(params_initialise(f.params, 4, &f.err), &f.err);
	assert_true(run(&f, 0) != loss);
	check_fresh(&f);
	must(optimizer_create(&optimizer, &options, f.params, &f.err), &f.err);
	loss = run(&f, 0);
	optimizer_update(optimizer, 1, 0.1, &report);
	assert_true(run(&f, 0) != loss);
	check_fresh(&f);
	optimizer_destroy(optimizer);
	close_fixture(&f);
}

/*
 * Changes a parameter without telling its version.  A machine that keeps copies does not pack again
 * and misses the change; on others every product packs, and sees it.
 */
static void test_unchanged_weights_are_packed_once(void **state)
{
	struct fixture f;
	float *up;
	double loss;

	(void)state;
	open_fixture(&f, BFLOAT16, 2);
	loss = run(&f, 0);
	up = param_data(f.params, params_find(f.params, "up"));
	for (int i = 0; i < E * F; i++)
		up[i] = -up[i];
	assert_int_equal(run(&f, 1) == loss, PANEL_KEEPS_WEIGHTS);
	params_changed(f.params);
	assert_true(run(&f, 0) != loss);
	close_fixture(&f);
}

static void test_programs_share_copies(void **state)
{
	const struct program_options forward = { .train = false };
	struct program *other;
	struct fixture f;
	size_t bytes;

	(void)state;
	open_fixture(&f, BFLOAT16, 2);
	bytes = f.params->copy_bytes;
	assert_int_equal(bytes > 0, PANEL_KEEPS_WEIGHTS);
	must(program_create(&other, f.graph, &f.backend, &forward, &f.err), &f.err);
	assert_int_equal(f.params->copy_bytes, bytes);
	program_destroy(other);
	close_fixture(&f);
	open_fixture(&f, FLOAT32, 2);
	assert_int_equal(f.params->copy_bytes, 0);
	close_fixture(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_gradients_are_those_of_float_but_for_the_rounding),
		cmocka_unit_test(test_runs_repeat_bit_by_bit),
		cmocka_unit_test(test_changed_weights_are_packed_again),
		cmocka_unit_test(test_unchanged_weights_are_packed_once),
		cmocka_unit_test(test_programs_share_copies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
