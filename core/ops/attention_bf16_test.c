/*
 * Attention with products in bfloat16, and in float32, against double on the CPU: values, and the
 * gradients of all inputs, at sizes that a training run has.  Two runs give the same bits.  Where a
 * device can keep activations in bfloat16, the same with inputs and values that it keeps so.
 */
#include "core/ops/rounded_case.h"

/*
 * The largest errors seen on the CPU: 0.0031 for values, 0.0048 for gradients.  A gradient that is
 * one number, the band's, is a sum of thousands of terms of both signs: 0.13 at most.  In float32,
 * on an emulated GPU: 3.4e-7, 6.3e-7 and 2.0e-5.
 */
static const struct bounds bounds = { .value = 0.005, .gradient = 0.008, .scalar = 0.3 };
static const struct bounds float_bounds = { .value = 2e-6, .gradient = 2e-6, .scalar = 1e-4 };

struct setting {
	const char *name;
	int64_t B, T, H, K, D, key_heads, value_heads;
	bool key_bias, learned_band;
	struct attention_attr attr;
	double common; /* added to all keys and values */
	bool distance_bias;
};

#define PLAIN(width) .attr = { .scale = width, .band_window = -1 }

static const struct setting settings[] = {
	{ "dot", 2, 256, 3, 64, 64, 3, 3, false, false, PLAIN(0.125) },
	{ "dot, a block and one", 1, 129, 2, 64, 64, 2, 2, false, false, PLAIN(0.125) },
	{ "narrow heads", 3, 67, 2, 20, 12, 2, 2, false, false, PLAIN(0.2) },
	{ "odd widths", 1, 70, 2, 33, 65, 1, 2, true, false, PLAIN(0.2) },
	{ "groups of heads", 2, 130, 4, 64, 64, 2, 2, false, false, PLAIN(0.125) },
	{ "one key for all heads", 2, 200, 4, 128, 64, 1, 4, false, false, PLAIN(0.0884) },
	{ "a bias per key", 2, 200, 2, 128, 64, 2, 2, true, false, PLAIN(0.0884) },
	{ "wide values", 1, 150, 2, 128, 128, 1, 1, true, false, PLAIN(0.0884) },
	{ "distance bias", 2, 200, 3, 64, 64, 3, 3, false, false, PLAIN(0.125),
	  .distance_bias = true },
	{ "distance bias, wide keys", 1, 270, 2, 128, 64, 1, 2, true, false, PLAIN(0.0884),
	  .distance_bias = true },
	{ "window", 2, 300, 2, 64, 64, 2, 2, false, false,
	  .attr = { .scale = 0.125, .band_window = -1, .window = 70 } },
	{ "window with sinks", 1, 400, 2, 128, 64, 1, 2, true, false,
	  .attr = { .scale = 0.0884, .band_window = -1, .window = 40, .sinks = 4 } },
	{ "softcap", 2, 200, 2, 64, 64, 2, 2, false, false,
	  .attr = { .scale = 0.125, .band_window = -1, .softcap = 2 } },
	{ "window, softcap and distances of wide values", 1, 300, 2, 128, 128, 1, 1, false, false,
	  .attr = { .scale = 0.0884, .band_window = -1, .window = 50, .sinks = 1, .softcap = 3 },
	  .distance_bias = true },
	{ "dropout", 2, 131, 2, 64, 64, 2, 2, false, false,
	  .attr = { .scale = 0.125, .band_window = -1, .dropout = 0.2 } },
	{ "band", 2, 200, 2, 64, 64, 2, 2, false, false,
	  .attr = { .scale = 0.125, .band_window = 40, .band = 0.7 } },
	{ "band of one key for all heads", 1, 270, 3, 128, 64, 1, 3, false, true,
	  .attr = { .scale = 0.0884, .band_window = 64 } },
	{ "band wider than the sequence", 1, 100, 2, 128, 128, 2, 1, true, true,
	  .attr = { .scale = 0.0884, .band_window = 1000 }, .distance_bias = true },
	{ "wider than a GPU's tiles", 1, 70, 2, 150, 140, 1, 2, true, true,
	  .attr = { .scale = 0.08, .band_window = 20, .dropout = 0.1 } },
	{ "all terms, wider than a GPU's tiles", 1, 90, 2, 150, 140, 1, 2, true, false,
	  .attr = { .scale = 0.08, .band_window = -1, .window = 30, .sinks = 2, .softcap = 3 },
	  .distance_bias = true },
	{ 0 },
};

static struct tensor *common_part(struct graph *g, const char *name, const struct tensor *like,
				  double value)
{
	const struct param_init init = { .kind = INIT_CONSTANT, .value = value };

	return graph_param(g, name, &init, 4, like->dim);
}

static void build(struct side *x, const void *setting)
{
	const struct setting *s = setting;
	struct attention_inputs in = { 0 };
	struct attention_outputs out;

	in.q = case_param(x->g, "q", s->B, s->T, s->H, s->K);
	in.k = case_param(x->g, "k", s->B, s->T, s->key_heads, s->K);
	in.v = case_param(x->g, "v", s->B, s->T, s->value_heads, s->D);
	if (s->common != 0) {
		in.k = op_add(x->g, "shifted k", in.k,
			      common_part(x->g, "common k", in.k, s->common));
		in.v = op_add(x->g, "shifted v", in.v,
			      common_part(x->g, "common v", in.v, s->common));
	}
	in.q = activation(x, "kept q", in.q);
	in.k = activation(x, "kept k", in.k);
	in.v = activation(x, "kept v", in.v);
	if (s->key_bias)
		in.key_bias = case_param(x->g, "bias", s->B, s->T, s->key_heads);
	if (s->learned_band)
		in.band = case_param(x->g, "band", 1);
	if (s->distance_bias)
		in.distance_bias = case_param(x->g, "distance", s->H, s->T);
	out = op_attention(x->g, "attention", &s->attr, &in);
	graph_seeded_output(x->g, "o", out.o);
	x->told = out.lse;
}

/*
 * What all values have in common adds the same number to all dP of a query, and must cancel in its
 * dS; what all keys have in common must cancel in its dQ.  The CPU subtracts a sum of dO.o whose dO
 * is not rounded, though products round it: its errors of q are 0.010 and 0.009.
 */
static const struct setting shifted[] = {
	{ "a common part", 2, 100, 2, 64, 64, 2, 2, false, false, PLAIN(0.125), .common = 1 },
	{ "a common part, wider than a GPU's tiles", 1, 70, 2, 150, 140, 1, 2, false, false,
	  PLAIN(0.08), .common = 1 },
	{ 0 },
};

static void check_precision(const struct setting *list, enum precision precision)
{
	const struct backend rounding = backend_for_tests(precision, 2);
	struct backend one_stream = rounding;
	int failed = 0;

	one_stream.streams = 0;
	for (const struct setting *s = list; s->name; s++) {
		const struct rounded_case c = { s->name, s, build,
						precision == FLOAT32 ? float_bounds : bounds };

		failed += !check_rounded(&c, &rounding);
		/* Where there are streams, the gradients of queries are made apart in bfloat16. */
		if (rounding.streams > 0 && precision != FLOAT32)
			failed += !check_rounded(&c, &one_stream);
	}
	assert_int_equal(failed, 0);
}

static void close_to_double_in_float32(void **state)
{
	(void)state;
	check_precision(settings, FLOAT32);
}

static void close_to_double(void **state)
{
	(void)state;
	check_precision(settings, BFLOAT16);
}

static void close_to_double_stored(void **state)
{
	(void)state;
	check_precision(settings, BFLOAT16_STORED);
}

static void common_parts_cancel(void **state)
{
	(void)state;
	check_precision(shifted, BFLOAT16);
	check_precision(shifted, BFLOAT16_STORED);
}

/* An argument names the tests that run: "*_stored". */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(close_to_double_in_float32),
		cmocka_unit_test(close_to_double),
	};
	const struct CMUnitTest stored[] = {
		cmocka_unit_test(close_to_double_stored),
		cmocka_unit_test(common_parts_cancel),
	};
	int failed;

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	if (backend_stores_for_tests())
		failed += cmocka_run_group_tests(stored, NULL, NULL);
	return failed;
}
