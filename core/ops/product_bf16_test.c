/*
 * Linear maps with products in bfloat16 against double on the CPU.  A GPU has several kernels for
 * them, by shape, layout and what is done with the sums: here every one has something to do.  Large
 * ones in float32, too, for which a GPU has copies of the weights.
 */
#include "core/ops/rounded_case.h"

/* The largest errors seen on the CPU and on an emulated GPU: 0.0032 for values, 0.0104 for
 * gradients. */
static const struct bounds bounds = { .value = 0.005, .gradient = 0.015, .scalar = 0.015 };

struct setting {
	const char *name;
	int64_t rows, in, out;
};

static const struct setting settings[] = {
	{ "few of all", 3, 8, 8 },
	{ "not all rows and columns of a block", 70, 64, 24 },
	{ "a row more than blocks have", 33, 128, 56 },
	{ "a sum longer than all stages", 18, 328, 40 },
	{ "widths that no vector divides", 21, 30, 26 },
	{ "some rows, more channels than a block takes at a time", 20, 800, 48 },
	{ "some rows, many outputs", 40, 64, 2056 },
	{ "many blocks", 600, 72, 136 },
	{ "too many results for a small product", 1100, 64, 1024 },
	{ "few outputs of many rows", 3104, 128, 12 },
	{ 0 },
};

/* Both layouts of W, with and without bias, with gelu; x has three readers, so that its gradient is
 * added up. */
static void build_maps(struct side *x, const void *setting)
{
	const struct setting *s = setting;
	struct tensor *in = activation(x, "kept x", case_param(x->g, "x", s->rows, s->in));

	graph_seeded_output(x->g, "y",
			    op_linear(x->g, "y", in, case_param(x->g, "w", s->in, s->out),
				      case_param(x->g, "b", s->out)));
	graph_seeded_output(
		x->g, "z",
		op_linear_transposed(x->g, "z", in, case_param(x->g, "v", s->out, s->in)));
	graph_seeded_output(x->g, "h",
			    op_linear_gelu(x->g, "h", in, case_param(x->g, "u", s->in, s->out),
					   case_param(x->g, "c", s->out)));
}

/* A feed-forward, whose second product has the slope of gelu in the backward pass. */
static void build_feed_forward(struct side *x, const void *setting)
{
	const struct setting *s = setting;
	struct tensor *in = activation(x, "kept x", case_param(x->g, "x", s->rows, s->in));

	graph_seeded_output(x->g, "y",
			    op_linear_gelu_linear(x->g, "y", in,
						  case_param(x->g, "w", s->in, s->out),
						  case_param(x->g, "b", s->out),
						  case_param(x->g, "v", s->out, s->in),
						  case_param(x->g, "c", s->in)));
}

/* A product for each head. */
static void build_heads(struct side *x, const void *setting)
{
	const struct setting *s = setting;
	struct tensor *in = activation(x, "kept x", case_param(x->g, "x", 1, s->rows, 3, s->in));

	graph_seeded_output(x->g, "y",
			    op_head_linear(x->g, "y", in, case_param(x->g, "w", 3, s->in, s->out)));
}

/* Batches of products with both layouts of either factor, as scores of attention and its outputs.
 */
static void build_batches(struct side *x, const void *setting)
{
	const struct setting *s = setting;
	struct tensor *q = activation(x, "kept q", case_param(x->g, "q", 2, s->rows, s->in));
	struct tensor *k = activation(x, "kept k", case_param(x->g, "k", 2, s->out, s->in));

	graph_seeded_output(x->g, "y", op_matmul(x->g, "y", q, false, k, true));
	graph_seeded_output(
		x->g, "z",
		op_matmul(x->g, "z", q, true, case_param(x->g, "v", s->rows, s->out), false));
}

static void check_precision(enum precision precision)
{
	void (*const build[])(struct side * x,
			      const void *setting) = { build_maps, build_feed_forward, build_heads,
						       build_batches };
	const struct backend rounding = backend_for_tests(precision, 2);
	int failed = 0;

	for (const struct setting *s = settings; s->name; s++)
		for (size_t i = 0; i < sizeof(build) / sizeof(*build); i++)
			failed += !check_rounded(
				&(struct rounded_case){ s->name, s, build[i], bounds }, &rounding);
	assert_int_equal(failed, 0);
}

static void close_to_double(void **state)
{
	(void)state;
	check_precision(BFLOAT16);
}

static void close_to_double_stored(void **state)
{
	(void)state;
	check_precision(BFLOAT16_STORED);
}

/* Feed-forwards, one after the other. */
#define LAYERS 4

static void build_layers(struct side *x, const void *setting)
{
	const struct setting *s = setting;
	struct tensor *y = activation(x, "kept x", case_param(x->g, "x", s->rows, s->in));

	for (int i = 0; i < LAYERS; i++) {
		char name[16];

		snprintf(name, sizeof(name), "y%d", i);
		y = op_linear_gelu_linear(x->g, name, y, case_param(x->g, "w", s->in, s->out),
					  case_param(x->g, "b", s->out),
					  case_param(x->g, "v", s->out, s->in),
					  case_param(x->g, "c", s->in));
	}
	graph_seeded_output(x->g, "y", y);
}

static int64_t arena_bytes(const struct side *x, bool no_recompute)
{
	const struct program_options options = { .train = true, .no_recompute = no_recompute };
	struct error err;
	size_t bytes;

	must(program_measure(x->g, x->backend, &options, &bytes, &err), &err);
	return (int64_t)bytes;
}

/* A layer's hidden activations, before and after gelu, are there while it needs them; with several
 * streams a little longer. */
static void hidden_activations_are_made_again(void **state)
{
	static const struct setting wide = { "wide", 64, 16, 4096 };
	const struct rounded_case c = { wide.name, &wide, build_layers, bounds };
	const int64_t hidden = 2 * wide.rows * wide.out * (int64_t)sizeof(uint16_t);
	struct backend stored;
	struct side x;

	(void)state;
	stored = backend_for_tests(BFLOAT16_STORED, 2);
	stored.streams = 0;
	x = build_side(&c, &stored, F32);
	assert_true(arena_bytes(&x, false) <= arena_bytes(&x, true) - (LAYERS - 2) * hidden);
	destroy(&x);
}

/* A GPU multiplies so many rows by transposed copies of the weights, if these are so large. */
static const struct setting large = { "transposed weights", 4099, 500, 530 };

/* The largest error seen on the CPU and on an emulated GPU: 5.2e-7. */
static const struct bounds float_bounds = { .value = 2e-6 };

static void check_turned_copy(const struct params *p, const char *name)
{
	const struct param *w = &p->list[params_find(p, name)];

	assert_int_equal(w->copy[1].bytes, (size_t)w->count * sizeof(float));
}

/* The forward pass alone, which takes long enough where it is emulated. */
static void run_without_gradients(struct side *x)
{
	const struct program_options options = { .check_nan = true };
	const struct run once = { .seed = SEED };
	struct error err;

	if (!x->p)
		must(program_create(&x->p, x->g, x->backend, &options, &err), &err);
	must(program_run(x->p, &once, &err), &err);
}

/* Other parameters come to the same program: copies must follow. */
static bool stays_close(const struct rounded_case *c, struct side *x, struct side *exact)
{
	struct error err;
	bool close = true;

	for (uint64_t seed = 1; seed <= 2; seed++) {
		must(params_initialise(x->params, seed, &err), &err);
		copy_parameters(exact, x);
		run_without_gradients(x);
		run_without_gradients(exact);
		close &= is_close_tensor(c, "y", x, x->g->outputs[0].tensor, exact,
					 exact->g->outputs[0].tensor);
	}
	return close;
}

static void close_to_double_with_turned_weights(void **state)
{
	const struct rounded_case c = { large.name, &large, build_feed_forward, float_bounds };
	const struct backend device = backend_for_tests(FLOAT32, 2);
	const struct backend_options cpu = { .name = "cpu", .precision = FLOAT64, .threads = 2 };
	struct side x, exact;
	struct backend plain;
	struct error err;

	(void)state;
	must(backend_open(&plain, &cpu, &err), &err);
	x = build_side(&c, &device, F32);
	exact = build_side(&c, &plain, F64);
	assert_true(stays_close(&c, &x, &exact));
	if (strcmp(device.name, "cpu") != 0) {
		check_turned_copy(x.params, "w");
		check_turned_copy(x.params, "v");
	}
	destroy(&x);
	destroy(&exact);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(close_to_double),
		cmocka_unit_test(close_to_double_with_turned_weights),
	};
	const struct CMUnitTest stored[] = {
		cmocka_unit_test(close_to_double_stored),
		cmocka_unit_test(hidden_activations_are_made_again),
	};
	int failed;

	failed = cmocka_run_group_tests(tests, NULL, NULL);
	if (backend_stores_for_tests())
		failed += cmocka_run_group_tests(stored, NULL, NULL);
	return failed;
}
