/* Graphs: every way to build one wrongly ends in a text that names tensors and shapes. */
#include <stdlib.h>
#include <string.h>

#include "core/backend/cpu/cpu.h"
#include "core/ops/op_case.h"
#include "core/engine/program.h"
#include "core/util/test.h"

struct fixture {
	struct params *params;
	struct graph *g;
};

static struct fixture start(void)
{
	struct fixture f;
	struct error err;

	must(params_create(&f.params, F64, &err), &err);
	must(graph_create(&f.g, f.params, true, &err), &err);
	return f;
}

static void end(struct fixture *f)
{
	graph_destroy(f->g);
	params_destroy(f->params);
}

/* The graph must be refused with a text that holds all of these; NULL ends the list. */
static void assert_refused(struct fixture *f, ...)
{
	struct error err;
	const char *part;
	va_list parts;

	assert_int_equal(graph_finish(f->g, &err), FAIL);
	va_start(parts, f);
	while ((part = va_arg(parts, const char *)))
		if (!strstr(err.text, part))
			fail_msg("'%s' does not say '%s'", err.text, part);
	va_end(parts);
	end(f);
}

static void test_shapes_that_do_not_fit(void **state)
{
	struct fixture f = start();

	(void)state;
	graph_output(f.g, "y",
		     op_linear(f.g, "query", case_param(f.g, "x", 2, 5), case_param(f.g, "w", 6, 3),
			       NULL));
	assert_refused(&f, "linear", "query", "x f64[2,5]", "w f64[6,3]", NULL);
}

static void test_later_calls_do_nothing(void **state)
{
	struct fixture f = start();
	struct tensor *bad = op_add(f.g, "sum", case_param(f.g, "a", 2), case_param(f.g, "b", 3));

	(void)state;
	assert_null(bad);
	assert_null(op_gelu(f.g, "later", bad));
	assert_null(graph_reshape(f.g, bad, 1, SHAPE(2)));
	graph_output(f.g, "y", bad);
	assert_refused(&f, "add 'sum'", "a f64[2]", "b f64[3]", NULL);
}

static void test_zero_size(void **state)
{
	struct fixture f = start();

	(void)state;
	graph_output(f.g, "y", op_gelu(f.g, "y", case_param(f.g, "empty", 3, 0)));
	assert_refused(&f, "empty", "not positive", NULL);
}

static void test_overflow(void **state)
{
	struct fixture f = start();

	(void)state;
	graph_output(
		f.g, "y",
		op_gelu(f.g, "y", case_param(f.g, "huge", (int64_t)1 << 40, (int64_t)1 << 40)));
	assert_refused(&f, "huge", "overflows", NULL);
}

static void test_dimensions(void **state)
{
	struct fixture f = start();

	(void)state;
	graph_input(f.g, "flat", F64, 0, NULL);
	assert_refused(&f, "flat", "0 dimensions", NULL);
}

static void test_same_name_twice(void **state)
{
	struct fixture f = start();
	struct tensor *x = case_param(f.g, "x", 4);

	(void)state;
	graph_output(f.g, "y", op_gelu(f.g, "twin", op_gelu(f.g, "twin", x)));
	assert_refused(&f, "two tensors", "twin", NULL);
}

static void test_parameter_in_two_shapes(void **state)
{
	struct fixture f = start();

	(void)state;
	case_param(f.g, "x", 4);
	case_param(f.g, "x", 5);
	assert_refused(&f, "'x'", "two different shapes", NULL);
}

static void test_reshape(void **state)
{
	struct fixture f = start();

	(void)state;
	graph_reshape(f.g, case_param(f.g, "x", 4, 3), 1, SHAPE(11));
	assert_refused(&f, "x", "[4,3]", "[11]", NULL);
	f = start();
	graph_reshape(f.g, graph_slice(f.g, case_param(f.g, "x", 4, 6), 0, 4), 2, SHAPE(2, 8));
	assert_refused(&f, "slice", "rows of 4", NULL);
}

static void test_slice(void **state)
{
	struct fixture f = start();

	(void)state;
	graph_slice(f.g, case_param(f.g, "x", 4, 3), 2, 2);
	assert_refused(&f, "channels 2 to 3", "x", "[4,3]", NULL);
	f = start();
	graph_output(f.g, "y",
		     op_gelu(f.g, "y", graph_slice(f.g, case_param(f.g, "x", 4, 3), 0, 2)));
	assert_refused(&f, "gelu", "is a slice", NULL);
}

static void test_loss(void **state)
{
	struct fixture f = start();

	(void)state;
	graph_loss(f.g, "loss", op_gelu(f.g, "y", case_param(f.g, "x", 4)), 1);
	assert_refused(&f, "'y'", "no scalar made by a loss op", NULL);
}

static void test_missing_input(void **state)
{
	struct fixture f = start();

	(void)state;
	graph_output(f.g, "y", op_gelu(f.g, "y", NULL));
	assert_refused(&f, "gelu", "required input 0 is missing", NULL);
}

/* A parameter keeps the origin in which it was named first. */
static void test_origins(void **state)
{
	struct fixture f = start();
	const struct param *w;
	struct error err;

	(void)state;
	graph_origin(f.g, 3, 2);
	graph_scope(f.g, "block.%d.", 3);
	graph_output(f.g, "y", op_gelu(f.g, "act", case_param(f.g, "w", 4)));
	graph_scope_end(f.g);
	graph_origin(f.g, -1, 1);
	graph_output(f.g, "z", op_gelu(f.g, "last", case_param(f.g, "block.3.w", 4)));
	must(graph_finish(f.g, &err), &err);
	w = &f.params->list[0];
	assert_int_equal(f.params->n, 1);
	assert_true(w->origin.layer == 3 && w->origin.module == 2);
	assert_true(f.g->nodes[0]->origin.layer == 3 && f.g->nodes[0]->origin.module == 2);
	assert_true(f.g->nodes[1]->origin.layer == -1 && f.g->nodes[1]->origin.module == 1);
	assert_string_equal(f.g->outputs[0].name, "block.3.y");
	assert_string_equal(f.g->outputs[0].plain_name, "y");
	assert_int_equal(f.g->outputs[0].origin.layer, 3);
	assert_string_equal(f.g->outputs[1].plain_name, "z");
	assert_int_equal(f.g->outputs[1].origin.layer, -1);
	end(&f);
}

static void test_no_output(void **state)
{
	struct fixture f = start();

	(void)state;
	op_gelu(f.g, "y", case_param(f.g, "x", 4));
	assert_refused(&f, "no output", NULL);
}

static void test_wrong_type(void **state)
{
	struct fixture f = start();

	(void)state;
	graph_output(f.g, "y", op_gelu(f.g, "y", case_input(f.g, "narrow", F32, 4)));
	assert_refused(&f, "narrow", "f32", "f64", NULL);
}

static void test_program_refusals(void **state)
{
	struct program_options train = { .train = true };
	struct backend cpu = backend_cpu(1);
	struct fixture f = start();
	struct program *p;
	struct error err;

	(void)state;
	graph_output(f.g, "y", op_gelu(f.g, "y", case_param(f.g, "x", 4)));
	must(graph_finish(f.g, &err), &err);
	assert_int_equal(program_create(&p, f.g, &cpu, &train, &err), FAIL);
	assert_string_equal(err.text, "the parameters have no memory yet");
	must(params_allocate(f.params, &cpu, true, &err), &err);
	assert_int_equal(program_create(&p, f.g, &cpu, &train, &err), FAIL);
	assert_non_null(strstr(err.text, "nothing to train"));
	case_param(f.g, "late", 4);
	assert_true(f.g->failed);
	assert_non_null(strstr(f.g->err.text, "'late' is new"));
	end(&f);
}

static void test_nan_in_weights_is_named(void **state)
{
	const double values[4] = { 1, 0.0 / 0.0, 2, 3 };
	struct program_options checked = { .check_nan = true };
	struct backend cpu = backend_cpu(1);
	struct fixture f = start();
	const struct run run = { .seed = 1 };
	struct program *p;
	struct error err;

	(void)state;
	graph_output(f.g, "y", op_gelu(f.g, "y", case_param(f.g, "weights", 4)));
	must(graph_finish(f.g, &err), &err);
	must(params_allocate(f.params, &cpu, false, &err), &err);
	must(param_set(f.params, 0, values, &err), &err);
	must(program_create(&p, f.g, &cpu, &checked, &err), &err);
	assert_int_equal(program_run(p, &run, &err), FAIL);
	assert_non_null(strstr(err.text, "parameter 'weights'"));
	assert_non_null(strstr(err.text, "element 1"));
	program_destroy(p);
	end(&f);
}

/* y = gelu(1e300 x)^2 overflows in the product. */
static void test_infinity_names_its_node(void **state)
{
	const double values[2] = { 1, 2 };
	struct program_options checked = { .check_nan = true };
	struct backend cpu = backend_cpu(1);
	struct fixture f = start();
	const struct run run = { .seed = 1 };
	struct tensor *big;
	struct program *p;
	struct error err;

	(void)state;
	big = op_scale(f.g, "big", case_param(f.g, "x", 2), 1e300);
	graph_output(f.g, "y", op_multiply(f.g, "square", big, big));
	must(graph_finish(f.g, &err), &err);
	must(params_allocate(f.params, &cpu, false, &err), &err);
	must(param_set(f.params, 0, values, &err), &err);
	must(program_create(&p, f.g, &cpu, &checked, &err), &err);
	assert_int_equal(program_run(p, &run, &err), FAIL);
	assert_non_null(strstr(err.text, "multiply 'square' (forward)"));
	program_destroy(p);
	end(&f);
}

/* ------------------------------------------------- several nodes in one call */

static int calls_together;

static int fuses_three(enum dtype type, const struct node *const *nodes, int n)
{
	(void)type;
	(void)nodes;
	return n < 3 ? n : 3;
}

/* No result lies over what another node of the call reads or writes. */
static void check_apart(enum dtype type, const struct call *calls, int n)
{
	const struct backend *cpu = calls[0].backend;

	for (int i = 0; i < n; i++)
		for (int j = 0; j < i; j++) {
			assert_ptr_not_equal(calls[i].out[0], calls[j].out[0]);
			assert_ptr_not_equal(calls[i].out[0], calls[j].in[0]);
		}
	for (int i = 0; i < n; i++)
		cpu->kernels(type)[calls[i].node->id]->forward(&calls[i]);
	calls_together += n;
}

/* Of five gelus one after another, three are done by one call, then two. */
static void test_nodes_in_one_call(void **state)
{
	const double values[2] = { 0.5, -2 };
	struct program_options options = { 0 };
	struct backend cpu = backend_cpu(1);
	double alone[2], joined[2];
	const struct run run = { 0 };
	struct fixture f = start();
	struct tensor *y = case_param(f.g, "x", 2);
	struct error err;

	(void)state;
	for (int i = 0; i < 5; i++)
		y = op_gelu(f.g, (const char *const[]){ "a", "b", "c", "d", "e" }[i], y);
	graph_output(f.g, "y", y);
	must(graph_finish(f.g, &err), &err);
	must(params_allocate(f.params, &cpu, false, &err), &err);
	must(param_set(f.params, 0, values, &err), &err);
	for (int i = 0; i < 2; i++) {
		struct program *p;

		cpu.fusable = i ? fuses_three : NULL;
		cpu.run_fused = i ? check_apart : NULL;
		must(program_create(&p, f.g, &cpu, &options, &err), &err);
		must(program_run(p, &run, &err), &err);
		program_download(p, y, i ? joined : alone);
		program_destroy(p);
	}
	assert_int_equal(calls_together, 5);
	assert_memory_equal(alone, joined, sizeof(alone));
	end(&f);
}

/* ------------------------------------------------------------------ variants */

/* gelu(factor x W) of the second half of x, with a reshape; only the factor varies. */
static void build_scaled(struct graph *g, double factor)
{
	struct tensor *x = graph_slice(g, graph_input(g, "x", F64, 2, SHAPE(2, 4)), 2, 2), *y;

	graph_scope(g, "h.0.");
	y = op_linear(g, "product", x, case_param(g, "w", 2, 3), NULL);
	y = op_scale(g, "scaled", graph_reshape(g, y, 1, SHAPE(6)), factor);
	y = op_gelu(g, "y", y);
	graph_output(g, "y", y);
	graph_scope_end(g);
}

static void run_outputs(struct fixture *f, const struct backend *cpu, double values[][6])
{
	const double x[8] = { 9, 9, 1, -1, 9, 9, 0.5, 2 }, w[6] = { 1, 2, 3, -1, -2, 0.5 };
	const struct program_options options = { 0 };
	const struct run run = { 0 };
	struct program *p;
	struct error err;

	must(graph_finish(f->g, &err), &err);
	must(params_allocate(f->params, cpu, false, &err), &err);
	must(param_set(f->params, 0, w, &err), &err);
	must(program_create(&p, f->g, cpu, &options, &err), &err);
	for (int i = 0; i < f->g->n_tensors; i++)
		if (f->g->tensors[i]->kind == TENSOR_INPUT)
			program_upload(p, f->g->tensors[i], x);
	must(program_run(p, &run, &err), &err);
	for (int i = 0; i < f->g->n_outputs; i++)
		program_download(p, f->g->outputs[i].tensor, values[i]);
	program_destroy(p);
}

/* Variants share what they have in common, and each computes what it would compute alone. */
static void test_variants(void **state)
{
	const double factors[3] = { 2, -1, 2 };
	const struct backend cpu = backend_cpu(1);
	struct fixture f = start();
	double values[3][6], alone[1][6];

	(void)state;
	f.g->training = false;
	for (int i = 0; i < 3; i++) {
		graph_variant(f.g, "v%d.", i);
		build_scaled(f.g, factors[i]);
	}
	assert_int_equal(f.g->n_nodes, 1 + 2 * 2); /* the third is the first */
	assert_int_equal(f.params->n, 1);
	assert_string_equal(f.params->list[0].name, "h.0.w");
	assert_string_equal(f.g->outputs[1].name, "v1.h.0.y");
	assert_string_equal(f.g->outputs[1].plain_name, "y");
	run_outputs(&f, &cpu, values);
	end(&f);
	for (int i = 0; i < 3; i++) {
		f = start();
		build_scaled(f.g, factors[i]);
		run_outputs(&f, &cpu, alone);
		assert_memory_equal(values[i], alone[0], sizeof(alone[0]));
		end(&f);
	}
}

static void test_dump(void **state)
{
	struct fixture f = start();
	char *text = NULL;
	size_t size;
	FILE *file = open_memstream(&text, &size);

	(void)state;
	graph_output(f.g, "out", op_gelu(f.g, "act", case_param(f.g, "x", 4)));
	graph_dump_json(f.g, file);
	fclose(file);
	assert_non_null(strstr(text, "\"op\":\"gelu\",\"name\":\"act\",\"in\":[0],\"out\":[1]"));
	assert_non_null(strstr(text, "{\"name\":\"out\",\"tensor\":1}"));
	free(text);
	end(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shapes_that_do_not_fit),
		cmocka_unit_test(test_later_calls_do_nothing),
		cmocka_unit_test(test_zero_size),
		cmocka_unit_test(test_overflow),
		cmocka_unit_test(test_dimensions),
		cmocka_unit_test(test_same_name_twice),
		cmocka_unit_test(test_parameter_in_two_shapes),
		cmocka_unit_test(test_reshape),
		cmocka_unit_test(test_slice),
		cmocka_unit_test(test_loss),
		cmocka_unit_test(test_missing_input),
		cmocka_unit_test(test_origins),
		cmocka_unit_test(test_no_output),
		cmocka_unit_test(test_wrong_type),
		cmocka_unit_test(test_program_refusals),
		cmocka_unit_test(test_nan_in_weights_is_named),
		cmocka_unit_test(test_infinity_names_its_node),
		cmocka_unit_test(test_nodes_in_one_call),
		cmocka_unit_test(test_variants),
		cmocka_unit_test(test_dump),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
