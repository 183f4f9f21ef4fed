/*
 * bench_ops - how fast is every kernel, and how fast could it be?
 *
 * Two ceilings are measured first, in the same run and with the same threads,
 * the best of several runs each: the linked BLAS multiplying large squares
 * (GFLOP/s), and the triad a = b + s c on arrays too large for any cache
 * (GB/s).  Then every op runs at the shapes of GPT-2 (124M), each pass by
 * itself and with cold caches.  The least time it could take is the larger of
 * its operations over the first ceiling and its bytes over the second; "of
 * ceiling" is that over the median time.  A linear layer is also compared with
 * the bare products it is made of, measured in turn with it.
 *
 * An op that reads and writes every element once may still be bound by its
 * arithmetic.  "In cache" tells: it is "of ceiling" if every thread kept the
 * best pace of one that works on FEW tokens, which never leave its cache.
 * Where the two agree, a faster memory would change nothing.
 */
#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <omp.h>

#include "core/backend/cpu/bf16.h"
#include "core/backend/cpu/blas.h"
#include "core/op_case.h"
#include "core/program.h"

#define MAX_TIMES 51	   /* measurements of one thing, at most */
#define MIN_TIMES 7	   /* ... and at least */
#define SECONDS 1.0	   /* after which no more are added */
#define SQUARE 2048	   /* side of the matrices of the first ceiling */
#define TRIAD (32LL << 20) /* elements of each array of the second */
#define MAX_THREADS 1024

/* ------------------------------------------------------------------ shapes */

/* Batch, width, heads, head width, hidden width, vocabulary, latent, gate, blocks. */
enum { B = 1, E = 768, H = 12, D = 64, F = 3072, V = 50304, L = 128, G = 64, N = 8 };

#define TOKENS 1024
#define FEW 8 /* of 3072 channels: 96 KiB a tensor */

struct bench {
	enum op_id op;
	const char *label;
	void (*build)(struct graph *g, int64_t T);
	bool streams; /* token by token, whatever their number: measured in cache, too */
};

#define PARAM(name, ...) case_param(g, name, __VA_ARGS__)
#define INDICES case_input(g, "tokens", I32, B, T)

/* A graph of one op, whose gradient comes from outside. */
#define BENCH(function, output)                          \
	static void function(struct graph *g, int64_t T) \
	{                                                \
		graph_seeded_output(g, "out", output);   \
	}

/* A graph of one op that is a loss. */
#define BENCH_LOSS(function, output)                     \
	static void function(struct graph *g, int64_t T) \
	{                                                \
		graph_loss(g, "loss", output, 1.0);      \
	}

static struct tensor *linear(struct graph *g, int64_t T, int64_t in, int64_t out)
{
	return op_linear(g, "y", PARAM("x", B, T, in), PARAM("w", in, out), PARAM("b", out));
}

BENCH(embedding, op_embedding(g, "y", PARAM("table", V, E), PARAM("positions", T, E), INDICES))
BENCH(linear_qkv, linear(g, T, E, 3 * E))
BENCH(linear_proj, linear(g, T, E, E))
BENCH(linear_up, linear(g, T, E, F))
BENCH(linear_down, linear(g, T, F, E))
BENCH(linear_narrow, linear(g, T, L, 4 * L))
BENCH(linear_tied, op_linear_transposed(g, "y", PARAM("x", B, T, L), PARAM("w", F, L)))
BENCH(heads_to_latent, op_head_linear(g, "y", PARAM("x", B, T, H, D), PARAM("w", H, D, L)))
BENCH(heads_from_latent, op_head_linear(g, "y", PARAM("x", B, T, H, L), PARAM("w", H, L, D)))
BENCH(heads_shared, op_head_linear(g, "y", PARAM("x", B, T, L), PARAM("w", H, L, D)))
BENCH(blocks, op_head_linear(g, "y", PARAM("x", B, T, N, F / N), PARAM("w", N, F / N, F / N)))
BENCH(add, op_add(g, "y", PARAM("a", B, T, F), PARAM("b", B, T, F)))
BENCH(multiply, op_multiply(g, "y", PARAM("a", B, T, F), PARAM("b", B, T, F)))
BENCH(scale, op_scale(g, "y", PARAM("x", B, T, F), 0.3, NULL))
BENCH(scale_learned, op_scale(g, "y", PARAM("x", B, T, F), 0.3, PARAM("factor", 1)))
BENCH(add_scaled, op_add_scaled(g, "y", PARAM("a", B, T, F), PARAM("b", B, T, F), 0.3, NULL))
BENCH(add_scaled_learned,
      op_add_scaled(g, "y", PARAM("a", B, T, F), PARAM("b", B, T, F), 0.3, PARAM("factor", 1)))
BENCH(norm_layer, op_norm(g, "y", NORM_LAYER, 1e-5, PARAM("x", B, T, E), NULL, PARAM("w", E),
			  PARAM("b", E), NULL))
BENCH(norm_rms,
      op_norm(g, "y", NORM_RMS, 1e-6, PARAM("x", B, T, E), NULL, PARAM("w", E), NULL, NULL))
BENCH(rope, op_rope(g, "y", PARAM("x", B, T, H, D), 10000, D))
BENCH(gelu, op_gelu(g, "y", PARAM("x", B, T, F)))
BENCH(silu_gate, op_silu_gate(g, "y", PARAM("gate", B, T, F), PARAM("x", B, T, F)))
BENCH(softplus, op_softplus(g, "y", PARAM("x", B, T, F), 1e-4))
BENCH(sigmoid, op_sigmoid(g, "y", PARAM("x", B, T, F)))
BENCH(dropout, op_dropout(g, "y", PARAM("x", B, T, F), 0.1))
BENCH(running_mean, op_running_mean(g, "y", PARAM("x", B, T, G)))
BENCH(sequence_mean, op_sequence_mean(g, "y", PARAM("x", B, T, G)))
BENCH(head_gate, op_head_gate(g, "y", PARAM("o", B, T, H, D), PARAM("gate", B, T, H), 0.1, NULL))
BENCH(w2_wasserstein,
      op_w2_gaussian(g, "y", PARAM("x", B, T, H, 2 * D), W2_WASSERSTEIN, 1e-4, NULL))
BENCH(w2_key_bias,
      op_w2_key_bias(g, "y", PARAM("x", B, T, H, 2 * D), PARAM("tau", H), W2_WASSERSTEIN, 1e-4))
BENCH(w2_scale, op_w2_scale(g, "y", PARAM("x", B, T, H, 2 * D), PARAM("tau", H), 1e-4))
BENCH(scalar_expand, op_scalar_expand(g, "y", PARAM("x", B, T, L), PARAM("s", H), F))
BENCH(scalar_pool, op_scalar_pool(g, "y", PARAM("x", B, T, F), PARAM("s", H), L))
BENCH_LOSS(ws_energy, op_ws_energy(g, "y", PARAM("z", B, T, N, F / N)))
BENCH_LOSS(ws_contrast, op_ws_contrast(g, "y", PARAM("z", B, T, N, F / N), 0.07, NULL))

static struct head_loss_outputs head(struct graph *g, int64_t T)
{
	return op_head_loss(g, "head", PARAM("x", B, T, E), PARAM("w", V, E), INDICES,
			    case_input(g, "weights", g->type, 2));
}

BENCH_LOSS(head_loss, head(g, T).main)

static void head_scores(struct graph *g, int64_t T)
{
	graph_output(g, "main", head(g, T).main);
}

static void norm_residual(struct graph *g, int64_t T)
{
	struct tensor *x = PARAM("x", B, T, E), *residual = PARAM("residual", B, T, E), *sum;

	graph_seeded_output(g, "y", op_norm(g, "y", NORM_LAYER, 1e-5, x, residual, PARAM("w", E),
					    PARAM("b", E), &sum));
	graph_seeded_output(g, "sum", sum);
}

static void w2_overlap(struct graph *g, int64_t T)
{
	struct tensor *x = PARAM("x", B, T, H, 2 * D), *logdet;

	graph_seeded_output(g, "y", op_w2_gaussian(g, "y", x, W2_OVERLAP, 1e-4, &logdet));
	graph_seeded_output(g, "logdet", logdet);
}

/* Attention, and the ops that read what it made. */
struct attending {
	struct attention_attr attr;
	struct attention_inputs in;
	struct attention_outputs out;
};

static struct attending attend(struct graph *g, int64_t T, enum route_mode mode, int64_t groups,
			       int64_t width)
{
	struct attending a = {
		.attr = { .scale = 0.125,
			  .band_window = -1,
			  .route = { .mode = mode, .k = 8, .tau = 0.5, .normalize = true } },
		.in = { .q = PARAM("q", B, T, H, width),
			.k = PARAM("k", B, T, groups, width),
			.v = PARAM("v", B, T, groups, width) },
	};

	a.out = op_attention(g, "attention", &a.attr, &a.in);
	return a;
}

BENCH(attention_dot, attend(g, T, ROUTE_NONE, H, D).out.o)
BENCH(attention_latent, attend(g, T, ROUTE_NONE, 1, L).out.o)
BENCH(attention_topk, attend(g, T, ROUTE_TOPK, 1, L).out.o)

static void mix_topk(struct graph *g, int64_t T)
{
	struct attending a = attend(g, T, ROUTE_TOPK, 1, L);
	struct tensor *x = PARAM("x", B, T, F);

	graph_seeded_output(g, "out",
			    op_mix_topk(g, "y", x, a.out.route_index, a.out.route_weight));
}

static void mix_rows(struct graph *g, int64_t T)
{
	struct attending a = attend(g, T, ROUTE_RMS, 1, L);

	graph_seeded_output(g, "out",
			    op_mix_rows(g, "y", PARAM("x", B, T, F), &a.attr, &a.in, a.out.lse));
}

static void attention_probe(struct graph *g, int64_t T)
{
	struct attending a = attend(g, T, ROUTE_TOPK, 1, L);

	graph_output(g, "out", op_attention_probe(g, "y", &a.attr, &a.in, NULL, a.out.lse, 64));
}

static void keep(struct graph *g, int64_t T)
{
	graph_output(g, "out", op_keep(g, "y", PARAM("x", B, T, F)));
}

static void recent(struct graph *g, int64_t T)
{
	(void)T; /* one new token */
	graph_output(g, "out", op_recent(g, "y", PARAM("x", B, 1, H, L), 64));
}

static const struct bench benches[] = {
	{ OP_embedding, "table and positions", embedding, false },
	{ OP_linear, "768 to 2304", linear_qkv, false },
	{ OP_linear, "768 to 768", linear_proj, false },
	{ OP_linear, "768 to 3072", linear_up, false },
	{ OP_linear, "3072 to 768", linear_down, false },
	{ OP_linear, "128 to 512", linear_narrow, false },
	{ OP_linear, "128 to 3072, transposed", linear_tied, false },
	{ OP_head_linear, "12 of 64 to 128", heads_to_latent, false },
	{ OP_head_linear, "12 of 128 to 64", heads_from_latent, false },
	{ OP_head_linear, "12 of 128 to 64, shared", heads_shared, false },
	{ OP_head_linear, "8 blocks of 384", blocks, false },
	{ OP_add, "3072", add, true },
	{ OP_multiply, "3072", multiply, true },
	{ OP_scale, "3072", scale, true },
	{ OP_scale_learned, "3072", scale_learned, true },
	{ OP_add_scaled, "3072", add_scaled, true },
	{ OP_add_scaled_learned, "3072", add_scaled_learned, true },
	{ OP_norm, "layer, 768", norm_layer, true },
	{ OP_norm, "rms, 768", norm_rms, true },
	{ OP_norm_residual, "layer, 768", norm_residual, true },
	{ OP_rope, "12 of 64", rope, false },
	{ OP_gelu, "3072", gelu, true },
	{ OP_silu_gate, "3072", silu_gate, true },
	{ OP_softplus, "3072", softplus, true },
	{ OP_sigmoid, "3072", sigmoid, true },
	{ OP_dropout, "3072", dropout, true },
	{ OP_attention, "12 of 64", attention_dot, false },
	{ OP_attention, "latent 128", attention_latent, false },
	{ OP_attention, "latent 128, topk 8", attention_topk, false },
	{ OP_mix_topk, "3072, topk 8", mix_topk, false },
	{ OP_mix_rows, "3072, rms", mix_rows, false },
	{ OP_keep, "3072", keep, false },
	{ OP_recent, "64 of 12 of 128", recent, false },
	{ OP_running_mean, "64", running_mean, false },
	{ OP_sequence_mean, "64", sequence_mean, false },
	{ OP_head_gate, "12 of 64", head_gate, true },
	{ OP_w2_gaussian, "wasserstein, 12 of 64", w2_wasserstein, true },
	{ OP_w2_gaussian, "overlap, 12 of 64", w2_overlap, true },
	{ OP_w2_key_bias, "12 of 128", w2_key_bias, true },
	{ OP_w2_scale, "12 of 128", w2_scale, true },
	{ OP_scalar_expand, "128 to 3072", scalar_expand, false },
	{ OP_scalar_pool, "3072 to 128", scalar_pool, false },
	{ OP_ws_energy, "8 of 384", ws_energy, false },
	{ OP_ws_contrast, "8 of 384", ws_contrast, false },
	{ OP_head_loss, "768 to 50304", head_loss, false },
	{ OP_head_loss, "768 to 50304, no training", head_scores, false },
	{ OP_attention_probe, "latent 128", attention_probe, false },
};

#define N_BENCHES ((int)(sizeof(benches) / sizeof(benches[0])))

/* ------------------------------------------------------------------ timing */

struct times {
	double second[MAX_TIMES];
	int n;
};

static void add_time(struct times *t, double second)
{
	t->second[t->n++] = second;
}

static int compare_seconds(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* The time below which this part of the measurements lies; 0.5 is the median. */
static double quantile(struct times *t, double part)
{
	qsort(t->second, (size_t)t->n, sizeof(t->second[0]), compare_seconds);
	return t->second[(int)(part * (t->n - 1) + 0.5)];
}

static bool wants_more(const struct times *t, double start)
{
	return t->n < MIN_TIMES || (t->n < MAX_TIMES && omp_get_wtime() - start < SECONDS);
}

/* What the machine can do at best, and the arrays that measured it. */
struct machine {
	double flops, bytes; /* per second */
	double bf16_flops;   /* in bfloat16; 0: the machine has no instructions for it */
	float *a, *b, *c;    /* TRIAD elements each */
	const struct bf16_form *form;
	int threads;
};

static void triad(const struct machine *m)
{
	float *restrict a = m->a;
	const float *restrict b = m->b, *restrict c = m->c;

#pragma omp parallel for simd schedule(static)
	for (int64_t i = 0; i < TRIAD; i++)
		a[i] = b[i] + 0.5f * c[i];
}

static void product(const struct machine *m)
{
	const int64_t n = SQUARE;

	blas_gemm_f32(false, false, n, n, n, 1, m->b, n, m->c, n, 0, m->a, n);
}

/* As it is in training: one factor was packed before.  The arrays have room for that behind. */
static void bf16_products(const struct machine *m)
{
	const int64_t n = SQUARE;
	const struct bf16_factor left = { .data = m->b, .pitch = n };
	const struct bf16_factor right = { .packed = m->c, .packed_k = n };

	bf16_product(m->form, n, n, n, 1, &left, &right, false, m->a, n, m->a + n * n);
}

/* Memory that is first touched by the threads that will use it. */
static float *new_array(int64_t n)
{
	float *array = aligned_alloc(64, (size_t)n * sizeof(*array)); /* n is a multiple of 16 */

#pragma omp parallel for schedule(static) if (array != NULL)
	for (int64_t i = 0; i < n; i++)
		array[i] = array ? (float)(i % 1021) / 1021 - 0.5f : 0;
	return array;
}

static void free_machine(struct machine *m)
{
	free(m->a);
	free(m->b);
	free(m->c);
}

static double least_time(void (*work)(const struct machine *m), const struct machine *m)
{
	const double start = omp_get_wtime();
	struct times all = { .n = 0 };

	while (wants_more(&all, start)) {
		const double begin = omp_get_wtime();

		work(m);
		add_time(&all, omp_get_wtime() - begin);
	}
	return quantile(&all, 0);
}

/* NULL: only the plain form runs here, which is no ceiling of anything. */
static const struct bf16_form *matrix_form(void)
{
	for (int i = 0; bf16_forms[i + 1]; i++)
		if (!bf16_obstacle(bf16_forms[i]))
			return bf16_forms[i];
	return NULL;
}

static enum status measure_machine(struct machine *m, int threads, struct error *err)
{
	const int64_t n = SQUARE;
	const double operations = 2.0 * (double)n * (double)n * (double)n;

	*m = (struct machine){ .threads = threads };
	m->a = new_array(TRIAD);
	m->b = new_array(TRIAD);
	m->c = new_array(TRIAD);
	if (!m->a || !m->b || !m->c) {
		free_machine(m);
		return fail_memory(err, "arrays to measure the machine", 3 * TRIAD * sizeof(float));
	}
	m->flops = operations / least_time(product, m);
	m->bytes = 3.0 * TRIAD * sizeof(float) / least_time(triad, m);
	m->form = matrix_form();
	if (m->form) {
		assert(bf16_packed_bytes(n, n) <= TRIAD * sizeof(float));
		assert(bf16_work_bytes(n, n, n, true, threads) <= (TRIAD - n * n) * sizeof(float));
		bf16_pack(m->form, BF16_RIGHT, n, n,
			  &(struct bf16_factor){ .data = m->b, .pitch = n, .across = true }, m->c);
		m->bf16_flops = operations / least_time(bf16_products, m);
	}
	return OK;
}

/* --------------------------------------------------------- one op, one pass */

struct result {
	const struct bench *bench;
	enum pass pass;
	double median;	  /* seconds */
	double low, high; /* a quarter of the measurements lies outside on either side */
	double flops, bytes;
	double plain;  /* linear: median seconds of the bare products; else 0 */
	double cached; /* bytes per second of one thread in its cache; 0: not measured */
};

#define MAX_RESULTS 2 /* a forward and a backward pass */

struct results {
	struct result list[MAX_RESULTS];
	int n;
};

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

	while (wants_more(&own, start)) {
		double begin;

		triad(m); /* what the caches held is gone */
		begin = omp_get_wtime();
		program_run_step(p, index);
		add_time(&own, omp_get_wtime() - begin);
		if (bench->op != OP_linear)
			continue;
		triad(m);
		begin = omp_get_wtime();
		run_products(m, step.node, step.pass);
		add_time(&plain, omp_get_wtime() - begin);
	}
	r.median = quantile(&own, 0.5);
	r.low = quantile(&own, 0.25);
	r.high = quantile(&own, 0.75);
	r.plain = plain.n ? quantile(&plain, 0.5) : 0;
	add_cost(step.node, &r);
	results->list[results->n++] = r;
}

/* The same step of a program of few tokens: completes the result of that pass. */
static void measure_cached(const struct machine *m, const struct bench *bench, struct program *p,
			   int index, struct results *results)
{
	enum { CALLS = 64 }; /* between two looks at the clock: a call takes microseconds */
	const struct program_step step = program_step(p, index);
	struct result few = { .bench = bench, .pass = step.pass };
	struct times own = { .n = 0 };
	const double start = omp_get_wtime();

	omp_set_num_threads(1);
	while (wants_more(&own, start)) {
		const double begin = omp_get_wtime();

		for (int i = 0; i < CALLS; i++)
			program_run_step(p, index);
		add_time(&own, (omp_get_wtime() - begin) / CALLS);
	}
	omp_set_num_threads(m->threads);
	add_cost(step.node, &few);
	for (int i = 0; i < results->n; i++)
		if (results->list[i].pass == step.pass)
			results->list[i].cached = few.bytes / quantile(&own, 0);
}

/* The least time the pass could take on this machine, and what bounds it. */
static double bound_seconds(const struct result *r, const struct machine *m, bool *by_flops)
{
	double compute = r->flops / m->flops, memory = r->bytes / m->bytes;

	*by_flops = compute > memory;
	return compute > memory ? compute : memory;
}

static double cached_part(const struct result *r, const struct machine *m)
{
	return r->cached * m->threads / m->bytes;
}

/* ------------------------------------------------------------------ output */

struct report {
	const struct machine *machine;
	cJSON *json; /* array of results; NULL: lines of text */
};

static void print_head(const struct machine *m)
{
	char blas[BLAS_DESCRIPTION_TEXT];

	printf("%s, threads: %d; ceilings: %.1f GFLOP/s (products), %.1f GB/s (triad)\n\n",
	       blas_description(blas), m->threads, m->flops / 1e9, m->bytes / 1e9);
	printf("%-18s %-26s %-9s %9s %6s %16s %11s %9s %9s\n", "op", "shape", "pass", "ms", "+-%",
	       "rate", "of ceiling", "in cache", "of sgemm");
}

static void print_line(const struct result *r, const struct machine *m)
{
	bool by_flops;
	double bound = bound_seconds(r, m, &by_flops);

	printf("%-18s %-26s %-9s %9.3f %6.1f %8.1f %-7s %10.0f%%", op_table[r->bench->op]->name,
	       r->bench->label, pass_name(r->pass), 1e3 * r->median,
	       50 * (r->high - r->low) / r->median,
	       (by_flops ? r->flops : r->bytes) / r->median / 1e9, by_flops ? "GFLOP/s" : "GB/s",
	       100 * bound / r->median);
	if (r->cached > 0)
		printf(" %8.0f%%", 100 * cached_part(r, m));
	if (r->plain > 0)
		printf(" %18.1f%%", 100 * r->plain / r->median);
	printf("\n");
	fflush(stdout);
}

static void add_json(cJSON *array, const struct result *r, const struct machine *m)
{
	cJSON *item = cJSON_CreateObject();
	bool by_flops;
	double bound = bound_seconds(r, m, &by_flops);

	cJSON_AddStringToObject(item, "op", op_table[r->bench->op]->name);
	cJSON_AddStringToObject(item, "shape", r->bench->label);
	cJSON_AddStringToObject(item, "pass", pass_name(r->pass));
	cJSON_AddNumberToObject(item, "seconds", r->median);
	cJSON_AddNumberToObject(item, "seconds_low", r->low);
	cJSON_AddNumberToObject(item, "seconds_high", r->high);
	cJSON_AddNumberToObject(item, "flops", r->flops);
	cJSON_AddNumberToObject(item, "bytes", r->bytes);
	cJSON_AddStringToObject(item, "bound", by_flops ? "flops" : "bytes");
	cJSON_AddNumberToObject(item, "of_ceiling", bound / r->median);
	if (r->cached > 0)
		cJSON_AddNumberToObject(item, "of_ceiling_in_cache", cached_part(r, m));
	if (r->plain > 0)
		cJSON_AddNumberToObject(item, "of_sgemm", r->plain / r->median);
	cJSON_AddItemToArray(array, item);
}

static enum status print_json(cJSON *results, const struct machine *m, struct error *err)
{
	char blas[BLAS_DESCRIPTION_TEXT], *text;
	cJSON *root = cJSON_CreateObject();

	cJSON_AddStringToObject(root, "blas", blas_description(blas));
	cJSON_AddNumberToObject(root, "threads", m->threads);
	cJSON_AddNumberToObject(root, "ceiling_flops", m->flops);
	if (m->bf16_flops > 0)
		cJSON_AddNumberToObject(root, "ceiling_flops_bfloat16", m->bf16_flops);
	cJSON_AddNumberToObject(root, "ceiling_bytes", m->bytes);
	cJSON_AddItemToObject(root, "results", results);
	text = cJSON_Print(root);
	cJSON_Delete(root);
	if (!text)
		return fail_memory(err, "JSON text", 0);
	puts(text);
	cJSON_free(text);
	return OK;
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
			words[i] %= V;
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
		backend->upload(param_data(g->params, t->param), numbers, tensor_bytes(t));
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

typedef void measure_fn(const struct machine *m, const struct bench *bench, struct program *p,
			int index, struct results *results);

static enum status run_graph(const struct machine *m, const struct bench *bench,
			     const struct graph *g, const struct backend *backend,
			     measure_fn *measure, struct results *results, struct error *err)
{
	const struct graph_output *output = &g->outputs[0];
	const struct program_options options = { .train = output->seeded || output->is_loss };
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
			measure(m, bench, p, i, results);
	}
	status = OK;
destroy_program:
	program_destroy(p);
	return status;
}

static enum status run_tokens(const struct machine *m, const struct bench *bench, int64_t tokens,
			      const struct backend *backend, measure_fn *measure,
			      struct results *results, struct error *err)
{
	const bool continues = bench->op == OP_keep || bench->op == OP_recent;
	struct params *params = NULL, *state = NULL;
	struct graph *g = NULL;
	enum status status = FAIL;

	if (params_create(&params, F32, err) != OK || params_create(&state, F32, err) != OK ||
	    graph_create(&g, params, !continues, err) != OK)
		goto free_graph;
	if (continues)
		graph_continue(g, state, tokens);
	bench->build(g, tokens);
	if (graph_finish(g, err) == OK && params_allocate(params, backend, true, err) == OK &&
	    params_allocate(state, backend, false, err) == OK)
		status = run_graph(m, bench, g, backend, measure, results, err);
free_graph:
	graph_destroy(g);
	params_destroy(state);
	params_destroy(params);
	return status;
}

static enum status run_bench(const struct report *report, const struct bench *bench,
			     const struct backend *backend, struct error *err)
{
	const struct machine *m = report->machine;
	struct results results = { .n = 0 };

	if (run_tokens(m, bench, TOKENS, backend, measure_step, &results, err) != OK)
		return FAIL;
	if (bench->streams &&
	    run_tokens(m, bench, FEW, backend, measure_cached, &results, err) != OK)
		return FAIL;
	for (int i = 0; i < results.n; i++) {
		if (report->json)
			add_json(report->json, &results.list[i], m);
		else
			print_line(&results.list[i], m);
	}
	return OK;
}

static bool has_bench(int op)
{
	for (int i = 0; i < N_BENCHES; i++)
		if ((int)benches[i].op == op)
			return true;
	return false;
}

/* No op may hide: a new one needs its shapes in this file. */
static enum status check_complete(struct error *err)
{
	for (int i = 0; i < OP_COUNT; i++)
		if (!has_bench(i))
			return fail(err, "op %s has no shapes in tools/bench_ops.c",
				    op_table[i]->name);
	return OK;
}

/* ------------------------------------------------------------------ options */

struct options {
	int threads, op; /* op < 0: all */
	bool json, ceilings, help;
};

static void print_help(void)
{
	printf("bench_ops [--threads N] [--op NAME | --ceilings] [--json]\n\n"
	       "Measure every op at the shapes of GPT-2 against the ceilings of this machine.\n\n"
	       "  --threads N   use N threads (default: one per processor)\n"
	       "  --op NAME     this op only:");
	for (int i = 0; i < OP_COUNT; i++)
		printf("%s %s", i % 6 ? "" : "\n                ", op_table[i]->name);
	printf("\n  --ceilings    measure the machine alone\n"
	       "  --json        print one JSON object\n"
	       "  --help        print this text\n\n"
	       "Example: bench_ops --threads 1 --op linear\n");
}

static enum status parse_threads(const char *text, int *threads, struct error *err)
{
	char *end;
	long n;

	errno = 0;
	n = strtol(text, &end, 10);
	if (errno || end == text || *end || n < 1 || n > MAX_THREADS)
		return fail(err, "--threads %s: not a number from 1 to %d", text, MAX_THREADS);
	*threads = (int)n;
	return OK;
}

static enum status parse_op(const char *text, int *op, struct error *err)
{
	for (int i = 0; i < OP_COUNT; i++)
		if (strcmp(op_table[i]->name, text) == 0) {
			*op = i;
			return OK;
		}
	return fail(err, "--op %s: no such op; --help lists them", text);
}

static enum status parse_options(int argc, char **argv, struct options *o, struct error *err)
{
	static const struct option known[] = {
		{ "threads", required_argument, NULL, 't' },
		{ "op", required_argument, NULL, 'o' },
		{ "ceilings", no_argument, NULL, 'c' },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	*o = (struct options){ .threads = omp_get_num_procs(), .op = -1 };
	opterr = 0;
	while ((c = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (c == 't' && parse_threads(optarg, &o->threads, err) != OK)
			return FAIL;
		if (c == 'o' && parse_op(optarg, &o->op, err) != OK)
			return FAIL;
		if (c == '?')
			return fail(err, "%s: unknown option, or its value is missing; see --help",
				    argv[optind - 1]);
		o->ceilings = o->ceilings || c == 'c';
		o->json = o->json || c == 'j';
		o->help = o->help || c == 'h';
	}
	if (optind < argc)
		return fail(err, "%s: unexpected argument; see --help", argv[optind]);
	return OK;
}

static enum status run_all(const struct options *o, struct error *err)
{
	const struct backend backend = backend_cpu(o->threads);
	struct report report = { .json = o->json ? cJSON_CreateArray() : NULL };
	enum status status = check_complete(err);
	struct machine machine;

	if (status != OK || measure_machine(&machine, o->threads, err) != OK) {
		cJSON_Delete(report.json);
		return FAIL;
	}
	report.machine = &machine;
	if (!o->json)
		print_head(&machine);
	for (int i = 0; i < N_BENCHES && status == OK && !o->ceilings; i++)
		if (o->op < 0 || (int)benches[i].op == o->op)
			status = run_bench(&report, &benches[i], &backend, err);
	if (status == OK && o->json)
		status = print_json(report.json, &machine, err);
	else
		cJSON_Delete(report.json);
	free_machine(&machine);
	return status;
}

int main(int argc, char **argv)
{
	struct options options;
	struct error err;

	blas_start(argv);
	if (parse_options(argc, argv, &options, &err) != OK) {
		fprintf(stderr, "bench_ops: %s\n", err.text);
		return 2;
	}
	if (options.help) {
		print_help();
		return 0;
	}
	if (run_all(&options, &err) != OK) {
		fprintf(stderr, "bench_ops: %s\n", err.text);
		return 1;
	}
	return 0;
}
