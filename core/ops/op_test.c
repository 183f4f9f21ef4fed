/*
 * Every op in op_table, every case: gradients agree with central differences
 * in double; float and bfloat16 agree with double on the CPU, and so does double
 * on another device; the planner and recomputation change no bit; gradients add up over
 * micro-batches.  On a device that can keep activations in bfloat16, inputs and
 * outputs of the ops are kept so, too; and the residual stream where an op knows of it.
 *
 * KABLATE_TEST_ENTRIES=1 checks one entry of each gradient instead of many, and the planner and
 * recomputation together: for emulators and for checkers of memory and of races, which learn
 * nothing from the same kernels again.
 */
#include "core/backend/open.h"
#include "core/util/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/ops/op_case.h"
#include "core/engine/program.h"

#define SEED 7
#define STEP 1e-5	    /* of the central difference */
#define GRADIENT_ERROR 1e-6 /* of the largest entry of the tensor's gradient, at least of 1e-2 */
#define CHECKED_ENTRIES 60  /* per parameter; larger ones are sampled evenly, with both ends */
/* Of a device in double against the CPU. */
#define DOUBLE_ERROR 1e-10
/* Largest float error over all cases was 4e-5 of the tensor's largest entry. */
#define FLOAT_ERROR 3e-4
/* One rounding is 2e-3 of each factor; the largest error was 1.4e-2. */
#define BFLOAT_ERROR 3e-2
/* The gradient of an activation with several readers is rounded with each of them. */
#define STORED_ERROR 6e-2

struct fixture {
	const struct op_case *op_case;
	struct backend backend;
	struct params *params;
	struct graph *graph;
	double **seeds; /* of the outputs, or NULL */
};

static double *make_seed(const struct graph_output *o)
{
	const struct rng_key key = rng_key(SEED + 1, o->tensor->name);
	double *values = malloc((size_t)tensor_count(o->tensor) * sizeof(*values));

	for (int64_t i = 0; i < tensor_count(o->tensor); i++)
		values[i] = rng_normal(key, (uint64_t)i);
	return values;
}

static void move_to_front(struct graph *g, int index)
{
	struct node *moved = g->nodes[index];

	memmove(&g->nodes[1], &g->nodes[0], (size_t)index * sizeof(*g->nodes));
	g->nodes[0] = moved;
	for (int i = 0; i <= index; i++)
		g->nodes[i]->index = i;
}

/* A weight stays a parameter: kernels read a copy of it. */
static bool takes_activation(const struct fixture *f, const struct node *n, int i)
{
	const struct kernels *k = f->backend.kernels(f->graph->type)[n->id];

	return n->in[i] && (storage_narrow_in(n->op, f->backend.precision) & BIT(i)) &&
	       !(k->copy_bytes && i == 1);
}

static bool reads_as_activation(const struct fixture *f, const struct tensor *root)
{
	for (int i = 0; i < f->graph->n_nodes; i++)
		for (int j = 0; j < f->graph->nodes[i]->n_in; j++)
			if (takes_activation(f, f->graph->nodes[i], j) &&
			    tensor_root(f->graph->nodes[i]->in[j]) == root)
				return true;
	return false;
}

/* Only activations may be narrow: nodes read 1 * parameter in place of the parameter. */
static void read_through_activations(struct fixture *f)
{
	struct graph *g = f->graph;
	const int n_tensors = g->n_tensors, n_nodes = g->n_nodes;

	for (int t = 0; t < n_tensors; t++) {
		struct tensor *root = g->tensors[t], *copy;
		char name[80];

		if (root->kind == TENSOR_VIEW || root->kind == TENSOR_ACTIVATION ||
		    root->type == I32 || !reads_as_activation(f, root))
			continue;
		snprintf(name, sizeof(name), "kept %s", root->name);
		copy = op_scale(g, name, root, 1);
		for (int i = 0; i < n_tensors; i++)
			if (g->tensors[i]->base == root)
				g->tensors[i]->base = copy;
		move_to_front(g, g->n_nodes - 1);
		for (int i = g->n_nodes - n_nodes; i < g->n_nodes; i++)
			for (int j = 0; j < g->nodes[i]->n_in; j++)
				if (g->nodes[i]->in[j] == root &&
				    takes_activation(f, g->nodes[i], j))
					g->nodes[i]->in[j] = copy;
	}
}

static bool has_narrow(const struct graph *g)
{
	for (int i = 0; i < g->n_tensors; i++)
		if (g->tensors[i]->type == BF16)
			return true;
	return false;
}

static void build_on(struct backend backend, struct fixture *f, const struct op_case *op_case,
		     enum precision precision)
{
	struct error err;

	*f = (struct fixture){ .op_case = op_case, .backend = backend };
	must(params_create(&f->params, precision_type(precision), &err), &err);
	must(graph_create(&f->graph, f->params, true, &err), &err);
	op_case->build(f->graph);
	if (precision_stores(precision))
		read_through_activations(f);
	must(graph_finish(f->graph, &err), &err);
	must(params_allocate(f->params, &f->backend, true, &err), &err);
	must(params_initialise(f->params, SEED, &err), &err);
	f->seeds = calloc((size_t)f->graph->n_outputs, sizeof(*f->seeds));
	for (int i = 0; i < f->graph->n_outputs; i++)
		if (f->graph->outputs[i].seeded)
			f->seeds[i] = make_seed(&f->graph->outputs[i]);
}

static void build(struct fixture *f, const struct op_case *op_case, enum precision precision)
{
	build_on(backend_for_tests(precision, 2), f, op_case, precision);
}

static void build_exact(struct fixture *f, const struct op_case *op_case)
{
	const struct backend_options options = { .name = "cpu",
						 .precision = FLOAT64,
						 .threads = 2 };
	struct backend backend;
	struct error err;

	must(backend_open(&backend, &options, &err), &err);
	build_on(backend, f, op_case, FLOAT64);
}

static void destroy(struct fixture *f)
{
	for (int i = 0; i < f->graph->n_outputs; i++)
		free(f->seeds[i]);
	free(f->seeds);
	graph_destroy(f->graph);
	params_destroy(f->params);
}

/* Numbers of any tensor on the host, as double. */
static void upload(struct program *p, const struct tensor *t, const double *values, bool seed)
{
	const int64_t n = tensor_count(t);
	float *narrow = malloc((size_t)n * sizeof(*narrow));

	for (int64_t i = 0; i < n; i++)
		narrow[i] = (float)values[i];
	if (seed)
		program_upload_seed(p, t, t->type == F64 ? (const void *)values : narrow);
	else
		program_upload(p, t, t->type == F64 ? (const void *)values : narrow);
	free(narrow);
}

static double *download(const struct program *p, const struct tensor *t)
{
	const int64_t n = tensor_count(t);
	double *values = calloc((size_t)n, sizeof(*values));

	program_download(p, t, values);
	for (int64_t i = n - 1; (t->type == F32 || t->type == BF16) && i >= 0; i--) {
		float narrow;

		memcpy(&narrow, (char *)values + i * 4, sizeof(narrow));
		values[i] = (double)narrow;
	}
	return values;
}

static void fill_input(const struct fixture *f, struct program *p, const struct tensor *t)
{
	const struct rng_key key = rng_key(SEED, t->name);
	const int64_t n = tensor_count(t);
	double *reals = malloc((size_t)n * sizeof(*reals));
	int32_t *ints = malloc((size_t)n * sizeof(*ints));

	for (int64_t i = 0; i < n; i++) {
		reals[i] = rng_uniform(key, (uint64_t)i);
		if (t->type == I32)
			ints[i] = (int32_t)rng_below(key, (uint64_t)i,
						     (uint64_t)f->op_case->int_limit);
		if (f->op_case->int_ignore && i % 3 == 1)
			ints[i] = -1;
	}
	if (t->type == I32)
		program_upload(p, t, ints);
	else
		upload(p, t, reals, false);
	free(reals);
	free(ints);
}

static struct program *prepare(const struct fixture *f, const struct program_options *options)
{
	struct program *p;
	struct error err;

	must(program_create(&p, f->graph, &f->backend, options, &err), &err);
	for (int i = 0; i < f->graph->n_tensors; i++)
		if (f->graph->tensors[i]->kind == TENSOR_INPUT)
			fill_input(f, p, f->graph->tensors[i]);
	for (int i = 0; options->train && i < f->graph->n_outputs; i++)
		if (f->graph->outputs[i].seeded)
			upload(p, f->graph->outputs[i].tensor, f->seeds[i], true);
	return p;
}

/* A sample searches for NaN in check_switches() only: on an emulated GPU that takes longer than an
 * op. */
static struct program *prepare_run(const struct fixture *f, bool train)
{
	const struct program_options options = { .train = train, .check_nan = !test_is_sampled() };

	return prepare(f, &options);
}

static void run(struct program *p, uint64_t micro)
{
	const struct run r = { .seed = SEED, .iteration = 3, .micro = micro };
	struct error err;

	must(program_run(p, &r, &err), &err);
}

/* sum of seed * output over seeded outputs, and of weight * loss */
static double total(const struct fixture *f, struct program *p)
{
	double sum = 0;

	run(p, 0);
	for (int i = 0; i < f->graph->n_outputs; i++) {
		const struct graph_output *o = &f->graph->outputs[i];
		double *values = download(p, o->tensor);

		if (o->is_loss)
			sum += o->loss_weight * values[0];
		for (int64_t j = 0; o->seeded && j < tensor_count(o->tensor); j++)
			sum += f->seeds[i][j] * values[j];
		free(values);
	}
	return sum;
}

static double *gradient(const struct fixture *f, int index)
{
	double *values = malloc((size_t)f->params->list[index].count * sizeof(*values));
	struct error err;

	must(param_get(f->params, index, true, values, &err), &err);
	return values;
}

static double largest(const double *values, int64_t n)
{
	double most = 0;

	for (int64_t i = 0; i < n; i++)
		most = fmax(most, fabs(values[i]));
	return most;
}

/* ------------------------------------------------------------------- checks */

static double weight(const struct fixture *f, int index, int64_t i)
{
	double value;

	f->backend.download(&f->backend, &value, (double *)param_data(f->params, index) + i,
			    sizeof(value));
	return value;
}

static void set_weight(const struct fixture *f, int index, int64_t i, double value)
{
	f->backend.upload(&f->backend, (double *)param_data(f->params, index) + i, &value,
			  sizeof(value));
}

static void check_gradient_of(struct fixture *f, struct program *p, int index, const char *what)
{
	const struct param *param = &f->params->list[index];
	double *analytic = gradient(f, index);
	const double scale = fmax(largest(analytic, param->count), 1e-2);
	const int64_t n = test_entries(CHECKED_ENTRIES);
	const int64_t checked = n < param->count ? n : param->count;

	for (int64_t c = 0; c < checked; c++) {
		const int64_t i = checked > 1 ? c * (param->count - 1) / (checked - 1) : 0;
		const double saved = weight(f, index, i);
		double up, down, numeric;

		set_weight(f, index, i, saved + STEP);
		up = total(f, p);
		set_weight(f, index, i, saved - STEP);
		down = total(f, p);
		set_weight(f, index, i, saved);
		numeric = (up - down) / (2 * STEP);
		if (!(fabs(numeric - analytic[i]) <= GRADIENT_ERROR * scale))
			fail_msg("%s: d %s[%lld] is %.12g, central difference %.12g", what,
				 param->name, (long long)i, analytic[i], numeric);
	}
	free(analytic);
}

static void check_gradient(const struct op_case *c, const char *what)
{
	struct program *trainer, *evaluator;
	struct fixture f;

	build(&f, c, FLOAT64);
	trainer = prepare_run(&f, true);
	evaluator = prepare_run(&f, false);
	run(trainer, 0);
	for (int i = 0; i < f.params->n; i++)
		check_gradient_of(&f, evaluator, i, what);
	program_destroy(trainer);
	program_destroy(evaluator);
	destroy(&f);
}

static void check_close(const double *a, const double *b, int64_t n, enum precision precision,
			const char *what, const char *name)
{
	const double error = precision_stores(precision) ? STORED_ERROR
			     : precision == BFLOAT16	 ? BFLOAT_ERROR
			     : precision == FLOAT64	 ? DOUBLE_ERROR
							 : FLOAT_ERROR;
	/* A gradient that is zero in exact arithmetic is a difference of terms of 1 and more. */
	const double scale = fmax(largest(b, n), precision_rounds(precision) ? 1 : 1e-2);

	for (int64_t i = 0; i < n; i++)
		if (!(fabs(a[i] - b[i]) <= error * scale))
			fail_msg("%s: %s[%lld] is %.9g in %s, %.9g in double", what, name,
				 (long long)i, a[i], precision_names[precision], b[i]);
}

/* Against double on the CPU.  Is any tensor kept in bfloat16? */
static bool check_exact(const struct op_case *c, enum precision precision, const char *what)
{
	struct program *narrow_p, *wide_p;
	bool kept;
	struct fixture narrow, wide;
	struct error err;

	build(&narrow, c, precision);
	build_exact(&wide, c);
	for (int i = 0; i < narrow.params->n; i++) {
		double *values = malloc((size_t)narrow.params->list[i].count * sizeof(*values));

		must(param_get(narrow.params, i, false, values, &err), &err);
		must(param_set(wide.params, i, values, &err), &err);
		free(values);
	}
	narrow_p = prepare_run(&narrow, true);
	wide_p = prepare_run(&wide, true);
	run(narrow_p, 0);
	run(wide_p, 0);
	for (int i = 0; i < narrow.graph->n_outputs; i++) {
		double *a = download(narrow_p, narrow.graph->outputs[i].tensor);
		double *b = download(wide_p, wide.graph->outputs[i].tensor);

		check_close(a, b, tensor_count(wide.graph->outputs[i].tensor), precision, what,
			    wide.graph->outputs[i].name);
		free(a);
		free(b);
	}
	for (int i = 0; i < narrow.params->n; i++) {
		double *a = gradient(&narrow, i), *b = gradient(&wide, i);

		check_close(a, b, wide.params->list[i].count, precision, what,
			    wide.params->list[i].name);
		free(a);
		free(b);
	}
	kept = has_narrow(narrow.graph);
	program_destroy(narrow_p);
	program_destroy(wide_p);
	destroy(&narrow);
	destroy(&wide);
	wide.backend.close(&wide.backend);
	return kept;
}

static void *gradient_bytes(const struct fixture *f, const struct program_options *options)
{
	struct program *p = prepare(f, options);
	const size_t size = (size_t)f->params->total * dtype_size(f->params->type);
	void *copy = malloc(size);

	run(p, 0);
	f->backend.download(&f->backend, copy, f->params->grad, size);
	program_destroy(p);
	return copy;
}

static void check_switches(const struct op_case *c, enum precision precision, const char *what)
{
	static const struct program_options plain = { .train = true }, variants[] = {
		{ .train = true, .no_planner = true, .no_recompute = true, .check_nan = true },
		{ .train = true, .check_nan = true },
		{ .train = true, .no_planner = true },
		{ .train = true, .no_recompute = true },
	};
	const size_t n_variants = test_is_sampled() ? 1 : sizeof(variants) / sizeof(*variants);
	struct fixture f;
	void *expected;

	build(&f, c, precision);
	expected = gradient_bytes(&f, &plain);
	for (size_t i = 0; i < n_variants; i++) {
		void *bytes = gradient_bytes(&f, &variants[i]);

		if (memcmp(bytes, expected, (size_t)f.params->total * 4))
			fail_msg("%s: switches %zu change the gradient", what, i);
		free(bytes);
	}
	free(expected);
	destroy(&f);
}

/* Of all parameters. */
static double **gradients(const struct fixture *f)
{
	double **all = malloc((size_t)f->params->n * sizeof(*all));

	for (int i = 0; i < f->params->n; i++)
		all[i] = gradient(f, i);
	return all;
}

static void free_gradients(const struct fixture *f, double **all)
{
	for (int i = 0; i < f->params->n; i++)
		free(all[i]);
	free(all);
}

static void check_sum(const double *both, const double *first, const double *second,
		      const struct param *param, const char *what)
{
	const double allowed = 1e-12 * fmax(1, largest(both, param->count));

	for (int64_t i = 0; i < param->count; i++)
		if (!(fabs(both[i] - first[i] - second[i]) <= allowed))
			fail_msg("%s: d %s does not add up", what, param->name);
}

/* Micro-batch 0 overwrites, micro-batch 1 adds. */
static void check_accumulation(const struct op_case *c, const char *what)
{
	struct fixture f;
	struct program *p;
	double **first, **second, **both;

	build(&f, c, FLOAT64);
	p = prepare_run(&f, true);
	run(p, 0);
	first = gradients(&f);
	run(p, 1);
	both = gradients(&f);
	f.backend.zero(&f.backend, f.params->grad, (size_t)f.params->total * 8);
	run(p, 1);
	second = gradients(&f);
	for (int i = 0; i < f.params->n; i++)
		check_sum(both[i], first[i], second[i], &f.params->list[i], what);
	free_gradients(&f, first);
	free_gradients(&f, second);
	free_gradients(&f, both);
	program_destroy(p);
	destroy(&f);
}

/* Is any tensor kept in bfloat16? */
static bool check_stored(const struct op_case *c, enum precision precision, const char *what)
{
	const bool kept = !c->chooses && check_exact(c, precision, what);

	check_switches(c, precision, what);
	return kept;
}

static void check_op(void **state)
{
	const struct op *op = *state;
	const bool in_stream = op->bf16_residual_in || op->bf16_residual_out;
	bool kept = false, kept_stream = false;
	char what[200];

	assert_non_null(op->cases);
	assert_non_null(op->cost);
	for (const struct op_case *c = op->cases; c->name; c++) {
		snprintf(what, sizeof(what), "%s, %s", op->name, c->name);
		if (op->no_gradient)
			continue;
		check_gradient(c, what);
		if (strcmp(backend_name_for_tests(), "cpu") != 0)
			check_exact(c, FLOAT64, what);
		check_exact(c, FLOAT32, what);
		if (!c->chooses)
			check_exact(c, BFLOAT16, what);
		check_switches(c, FLOAT32, what);
		if (!test_is_sampled() || !backend_stores_for_tests())
			check_switches(c, BFLOAT16, what);
		if (backend_stores_for_tests())
			kept |= check_stored(c, BFLOAT16_STORED, what);
		if (backend_stores_for_tests() && in_stream)
			kept_stream |= check_stored(c, BFLOAT16_STREAM, what);
		check_accumulation(c, what);
	}
	/* Else no case would test it. */
	if (backend_stores_for_tests() && !op->no_gradient && (op->bf16_in || op->bf16_out))
		assert_true(kept);
	if (backend_stores_for_tests() && in_stream)
		assert_true(kept_stream);
}

/* An argument names the ops that are tested: "w2_*". */
int main(int argc, char **argv)
{
	struct CMUnitTest tests[OP_COUNT];
	size_t n = 0;

	for (int i = 0; i < OP_COUNT; i++)
		if (op_table[i])
			tests[n++] = (struct CMUnitTest){
				.name = op_table[i]->name,
				.test_func = check_op,
				.initial_state = (void *)(uintptr_t)op_table[i],
			};
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return _cmocka_run_group_tests("ops", tests, n, NULL, NULL);
}
