/*
 * Attention with products in bfloat16 against double on the CPU: values, and the gradients of all
 * inputs, at sizes that a training run has.  Two runs give the same bits.  Where a device can keep
 * activations in bfloat16, the same with inputs and values that it keeps so.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/open.h"
#include "core/engine/program.h"
#include "core/ops/op_case.h"
#include "core/util/test.h"

#define SEED 7

/*
 * Errors, root of the sum of squares against that of the exact numbers.  The largest seen on the
 * CPU: 0.0031 for values, 0.0048 for gradients.  A gradient that is one number, the band's, is a
 * sum of thousands of terms of both signs: its error is told as it is, 0.13 at most.
 */
#define VALUE_ERROR 0.005
#define GRADIENT_ERROR 0.008
#define SCALAR_ERROR 0.3

struct setting {
	const char *name;
	int64_t B, T, H, K, D, key_heads, value_heads;
	bool key_bias, learned_band;
	struct attention_attr attr;
	double common; /* added to all keys and values */
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
	{ "alibi", 1, 200, 3, 64, 64, 3, 3, false, false,
	  .attr = { .scale = 0.125, .alibi = true, .band_window = -1 } },
	{ "dropout", 2, 131, 2, 64, 64, 2, 2, false, false,
	  .attr = { .scale = 0.125, .band_window = -1, .dropout = 0.2 } },
	{ "band", 2, 200, 2, 64, 64, 2, 2, false, false,
	  .attr = { .scale = 0.125, .band_window = 40, .band = 0.7 } },
	{ "band of one key for all heads", 1, 270, 3, 128, 64, 1, 3, false, true,
	  .attr = { .scale = 0.0884, .band_window = 64 } },
	{ "band wider than the sequence", 1, 100, 2, 128, 128, 2, 1, true, true,
	  .attr = { .scale = 0.0884, .alibi = true, .band_window = 1000 } },
	{ "wider than a GPU's tiles", 1, 70, 2, 150, 140, 1, 2, true, true,
	  .attr = { .scale = 0.08, .band_window = 20, .dropout = 0.1 } },
	{ 0 },
};

struct side {
	const struct backend *backend;
	struct params *params;
	struct graph *g;
	struct program *p;
	struct attention_outputs out;
};

/* An activation, which may be kept in another type than a parameter. */
static struct tensor *activation(struct graph *g, const char *name, struct tensor *param)
{
	return op_scale(g, name, param, 1, NULL);
}

static struct tensor *common_part(struct graph *g, const char *name, const struct tensor *like,
				  double value)
{
	const struct param_init init = { .kind = INIT_CONSTANT, .value = value };

	return graph_param(g, name, &init, 4, like->dim);
}

static struct side build(const struct setting *s, const struct backend *backend, enum dtype type)
{
	struct side x = { .backend = backend };
	struct attention_inputs in = { 0 };
	struct error err;

	must(params_create(&x.params, type, &err), &err);
	must(graph_create(&x.g, x.params, true, &err), &err);
	in.q = case_param(x.g, "q", s->B, s->T, s->H, s->K);
	in.k = case_param(x.g, "k", s->B, s->T, s->key_heads, s->K);
	in.v = case_param(x.g, "v", s->B, s->T, s->value_heads, s->D);
	if (s->common != 0) {
		in.k = op_add(x.g, "shifted k", in.k,
			      common_part(x.g, "common k", in.k, s->common));
		in.v = op_add(x.g, "shifted v", in.v,
			      common_part(x.g, "common v", in.v, s->common));
	}
	if (backend->precision == BFLOAT16_STORED) {
		in.q = activation(x.g, "kept q", in.q);
		in.k = activation(x.g, "kept k", in.k);
		in.v = activation(x.g, "kept v", in.v);
	}
	if (s->key_bias)
		in.key_bias = case_param(x.g, "bias", s->B, s->T, s->key_heads);
	if (s->learned_band)
		in.band = case_param(x.g, "band", 1);
	x.out = op_attention(x.g, "attention", &s->attr, &in);
	graph_seeded_output(x.g, "o", x.out.o);
	must(graph_finish(x.g, &err), &err);
	must(params_allocate(x.params, backend, true, &err), &err);
	must(params_initialise(x.params, SEED, &err), &err);
	return x;
}

/* After the parameters have their values. */
static void run(struct side *x)
{
	const struct program_options options = { .train = true, .check_nan = true };
	const struct run once = { .seed = SEED, .iteration = 3 };
	const int64_t n = tensor_count(x->out.o);
	double *seed = malloc((size_t)n * sizeof(*seed));
	float *narrow = malloc((size_t)n * sizeof(*narrow));
	struct error err;

	for (int64_t i = 0; i < n; i++) {
		narrow[i] = (float)rng_normal(rng_key(SEED, "seed"), (uint64_t)i);
		seed[i] = (double)narrow[i];
	}
	if (!x->p)
		must(program_create(&x->p, x->g, x->backend, &options, &err), &err);
	program_upload_seed(x->p, x->out.o, x->out.o->type == F64 ? (void *)seed : narrow);
	must(program_run(x->p, &once, &err), &err);
	free(seed);
	free(narrow);
}

static void destroy(struct side *x)
{
	program_destroy(x->p);
	graph_destroy(x->g);
	params_destroy(x->params);
}

/* The same parameters, as floats hold them. */
static void copy_parameters(struct side *exact, struct side *rounded)
{
	struct error err;

	for (int i = 0; i < rounded->params->n; i++) {
		double *values = malloc((size_t)rounded->params->list[i].count * sizeof(*values));

		must(param_get(rounded->params, i, false, values, &err), &err);
		must(param_set(exact->params, i, values, &err), &err);
		free(values);
	}
}

static double *values_of(const struct side *x, const struct tensor *t)
{
	const int64_t n = tensor_count(t);
	double *values = malloc((size_t)n * sizeof(*values));
	float *narrow = malloc((size_t)n * sizeof(*narrow));

	program_download(x->p, t, t->type == F64 ? (void *)values : narrow);
	for (int64_t i = 0; i < n && t->type != F64; i++)
		values[i] = (double)narrow[i];
	free(narrow);
	return values;
}

static double *gradient_of(const struct side *x, int i)
{
	double *values = malloc((size_t)x->params->list[i].count * sizeof(*values));
	struct error err;

	must(param_get(x->params, i, true, values, &err), &err);
	return values;
}

/* Frees both; says where the largest difference is. */
static bool is_close(const struct setting *s, const char *name, double *x, double *exact, int64_t n,
		     double bound)
{
	double difference = 0, size = 0, most = 0, error;
	int64_t at = 0;

	for (int64_t i = 0; i < n; i++) {
		const double d = fabs(x[i] - exact[i]);

		difference += d * d;
		size += exact[i] * exact[i];
		if (!(d <= most)) {
			most = d;
			at = i;
		}
	}
	error = sqrt(n == 1 ? difference : difference / size);
	if (!(error <= bound))
		print_error("%s: the error of %s is %.4g, more than %g; [%lld] is %.6g, not %.6g\n",
			    s->name, name, error, bound, (long long)at, x[at], exact[at]);
	else if (getenv("KABLATE_TEST_TELL"))
		printf("%s: %s %.4g\n", s->name, name, error);
	free(x);
	free(exact);
	return error <= bound;
}

static bool compare(const struct setting *s, struct side *x, struct side *exact)
{
	bool close = is_close(s, "o", values_of(x, x->out.o), values_of(exact, exact->out.o),
			      tensor_count(x->out.o), VALUE_ERROR);

	close &= is_close(s, "lse", values_of(x, x->out.lse), values_of(exact, exact->out.lse),
			  tensor_count(x->out.lse), VALUE_ERROR);
	for (int i = 0; i < x->params->n; i++)
		close &= is_close(s, x->params->list[i].name, gradient_of(x, i),
				  gradient_of(exact, i), x->params->list[i].count,
				  x->params->list[i].count == 1 ? SCALAR_ERROR : GRADIENT_ERROR);
	return close;
}

/* All gradients and o of the last run, one after the other; the caller frees them. */
static double *all_numbers(const struct side *x, size_t *bytes)
{
	double *all = values_of(x, x->out.o);

	*bytes = (size_t)tensor_count(x->out.o) * sizeof(*all);
	for (int i = 0; i < x->params->n; i++) {
		double *more = gradient_of(x, i);
		const size_t size = (size_t)x->params->list[i].count * sizeof(*more);

		all = realloc(all, *bytes + size);
		memcpy((char *)all + *bytes, more, size);
		*bytes += size;
		free(more);
	}
	return all;
}

static bool repeats(const struct setting *s, struct side *x)
{
	size_t bytes;
	double *first = all_numbers(x, &bytes), *second;
	bool same;

	run(x);
	second = all_numbers(x, &bytes);
	same = memcmp(first, second, bytes) == 0;
	if (!same)
		print_error("%s: a second run gave other bits\n", s->name);
	free(first);
	free(second);
	return same;
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
	const struct backend_options cpu = { .name = "cpu", .precision = FLOAT64, .threads = 2 };
	struct backend plain;
	struct error err;
	int failed = 0;

	must(backend_open(&plain, &cpu, &err), &err);
	for (const struct setting *s = list; s->name; s++) {
		struct side x = build(s, &rounding, F32), exact = build(s, &plain, F64);

		copy_parameters(&exact, &x);
		run(&x);
		run(&exact);
		failed += !compare(s, &x, &exact);
		failed += !repeats(s, &x);
		destroy(&x);
		destroy(&exact);
	}
	assert_int_equal(failed, 0);
}

static void close_to_double(void **state)
{
	(void)state;
	check_precision(settings, BFLOAT16);
}

static void close_to_double_stored(void **state)
{
	(void)state;
	if (!backend_stores_for_tests())
		skip();
	check_precision(settings, BFLOAT16_STORED);
}

static void common_parts_cancel(void **state)
{
	(void)state;
	if (!backend_stores_for_tests())
		skip();
	check_precision(shifted, BFLOAT16);
	check_precision(shifted, BFLOAT16_STORED);
}

/* An argument names the tests that run: "*_stored". */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(close_to_double),
		cmocka_unit_test(close_to_double_stored),
		cmocka_unit_test(common_parts_cancel),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
