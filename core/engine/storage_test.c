/* Which tensors are kept in bfloat16, and what that does to the plan of memory. */
#include <string.h>

#include "core/backend/cpu/cpu.h"
#include "core/engine/program.h"
#include "core/ops/op_case.h"
#include "core/util/test.h"

struct fixture {
	struct params *params;
	struct graph *g;
	struct tensor *embedded, *normed, *hidden, *part, *branch, *sum, *last, *logits;
	struct tensor *weights, *biases;
};

/* A layer as in a model: x, x + branch(norm(x)), and logits of its norm. */
static struct fixture layer(enum dtype type)
{
	struct fixture f;
	struct graph *g;
	struct error err;

	must(params_create(&f.params, type, &err), &err);
	must(graph_create(&g, f.params, true, &err), &err);
	f.g = g;
	f.embedded = op_embedding(g, "embedded", case_param(g, "table", 7, 8), NULL,
				  case_input(g, "tokens", I32, 2, 4));
	f.normed = op_norm(g, "ln_1", NORM_LAYER, 1e-5, f.embedded, NULL, case_param(g, "w", 8),
			   NULL, NULL);
	f.hidden = op_gelu(g, "gelu",
			   op_linear(g, "c_fc", f.normed, case_param(g, "up", 8, 32), NULL));
	f.part = graph_slice(g, f.hidden, 0, 16);
	f.branch = op_linear(g, "c_proj", f.part, case_param(g, "down", 16, 8), NULL);
	f.last = op_norm(g, "ln_2", NORM_LAYER, 1e-5, f.embedded, f.branch, case_param(g, "v", 8),
			 NULL, &f.sum);
	f.logits = op_linear(g, "logits", f.last, case_param(g, "head", 8, 7), NULL);
	graph_output(g, "hidden", f.hidden);
	graph_seeded_output(g, "logits", f.logits);
	must(graph_finish(g, &err), &err);
	return f;
}

/* x [A | B] + [a | b], and a product that reads A alone. */
static struct fixture merge_linears(void)
{
	struct fixture f;
	struct graph *g;
	struct error err;

	must(params_create(&f.params, F32, &err), &err);
	must(graph_create(&g, f.params, true, &err), &err);
	f.g = g;
	f.hidden = op_gelu(g, "x", case_param(g, "before", 8, 16));
	f.weights = op_concat(
		g, "weights", 2,
		((struct tensor *[]){ case_param(g, "A", 16, 16), case_param(g, "B", 16, 16) }),
		SHAPE(16, 16));
	f.biases =
		op_concat(g, "biases", 2,
			  ((struct tensor *[]){ case_param(g, "a", 16), case_param(g, "b", 16) }),
			  SHAPE(16, 16));
	f.logits = op_linear(g, "y", f.hidden, f.weights, f.biases);
	f.part = graph_slice(g, f.weights, 0, 16);
	graph_seeded_output(g, "y", f.logits);
	graph_seeded_output(g, "z", op_linear(g, "z", f.part, case_param(g, "C", 16, 16), NULL));
	must(graph_finish(g, &err), &err);
	return f;
}

static void destroy(struct fixture *f)
{
	graph_destroy(f->g);
	params_destroy(f->params);
}

static void test_branches_are_narrow_and_the_stream_is_not(void **state)
{
	struct fixture f = layer(F32);

	(void)state;
	storage_assign(f.g, BFLOAT16_STORED);
	assert_int_equal(f.embedded->type, F32);
	assert_int_equal(f.normed->type, BF16);
	assert_int_equal(f.normed->producer->out[1]->type, F32); /* statistics */
	assert_int_equal(f.hidden->type, BF16); /* though the host looks at it, too */
	assert_int_equal(f.part->type, BF16);
	assert_int_equal(f.branch->type, BF16);
	assert_int_equal(f.sum->type, F32);
	assert_int_equal(f.last->type, BF16);
	for (int i = 0; i < f.g->n_tensors; i++)
		if (f.g->tensors[i]->kind == TENSOR_PARAM)
			assert_int_equal(f.g->tensors[i]->type, F32);
	destroy(&f);
}

/* Where the precision says so: sums, what is embedded, and nothing else more. */
static void test_the_stream_can_be_narrow(void **state)
{
	struct fixture f = layer(F32);

	(void)state;
	storage_assign(f.g, BFLOAT16_STREAM);
	assert_int_equal(f.embedded->type, BF16);
	assert_int_equal(f.normed->type, BF16);
	assert_int_equal(f.normed->producer->out[1]->type, F32); /* statistics */
	assert_int_equal(f.branch->type, BF16);
	assert_int_equal(f.sum->type, BF16);
	assert_int_equal(f.last->type, BF16);
	assert_int_equal(f.last->producer->out[2]->type, F32);
	for (int i = 0; i < f.g->n_tensors; i++)
		if (f.g->tensors[i]->kind == TENSOR_PARAM)
			assert_int_equal(f.g->tensors[i]->type, F32);
	destroy(&f);
}

/* In a model whose norms come after the branches, the stream is what a norm wrote. */
static void test_what_a_norm_reads_is_wide(void **state)
{
	struct fixture f = layer(F32);
	struct tensor *y;

	(void)state;
	y = op_norm(f.g, "ln_3", NORM_RMS, 1e-5, f.last, f.branch, case_param(f.g, "u", 8), NULL,
		    NULL);
	storage_assign(f.g, BFLOAT16_STORED);
	assert_int_equal(f.last->type, F32);
	assert_int_equal(y->type, BF16);
	storage_assign(f.g, BFLOAT16_STREAM);
	assert_int_equal(f.last->type, BF16);
	destroy(&f);
}

static void test_scalars_are_wide(void **state)
{
	struct fixture f = layer(F32);
	struct tensor *vector, *scalar;

	(void)state;
	vector = op_exp(f.g, "vector", case_param(f.g, "p", 8));
	scalar = op_exp(f.g, "scalar", op_sum(f.g, "sum", vector, 0));
	op_scale(f.g, "twice", scalar, 2);
	storage_assign(f.g, BFLOAT16_STORED);
	assert_int_equal(vector->type, BF16);
	assert_int_equal(scalar->type, F32);
	assert_int_equal(scalar->gradient_type, F32);
	destroy(&f);
}

/* A seeded output is an activation in tests of gradients. */
static void test_what_only_the_host_reads_is_wide(void **state)
{
	struct fixture f = layer(F32);
	struct tensor *y = op_gelu(f.g, "result", f.branch);

	(void)state;
	storage_assign(f.g, BFLOAT16_STORED);
	assert_int_equal(y->type, BF16);
	graph_output(f.g, "result", y);
	storage_assign(f.g, BFLOAT16_STORED);
	assert_int_equal(y->type, F32);
	assert_int_equal(f.logits->type, BF16);
	destroy(&f);
}

static void test_other_precisions_have_one_type(void **state)
{
	(void)state;
	for (int i = 0; i < PRECISIONS; i++) {
		const enum precision precision = (enum precision)i;
		/* Reference numbers in double are wanted on a device of any precision. */
		const enum dtype type =
			precision_stores(precision) ? F64 : precision_type(precision);
		struct fixture f = layer(type);

		storage_assign(f.g, BFLOAT16_STORED);
		storage_assign(f.g, precision);
		for (int j = 0; j < f.g->n_tensors; j++) {
			if (f.g->tensors[j]->type != I32)
				assert_int_equal(f.g->tensors[j]->type, type);
			assert_int_equal(f.g->tensors[j]->gradient_type, f.g->tensors[j]->type);
		}
		destroy(&f);
	}
}

static void assert_kept(const struct tensor *t, enum dtype type, enum dtype gradient_type)
{
	assert_int_equal(t->type, type);
	assert_int_equal(t->gradient_type, gradient_type);
}

static void test_joined_weights_are_narrow_and_their_gradient_is_not(void **state)
{
	struct fixture f = merge_linears();

	(void)state;
	storage_assign(f.g, BFLOAT16_STORED);
	assert_kept(f.weights, BF16, F32);
	assert_kept(f.part, BF16, F32);
	assert_kept(f.biases, F32, F32);
	assert_kept(f.hidden, BF16, BF16);
	assert_kept(f.logits, BF16, BF16);
	storage_assign(f.g, BFLOAT16);
	assert_kept(f.weights, F32, F32);
	assert_kept(f.part, F32, F32);
	destroy(&f);
}

/* Attention of one head, which a product reads; `state`: or NULL. */
static struct tensor *attended(struct graph *g, struct params *state)
{
	const struct attention_attr attr = { .scale = 0.5, .band_window = -1 };
	struct tensor *x, *o;
	struct error err;

	if (state)
		graph_continue(g, state, 4);
	x = case_input(g, "x", F32, 1, 4, 1, 8);
	o = op_attention(g, "attention", &attr,
			 &(struct attention_inputs){ .q = x, .k = x, .v = x })
		    .o;
	graph_output(g, "y",
		     op_linear(g, "y", graph_reshape(g, o, 2, SHAPE(4, 8)),
			       case_param(g, "W", 8, 8), NULL));
	must(graph_finish(g, &err), &err);
	return o;
}

/* What rounding loses of o: only gradients need it. */
static void test_what_attention_loses_is_kept_for_gradients(void **context)
{
	struct error err;

	(void)context;
	for (int decodes = 0; decodes < 2; decodes++) {
		struct params *params, *state = NULL;
		struct tensor *o, *lost;
		struct graph *g;

		must(params_create(&params, F32, &err), &err);
		if (decodes)
			must(params_create(&state, F32, &err), &err);
		must(graph_create(&g, params, !decodes, &err), &err);
		o = attended(g, state);
		lost = o->producer->out[o->producer->op->rounding_error_out];
		storage_assign(g, BFLOAT16_STORED);
		assert_int_equal(o->type, BF16);
		assert_int_equal(lost->type, decodes ? NOTHING : BF16);
		assert_int_equal(tensor_bytes(lost), decodes ? 0 : tensor_bytes(o));
		storage_assign(g, BFLOAT16);
		assert_int_equal(o->type, F32);
		assert_int_equal(lost->type, NOTHING);
		graph_destroy(g);
		params_destroy(state);
		params_destroy(params);
	}
}

/* A cache of what is narrow, one of what is wide, and one of which a reader wants wide numbers. */
static void test_state_is_as_narrow_as_what_it_keeps(void **context)
{
	const struct backend cpu = backend_cpu(1);
	struct tensor *x, *h, *narrow, *wide, *normed;
	struct params *params, *state;
	struct graph *g;
	struct error err;

	(void)context;
	must(params_create(&params, F32, &err), &err);
	must(params_create(&state, F32, &err), &err);
	must(graph_create(&g, params, false, &err), &err);
	graph_continue(g, state, 16);
	x = case_input(g, "x", F32, 2, 1, 8);
	h = op_gelu(g, "gelu", x);
	narrow = op_cache(g, "narrow", h);
	wide = op_cache(g, "wide", x);
	normed = op_cache(g, "normed", h);
	graph_output(g, "sum", op_add(g, "sum", narrow, wide));
	graph_output(
		g, "norm",
		op_norm(g, "ln", NORM_RMS, 1e-5, normed, NULL, case_param(g, "w", 8), NULL, NULL));
	must(graph_finish(g, &err), &err);
	storage_assign(g, BFLOAT16_STORED);
	assert_int_equal(narrow->type, BF16);
	assert_int_equal(wide->type, F32);
	assert_int_equal(normed->type, F32);
	assert_int_equal(state->total, 128 + 256 + 256);
	storage_assign(g, FLOAT32);
	assert_int_equal(narrow->type, F32);
	assert_int_equal(state->total, 3 * 256);
	storage_assign(g, BFLOAT16_STORED);
	must(params_allocate(state, &cpu, false, &err), &err);
	storage_assign(g, FLOAT32);
	assert_int_equal(narrow->type, BF16); /* what is in memory stays as it is */
	graph_destroy(g);
	params_destroy(state);
	params_destroy(params);
}

static size_t arena(const struct fixture *f, enum precision precision)
{
	const struct program_options separate = { .train = true, .no_planner = true };
	struct backend b = backend_cpu(1);
	struct error err;
	size_t bytes;

	b.precision = precision;
	must(program_measure(f->g, &b, &separate, &bytes, &err), &err);
	return bytes;
}

/* Each activation and its gradient take half the bytes; recomputed ones are activations, too. */
static void test_arena_shrinks_by_what_is_narrow(void **state)
{
	struct fixture f = layer(F32);
	const size_t wide = arena(&f, FLOAT32), narrow = arena(&f, BFLOAT16_STORED);
	const size_t narrowest = arena(&f, BFLOAT16_STREAM);
	/* 8 tokens: 3 times 8 channels, 2 times 32, and logits, whose 224 bytes take 256. */
	const size_t rows = 8 * 8 * sizeof(float), wider = 8 * 32 * sizeof(float);
	const size_t logits = 256 - 128;

	(void)state;
	/* Values and gradients; both norms and gelu are made once more for the backward pass. */
	assert_int_equal(wide - narrow,
			 (2 * (3 * rows + 2 * wider) + 2 * rows + wider) / 2 + 2 * logits);
	/* What is embedded, its gradient, and the sum, which has none. */
	assert_int_equal(narrow - narrowest, 3 * rows / 2);
	destroy(&f);
}

/* Values and recomputed values of weights take half the bytes, their gradient does not. */
static void test_arena_has_wide_gradients_of_weights(void **state)
{
	struct fixture f = merge_linears();
	const size_t x = 8 * 16 * sizeof(float), y = 8 * 32 * sizeof(float);
	const size_t z = 16 * 16 * sizeof(float), weights = 16 * 32 * sizeof(float);

	(void)state;
	assert_int_equal(arena(&f, FLOAT32) - arena(&f, BFLOAT16_STORED),
			 (3 * x + 2 * y + 2 * z + 2 * weights) / 2);
	destroy(&f);
}

static void test_the_cpu_keeps_floats(void **state)
{
	struct backend b;
	struct error err;

	(void)state;
	for (enum precision p = BFLOAT16_STORED; p <= BFLOAT16_STREAM; p++) {
		assert_int_equal(backend_cpu_open(&b, p, 1, &err), FAIL);
		assert_non_null(strstr(err.text, "the CPU keeps activations in float32"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_branches_are_narrow_and_the_stream_is_not),
		cmocka_unit_test(test_the_stream_can_be_narrow),
		cmocka_unit_test(test_what_a_norm_reads_is_wide),
		cmocka_unit_test(test_scalars_are_wide),
		cmocka_unit_test(test_what_only_the_host_reads_is_wide),
		cmocka_unit_test(test_other_precisions_have_one_type),
		cmocka_unit_test(test_joined_weights_are_narrow_and_their_gradient_is_not),
		cmocka_unit_test(test_what_attention_loses_is_kept_for_gradients),
		cmocka_unit_test(test_state_is_as_narrow_as_what_it_keeps),
		cmocka_unit_test(test_arena_shrinks_by_what_is_narrow),
		cmocka_unit_test(test_arena_has_wide_gradients_of_weights),
		cmocka_unit_test(test_the_cpu_keeps_floats),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
