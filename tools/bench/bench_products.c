/*
 * bench_products - how fast is every form of the matrix product that runs here?
 *
 *   bench_products [THREADS [FORM]]
 *
 * For floats and for bfloat16.  First the ceiling: one tile on panels that
 * stay in the first cache, by every thread.  Then the products of GPT-2 (124M,
 * B = 1, T = 1024).  They include the packing of activations; weights are packed
 * before if training does so.  The best of many runs counts, because something
 * disturbed the slower ones.  Results in float are compared with the BLAS, which
 * takes turns; results in bfloat16 with the plain form.  The exit status says
 * whether all agree to PANEL_TOLERANCE.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "core/backend/cpu/blas.h"
#include "core/backend/cpu/panel_form.h"

#define SECONDS 0.5   /* of one measurement */
#define TILES 100     /* in one run of the ceiling */
#define SAMPLES 20000 /* elements of a result that are compared */
#define MAX_ELEMENTS (50304 * 1024)

struct shape {
	const char *name;
	int64_t m, n, k;
	bool trans_a, trans_b, weight; /* weight: B is one */
};

static const struct shape shapes[] = {
	{ "qkv forward", 1024, 2304, 768, false, false, true },
	{ "qkv dx", 1024, 768, 2304, false, true, true },
	{ "qkv dW", 768, 2304, 1024, true, false, false },
	{ "proj forward", 1024, 768, 768, false, false, true },
	{ "up forward", 1024, 3072, 768, false, false, true },
	{ "up dx", 1024, 768, 3072, false, true, true },
	{ "up dW", 768, 3072, 1024, true, false, false },
	{ "down forward", 1024, 768, 3072, false, false, true },
	{ "down dx", 1024, 3072, 768, false, true, true },
	{ "down dW", 3072, 768, 1024, true, false, false },
	{ "logits of 256", 256, 50304, 768, false, true, true },
	{ "head dx of 256", 256, 768, 50304, false, false, true },
	{ "head dW of 256", 50304, 768, 256, true, false, false },
	{ "small qkv", 2048, 192, 64, false, false, true },
	{ "small dx", 2048, 64, 192, false, true, true },
	{ "small dW", 64, 192, 2048, true, false, false },
	{ "small proj", 2048, 64, 64, false, false, true },
	{ "small up", 2048, 256, 64, false, false, true },
	{ "small down", 2048, 64, 256, false, false, true },
	{ "small down dW", 256, 64, 2048, true, false, false },
	{ "scores", 64, 1024, 64, false, true, true },
	{ "values", 64, 64, 1024, false, false, true },
	{ "values dV", 1024, 64, 64, true, false, false },
	{ "small scores", 32, 64, 16, false, true, true },
};

#define N_SHAPES ((int)(sizeof(shapes) / sizeof(shapes[0])))

struct memory {
	float *a, *b, *c, *wanted;
	void *packed, *work;
};

static float *numbers(uint64_t salt)
{
	float *x = aligned_alloc(64, MAX_ELEMENTS * sizeof(*x));

#pragma omp parallel for schedule(static) if (x != NULL)
	for (uint64_t i = 0; i < MAX_ELEMENTS; i++)
		if (x)
			x[i] = (float)((i + salt) * 0x9e3779b97f4a7c15u >> 40) * 0x1p-23f - 1;
	return x;
}

/* Before the product. */
static bool is_packed(const struct panel_form *form, const struct shape *s)
{
	return s->weight && form->element == PANEL_BF16 && PANEL_KEEPS_WEIGHTS;
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

static bool take_memory(struct memory *x, int threads)
{
	size_t packed = 0, work = 0;

	for (int i = 0; i < N_SHAPES; i++) {
		const struct shape *s = &shapes[i];

		packed = larger(packed, panel_bytes(PANEL_F32, s->n, s->k));
		work = larger(work, panel_work(PANEL_F32, s->m, s->n, s->k, false, threads));
	}
	*x = (struct memory){
		.a = numbers(1),
		.b = numbers(2),
		.c = numbers(3),
		.wanted = numbers(4),
		.packed = aligned_alloc(64, (packed + 63) / 64 * 64),
		.work = aligned_alloc(64, (work + 63) / 64 * 64),
	};
	return x->a && x->b && x->c && x->wanted && x->packed && x->work;
}

static void free_memory(struct memory *x)
{
	free(x->a);
	free(x->b);
	free(x->c);
	free(x->wanted);
	free(x->packed);
	free(x->work);
}

/* GFLOP/s of tiles on one pair of panels per thread. */
static double tile_rate(const struct panel_form *form, int threads)
{
	const int64_t k = form->depth, rows = form->side[PANEL_LEFT].lines;
	const int64_t columns = form->side[PANEL_RIGHT].lines;
	double best = INFINITY;

#pragma omp parallel reduction(min : best)
	{
		static const float panel[PANEL_MAX_DEPTH * PANEL_MAX_LINES];
		float c[PANEL_MAX_LINES * PANEL_MAX_LINES];
		const double end = omp_get_wtime() + SECONDS;

		if (form->begin)
			form->begin();
		while (omp_get_wtime() < end) {
			double seconds, start = omp_get_wtime();

			for (int i = 0; i < TILES; i++)
				form->tile(k, panel, panel, 1, false, c, columns);
			seconds = omp_get_wtime() - start;
			best = seconds < best ? seconds : best;
		}
		if (form->end)
			form->end();
	}
	return 2e-9 * TILES * (double)(rows * columns * k) * threads / best;
}

static void multiply(const struct panel_form *form, const struct shape *s, const struct memory *x,
		     float *c)
{
	const struct panel_factor a = { .data = x->a,
					.pitch = s->trans_a ? s->m : s->k,
					.across = s->trans_a };
	const struct panel_factor b = {
		.data = x->b,
		.pitch = s->trans_b ? s->k : s->n,
		.across = !s->trans_b,
		.packed = is_packed(form, s) ? x->packed : NULL,
		.packed_lines = s->n,
		.packed_k = s->k,
	};

	panel_product(form, s->m, s->n, s->k, 1, &a, &b, false, c, s->n, x->work);
}

static void pack_weight(const struct panel_form *form, const struct shape *s,
			const struct memory *x)
{
	const struct panel_factor b = { .data = x->b,
					.pitch = s->trans_b ? s->k : s->n,
					.across = !s->trans_b };

	panel_pack(form, s->n, s->k, &b, x->packed);
}

typedef void runner(const struct panel_form *, const struct shape *, const struct memory *);

static void run_once(runner *run, const struct panel_form *form, const struct shape *s,
		     const struct memory *x, double *best)
{
	double seconds, start = omp_get_wtime();

	run(form, s, x);
	seconds = omp_get_wtime() - start;
	*best = seconds < *best ? seconds : *best;
}

/* The best times of many runs; the two that are compared take turns. */
struct best {
	double seconds, other;
};

static struct best measure(runner *run, runner *other, const struct panel_form *form,
			   const struct shape *s, const struct memory *x)
{
	const double end = omp_get_wtime() + (other ? 2 : 1) * SECONDS;
	struct best best = { INFINITY, INFINITY };

	do {
		run_once(run, form, s, x, &best.seconds);
		if (other)
			run_once(other, form, s, x, &best.other);
	} while (omp_get_wtime() < end);
	return best;
}

static void blas_once(const struct panel_form *form, const struct shape *s, const struct memory *x)
{
	(void)form;
	blas_gemm_f32(s->trans_a, s->trans_b, s->m, s->n, s->k, 1, x->a, s->trans_a ? s->m : s->k,
		      x->b, s->trans_b ? s->k : s->n, 0, x->wanted, s->n);
}

static void multiply_once(const struct panel_form *form, const struct shape *s,
			  const struct memory *x)
{
	multiply(form, s, x, x->c);
}

/* The largest difference, as a multiple of what is allowed: |a b| <= 1. */
static double difference(const struct shape *s, const struct memory *x)
{
	const double allowed = PANEL_TOLERANCE * (double)s->k * (double)s->k;
	double most = 0;

	for (int64_t i = 0; i < SAMPLES; i++) {
		const int64_t at = s->m * s->n / SAMPLES * i;

		most = fmax(most, fabs((double)x->c[at] - (double)x->wanted[at]) / allowed);
	}
	return most;
}

/* The plain form gives the expected results in bfloat16; the BLAS those in float. */
static void make_wanted(const struct shape *s, const struct memory *x)
{
	pack_weight(&bf16_plain, s, x);
	multiply(&bf16_plain, s, x, x->wanted);
}

static bool run_form(const struct panel_form *form, const struct memory *x, int threads)
{
	const double tiles = tile_rate(form, threads);
	bool agrees = true;

	printf("\n%s: tiles alone %.1f GFLOP/s\n%-16s %7s %7s %7s %9s %9s %9s %9s %9s %9s\n",
	       panel_name(form), tiles, "", "m", "n", "k", "ms", "GFLOP/s", "of tiles", "of BLAS",
	       "pack B ms", "off by");
	for (int i = 0; i < N_SHAPES; i++) {
		const struct shape *s = &shapes[i];
		const double flops = 2e-9 * (double)s->m * (double)s->n * (double)s->k;
		const bool has_blas = form->element == PANEL_F32;
		struct best packing, product;
		double seconds, off;

		if (!has_blas)
			make_wanted(s, x);
		packing = measure(pack_weight, NULL, form, s, x);
		product = measure(multiply_once, has_blas ? blas_once : NULL, form, s, x);
		seconds = product.seconds;
		off = difference(s, x);
		agrees = agrees && off <= 1;
		printf("%-16s %7lld %7lld %7lld %9.3f %9.1f %8.0f%% ", s->name, (long long)s->m,
		       (long long)s->n, (long long)s->k, 1e3 * seconds, flops / seconds,
		       100 * flops / seconds / tiles);
		if (has_blas)
			printf("%8.0f%% ", 100 * product.other / seconds);
		else
			printf("%9s ", "");
		printf("%9.3f %9.1e%s\n", 1e3 * packing.seconds, off, off <= 1 ? "" : "  TOO MUCH");
		fflush(stdout);
	}
	return agrees;
}

/* Do all forms that run here agree? */
static bool run_forms(enum panel_element element, const char *name, const struct memory *x,
		      int threads)
{
	bool agree = true;

	for (const struct panel_form *const *f = panel_forms(element); *f; f++)
		if (name && strcmp(name, panel_name(*f)) != 0)
			continue;
		else if (panel_obstacle(*f))
			printf("\n%s: not measured: %s\n", panel_name(*f), panel_obstacle(*f));
		else
			agree = run_form(*f, x, threads) && agree;
	return agree;
}

static const char usage[] =
	"usage: bench_products [THREADS [FORM]]\n\n"
	"Measure every form of the matrix product that this machine has, of floats and in\n"
	"bfloat16, and compare the results with those of the BLAS and of the plain form.\n"
	"Exit status 1: two of them disagree.\n\n"
	"Example: bench_products 1 amx\n";

int main(int argc, char **argv)
{
	const int threads = argc > 1 ? atoi(argv[1]) : omp_get_num_procs();
	const char *form = argc > 2 ? argv[2] : NULL;
	struct memory memory;
	bool agree;

	if (argc == 2 && strcmp(argv[1], "--help") == 0) {
		fputs(usage, stdout);
		return 0;
	}
	if (argc > 3 || threads < 1) {
		fputs(usage, stderr);
		return 2;
	}
	blas_start(argv);
	blas_set_threads(threads);
	omp_set_num_threads(threads);
	if (!take_memory(&memory, threads)) {
		fprintf(stderr, "bench_products: out of memory\n");
		free_memory(&memory);
		return 1;
	}
	printf("products of floats, threads: %d\n", threads);
	agree = run_forms(PANEL_F32, form, &memory, threads);
	printf("\nproducts in bfloat16, threads: %d\n", threads);
	agree = run_forms(PANEL_BF16, form, &memory, threads) && agree;
	free_memory(&memory);
	return agree ? 0 : 1;
}
