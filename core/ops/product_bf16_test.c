/*
 * Linear maps with products in bfloat16 against double on the CPU.  A GPU has several kernels for them, by
 * shape, layout and what is done with the sums: here every one has something to do.
 */
#include "core/ops/rounded_case.h"

/* The largest errors seen on the CPU and on an emulated GPU: 0.0032 for values, 0.0104 for gradients. */
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
	{ "widths that no piece divides", 21, 30, 26 },
	{ "many blocks", 600, 72, 136 },
	{ "too many results for a small product", 1100, 64, 1024 },
	{ "few outputs of many rows", 3104, 128, 12 },
	{ 0 },
};

/* Both layouts of W, with and without bias, with gelu; x has three readers, so that its gradient is added up. */
static void build_maps(struct side *x, const void *setting)
{
	const struct setting *s = setting;
	struct tensor *in = activation(x, "kept x", case_param(x->g, "x", s->rows, s->in));

	graph_seeded_output(x->g, "y",
			    op_linear(x->g, "y", in, case_param(x->g, "w", s->in, s->out),
				      case_param(x->g, "b", s->out)));
	graph_seeded_output(x->g, "z",
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
			    op_linear_gelu_linear(x->g, "y", in, case_param(x->g, "w", s->in, s->out),
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

static void check_precision(enum precision precision)
{
	void (*const build[])(struct side *x, const void *setting) = { build_maps, build_feed_forward,
								       build_heads };
	int failed = 0;

	for (const struct setting *s = settings; s->name; s++)
		for (size_t i = 0; i < sizeof(build) / sizeof(*build); i++)
			failed += !check_rounded(&(struct rounded_case){ s->name, s, build[i], bounds },
						 precision);
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
	if (!backend_stores_for_tests())
		skip();
	check_precision(BFLOAT16_STORED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(close_to_double),
		cmocka_unit_test(close_to_double_stored),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
