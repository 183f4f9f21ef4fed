#include "tools/bench/measure.h"

#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "core/backend/cpu/blas.h"
#include "tools/bench/times.h"

/* --------------------------------------------------------- one op, one pass */

/* The bare products of a linear layer at the same shape, on numbers of their own. */
static void run_products(const struct machine *m, const struct node *n, enum pass pass)
{
	const struct linear_attr *attr = n->attr;
	const int64_t in = tensor_dim(n->in[0], -1), out = tensor_dim(n->out[0], -1);
	const int64_t rows = tensor_count(n->in[0]) / in, pitch = attr->transposed ? in : out;
	const float *x = m->b, *y = m->b + rows * in, *w = m->c;

	if (pass == PASS_FORWARD) {
		blas_gemm_f32(false, attr->transposed, rows, out, in, 1, x, in, w, pitch, 0, m->a,
			      out);
		return;
	}
	blas_gemm_f32(false, !attr->transposed, rows, in, out, 1, y, out, w, pitch, 0, m->a, in);
	if (attr->transposed)
		blas_gemm_f32(true, false, out, in, rows, 1, y, out, x, in, 0, m->a, in);
	else
		blas_gemm_f32(true, false, in, out, rows, 1, x, in, y, out, 0, m->a, out);
}

static void add_cost(const struct node *n, struct result *r)
{
	struct op_cost cost = { 0 };

	n->op->cost(n, &cost);
	if (r->pass != PASS_BACKWARD) {
		r->flops += cost.forward_flops;
		r->bytes += cost.forward_bytes;
	}
	if (r->pass == PASS_BACKWARD || r->pass == PASS_LOSS) {
		r->flops += cost.backward_flops;
		r->bytes += cost.backward_bytes;
	}
}

static void measure_step(const struct machine *m, const struct bench *bench, struct program *p,
			 int index, struct results *results)
{
	const struct program_step step = program_step(p, index);
	struct result r = { .bench = bench, .pass = step.pass };
	struct times own = { .n = 0 }, plain = { .n = 0 };
	const double start = omp_get_wtime();

	while (times_want_more(&own, start)) {
		double begin;

		machine_triad(m); /* empties the caches */
		begin = omp_get_wtime();
		program_run_step(p, index);
		times_add(&own, omp_get_wtime() - begin);
		if (bench->op != OP_linear)
			continue;
		machine_triad(m);
		begin = omp_get_wtime();
		run_products(m, step.node, step.pass);
		times_add(&plain, omp_get_wtime() - begin);
	}
	r.median = times_quantile(&own, 0.5);
	r.low = times_quantile(&own, 0.25);
	r.high = times_quantile(&own, 0.75);
	r.plain = plain.n ? times_quantile(&plain, 0.5) : 0;
	add_cost(step.node, &r);
	results->list[results->n++] = r;
}

/* ------------------------------------------------------------------ running */

/* Numbers on the host for any tensor: reals in [-1/2, 1/2), tokens below V. */
static void *host_numbers(const struct tensor *t)
{
	const int64_t n = tensor_count(t);
	const struct rng_key key = rng_key(1, t->name);
	uint32_t *words = malloc((size_t)n * sizeof(*words) + 4 * sizeof(*words));

	for (int64_t i = 0; words && i < n; i += 4)
		rng_block(key, (uint64_t)i, words + i);
	for (int64_t i = 0; words && i < n; i++) {
		const float real = (float)(words[i] >> 8) * 0x1p-24f - 0.5f;

		if (t->type == I32)
			words[i] %= BENCH_VOCAB;
		else
			memcpy(&words[i], &real, sizeof(real));
	}
	return words;
}

static enum status fill_tensor(struct program *p, const struct graph *g, const struct tensor *t,
			       const struct backend *backend, struct error *err)
{
	void *numbers = host_numbers(t);

	if (!numbers)
		return fail_memory(err, t->name, tensor_bytes(t));
	if (t->kind == TENSOR_PARAM)
		backend->upload(backend, param_data(g->params, t->param), numbers, tensor_bytes(t));
	else if (t->kind == TENSOR_INPUT)
		program_upload(p, t, numbers);
	else
		program_upload_seed(p, t, numbers);
	free(numbers);
	return OK;
}

static enum status fill_tensors(struct program *p, const struct graph *g,
				const struct backend *backend, struct error *err)
{
	for (int i = 0; i < g->n_tensors; i++) {
		const struct tensor *t = g->tensors[i];

		if ((t->kind == TENSOR_INPUT || t->kind == TENSOR_PARAM) &&
		    fill_tensor(p, g, t, backend, err) != OK)
			return FAIL;
	}
	for (int i = 0; i < g->n_outputs; i++)
		if (g->outputs[i].seeded &&
		    fill_tensor(p, g, g->outputs[i].tensor, backend, err) != OK)
			return FAIL;
	return OK;
}

static enum status run_graph(const struct machine *m, const struct bench *bench,
			     const struct graph *g, const struct backend *backend,
			     struct results *results, struct error *err)
{
	const struct graph_output *output = &g->outputs[0];
	/* nothing is remade: an op has the two passes that are measured */
	const struct program_options options = { .train = output->seeded || output->is_loss,
						 .no_recompute = true };
	const struct run run = { .seed = 1, .iteration = 1 };
	struct program *p;
	enum status status = FAIL;

	if (program_create(&p, g, backend, &options, err) != OK)
		return FAIL;
	if (fill_tensors(p, g, backend, err) != OK || program_run(p, &run, err) != OK)
		goto destroy_program;
	for (int i = 0; i < program_step_count(p); i++) {
		const struct node *node = program_step(p, i).node;

		if (node && node->id == bench->op)
			measure_step(m, bench, p, i, results);
	}
	status = OK;
destroy_program:
	program_destroy(p);
	return status;
}

enum status measure_bench(const struct machine *m, const struct bench *bench,
			  const struct backend *backend, struct results *results, struct error *err)
{
	const bool continues = bench->op == OP_cache || bench->op == OP_recent_tokens;
	struct params *params = NULL, *state = NULL;
	struct graph *g = NULL;
	enum status status = FAIL;

	*results = (struct results){ .n = 0 };
	if (params_create(&params, F32, err) != OK || params_create(&state, F32, err) != OK ||
	    graph_create(&g, params, !continues, err) != OK)
		goto free_graph;
	if (continues)
		graph_continue(g, state, BENCH_TOKENS);
	bench->build(g, BENCH_TOKENS);
	if (graph_finish(g, err) == OK && params_allocate(params, backend, true, err) == OK &&
	    params_allocate(state, backend, false, err) == OK)
		status = run_graph(m, bench, g, backend, results, err);
free_graph:
	graph_destroy(g);
	params_destroy(state);
	params_destroy(params);
	return status;
}

/* ------------------------------------------------------------------ ceilings */

double result_bound(const struct result *r, const struct machine *m, bool *by_flops)
{
	double compute = r->flops / m->flops, memory = r->bytes / m->bytes;

	*by_flops = compute > memory;
	return compute > memory ? compute : memory;
}
