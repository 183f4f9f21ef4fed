/*
 * rounded_case - a graph with products in bfloat16 against the same in double on the CPU: its
 * outputs, and the gradients of all parameters.  Two runs give the same bits.
 *
 * A test includes this once, and builds a graph that has parameters and seeded outputs.
 */
#ifndef CORE_OPS_ROUNDED_CASE_H
#define CORE_OPS_ROUNDED_CASE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/open.h"
#include "core/engine/program.h"
#include "core/ops/op_case.h"
#include "core/util/test.h"

#define SEED 7

struct side {
	const struct backend *backend;
	struct params *params;
	struct graph *g;
	struct program *p;
	const struct tensor *told; /* compared beside the outputs, or NULL */
};

/* Errors, root of the sum of squares against that of the exact numbers. */
struct bounds {
	double value, gradient, scalar; /* scalar: of a gradient that is one number, as it is */
};

struct rounded_case {
	const char *name;
	const void *setting;
	void (*build)(struct side *x, const void *setting);
	struct bounds bounds;
};

/* An activation, which may be kept in another type than a parameter. */
static struct tensor *activation(const struct side *x, const char *name, struct tensor *param)
{
	return x->backend->precision == BFLOAT16_STORED ? op_scale(x->g, name, param, 1) : param;
}

static struct side build_side(const struct rounded_case *c, const struct backend *backend,
			      enum dtype type)
{
	struct side x = { .backend = backend };
	struct error err;

	must(params_create(&x.params, type, &err), &err);
	must(graph_create(&x.g, x.params, true, &err), &err);
	c->build(&x, c->setting);
	must(graph_finish(x.g, &err), &err);
	must(params_allocate(x.params, backend, true, &err), &err);
	must(params_initialise(x.params, SEED, &err), &err);
	return x;
}

static void upload_seed(struct side *x, const struct graph_output *output)
{
	const int64_t n = tensor_count(output->tensor);
	double *seed = malloc((size_t)n * sizeof(*seed));
	float *narrow = malloc((size_t)n * sizeof(*narrow));

	for (int64_t i = 0; i < n; i++) {
		narrow[i] = (float)rng_normal(rng_key(SEED, output->name), (uint64_t)i);
		seed[i] = (double)narrow[i];
	}
	program_upload_seed(x->p, output->tensor,
			    output->tensor->type == F64 ? (void *)seed : narrow);
	free(seed);
	free(narrow);
}

/* After the parameters have their values. */
static void run(struct side *x)
{
	const struct program_options options = { .train = true, .check_nan = true };
	const struct run once = { .seed = SEED, .iteration = 3 };
	struct error err;

	if (!x->p)
		must(program_create(&x->p, x->g, x->backend, &options, &err), &err);
	for (int i = 0; i < x->g->n_outputs; i++)
		upload_seed(x, &x->g->outputs[i]);
	must(program_run(x->p, &once, &err), &err);
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
static bool is_close(const struct rounded_case *c, const char *name, double *x, double *exact,
		     int64_t n, double bound)
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
			    c->name, name, error, bound, (long long)at, x[at], exact[at]);
	else if (getenv("KABLATE_TEST_TELL"))
		printf("%s: %s %.4g\n", c->name, name, error);
	free(x);
	free(exact);
	return error <= bound;
}

static bool is_close_tensor(const struct rounded_case *c, const char *name, const struct side *x,
			    const struct tensor *t, const struct side *exact,
			    const struct tensor *u)
{
	return is_close(c, name, values_of(x, t), values_of(exact, u), tensor_count(t),
			c->bounds.value);
}

static bool compare(const struct rounded_case *c, const struct side *x, const struct side *exact)
{
	bool close = true;

	for (int i = 0; i < x->g->n_outputs; i++)
		close &= is_close_tensor(c, x->g->outputs[i].name, x, x->g->outputs[i].tensor,
					 exact, exact->g->outputs[i].tensor);
	if (x->told)
		close &= is_close_tensor(c, "told", x, x->told, exact, exact->told);
	for (int i = 0; i < x->params->n; i++)
		close &= is_close(c, x->params->list[i].name, gradient_of(x, i),
				  gradient_of(exact, i), x->params->list[i].count,
				  x->params->list[i].count == 1 ? c->bounds.scalar
								: c->bounds.gradient);
	return close;
}

/* All outputs and gradients of the last run, one after the other; the caller frees them. */
static double *all_numbers(const struct side *x, size_t *bytes)
{
	double *all = NULL;

	*bytes = 0;
	for (int i = 0; i < x->g->n_outputs + x->params->n; i++) {
		const bool output = i < x->g->n_outputs;
		const int number = output ? i : i - x->g->n_outputs;
		double *more =
			output ? values_of(x, x->g->outputs[i].tensor) : gradient_of(x, number);
		const int64_t n = output ? tensor_count(x->g->outputs[i].tensor)
					 : x->params->list[number].count;

		all = realloc(all, *bytes + (size_t)n * sizeof(*more));
		memcpy((char *)all + *bytes, more, (size_t)n * sizeof(*more));
		*bytes += (size_t)n * sizeof(*more);
		free(more);
	}
	return all;
}

static bool repeats(const struct rounded_case *c, struct side *x)
{
	size_t bytes;
	double *first = all_numbers(x, &bytes), *second;
	bool same;

	run(x);
	second = all_numbers(x, &bytes);
	same = memcmp(first, second, bytes) == 0;
	if (!same)
		print_error("%s: a second run gave other bits\n", c->name);
	free(first);
	free(second);
	return same;
}

/* Returns whether all is well. */
static bool check_rounded(const struct rounded_case *c, const struct backend *rounding)
{
	const struct backend_options cpu = { .name = "cpu", .precision = FLOAT64, .threads = 2 };
	struct side x, exact;
	struct backend plain;
	struct error err;
	bool close, same;

	must(backend_open(&plain, &cpu, &err), &err);
	x = build_side(c, rounding, F32);
	exact = build_side(c, &plain, F64);
	copy_parameters(&exact, &x);
	run(&x);
	run(&exact);
	close = compare(c, &x, &exact);
	same = repeats(c, &x);
	destroy(&x);
	destroy(&exact);
	return close && same;
}

#endif
