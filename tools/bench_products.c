/*
 * bench_bf16 - how fast is every form of the bfloat16 product that runs here?
 *
 *   bench_bf16 [THREADS]
 *
 * First the ceiling: one tile on panels that stay in the first cache, by every
 * thread.  Then the products of GPT-2 (124M, B = 1, T = 1024), packing of
 * activations included, weights packed before; the best of many runs counts,
 * since a slower one was disturbed.  Every result is compared with the plain
 * form's: the exit status says whether all agree to BF16_TOLERANCE.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "core/backend/cpu/bf16_form.h"

#define SECONDS 1.0   /* of one measurement */
#define TILES 1000    /* in one run of the ceiling */
#define SAMPLES 20000 /* elements of a result that are compared */
#define MAX_ELEMENTS (50304 * 1024)

struct shape {
	const char *name;
	int64_t m, n, k;
	bool trans_a, trans_b, weight; /* weight: B is packed before */
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
};

#define N_SHAPES ((int)(sizeof(shapes) / sizeof(shapes[0])))

struct memory {
	float *a, *b, *c, *plain;
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

static size_t work_bytes(const struct shape *s, int threads)
{
	return bf16_work_bytes(s->m, s->n, s->k, s->weight, threads);
}

static bool take_memory(struct memory *x, int threads)
{
	size_t packed = 0, work = 0;

	for (int i = 0; i < N_SHAPES; i++) {
		const size_t p = bf16_packed_bytes(shapes[i].n, shapes[i].k);
		const size_t w = work_bytes(&shapes[i], threads);

		packed = p > packed ? p : packed;
		work = w > work ? w : work;
	}
	*x = (struct memory){
		.a = numbers(1),
		.b = numbers(2),
		.c = numbers(3),
		.plain = numbers(4),
		.packed = aligned_alloc(64, (packed + 63) / 64 * 64),
		.work = aligned_alloc(64, (work + 63) / 64 * 64),
	};
	return x->a && x->b && x->c && x->plain && x->packed && x->work;
}

static void free_memory(struct memory *x)
{
	free(x->a);
	free(x->b);
	free(x->c);
	free(x->plain);
	free(x->packed);
	free(x->work);
}

/* GFLOP/s of tiles on one pair of panels per thread. */
static double tile_rate(const struct bf16_form *form, int threads)
{
	const int64_t k = form->depth, rows = form->side[BF16_LEFT].lines;
	const int64_t columns = form->side[BF16_RIGHT].lines;
	double best = INFINITY;

#pragma omp parallel reduction(min : best)
	{
		static const bf16 panel[BF16_MAX_DEPTH * BF16_MAX_LINES];
		float c[BF16_MAX_LINES * BF16_MAX_LINES];
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

static void multiply(const struct bf16_form *form, const struct shape *s, const struct memory *x,
		     float *c)
{
	const struct bf16_factor a = { .data = x->a,
				       .pitch = s->trans_a ? s->m : s->k,
				       .across = s->trans_a };
	const struct bf16_factor b = {
		.data = x->b,
		.pitch = s->trans_b ? s->k : s->n,
		.across = !s->trans_b,
		.packed = s->weight ? x->packed : NULL,
		.packed_k = s->k,
	};

	bf16_product(form, s->m, s->n, s->k, 1, &a, &b, false, c, s->n, x->work);
}

static void pack_weight(const struct bf16_form *form, const struct shape *s, const struct memory *x)
{
	const struct bf16_factor b = { .data = x->b,
				       .pitch = s->trans_b ? s->k : s->n,
				       .across = !s->trans_b };

	bf16_pack(form, BF16_RIGHT, s->n, s->k, &b, x->packed);
}

/* The best time of many. */
static double measure(void (*run)(const struct bf16_form *, const struct shape *,
				  const struct memory *),
		      const struct bf16_form *form, const struct shape *s, const struct memory *x)
{
	const double end = omp_get_wtime() + SECONDS;
	double best = INFINITY;

	do {
		double seconds, start = omp_get_wtime();

		run(form, s, x);
		seconds = omp_get_wtime() - start;
		best = seconds < best ? seconds : best;
	} while (omp_get_wtime() < end);
	return best;
}

static void multiply_once(const struct bf16_form *form, const struct shape *s,
			  const struct memory *x)
{
	multiply(form, s, x, x->c);
}

/* The largest difference from the plain form, as a multiple of what is allowed: |a b| <= 1. */
static double difference(const struct shape *s, const struct memory *x)
{
	const double allowed = BF16_TOLERANCE * (double)s->k * (double)s->k;
	double most = 0;

	for (int64_t i = 0; i < SAMPLES; i++) {
		const int64_t at = s->m * s->n / SAMPLES * i;

		most = fmax(most, fabs((double)x->c[at] - (double)x->plain[at]) / allowed);
	}
	return most;
}

static bool run_form(const struct bf16_form *form, const struct memory *x, int threads)
{
	const double tiles = tile_rate(form, threads);
	bool agrees = true;

	printf("\n%s: tiles alone %.1f GFLOP/s\n%-16s %7s %7s %7s %9s %9s %9s %9s %9s\n",
	       bf16_name(form), tiles, "", "m", "n", "k", "ms", "GFLOP/s", "of tiles", "pack B ms",
	       "off by");
	for (int i = 0; i < N_SHAPES; i++) {
		const struct shape *s = &shapes[i];
		const double flops = 2e-9 * (double)s->m * (double)s->n * (double)s->k;
		double packing, seconds, off;

		pack_weight(&bf16_plain, s, x);
		multiply(&bf16_plain, s, x, x->plain);
		packing = measure(pack_weight, form, s, x);
		seconds = measure(multiply_once, form, s, x);
		off = difference(s, x);
		agrees = agrees && off <= 1;
		printf("%-16s %7lld %7lld %7lld %9.3f %9.1f %8.0f%% %9.3f %9.1e%s\n", s->name,
		       (long long)s->m, (long long)s->n, (long long)s->k, 1e3 * seconds,
		       flops / seconds, 100 * flops / seconds / tiles, 1e3 * packing, off,
		       off <= 1 ? "" : "  TOO MUCH");
		fflush(stdout);
	}
	return agrees;
}

static const char usage[] =
	"usage: bench_bf16 [THREADS]\n\n"
	"Measure every form of the bfloat16 product that this machine has, and compare its\n"
	"results with the plain form's.  Exit status 1: two forms disagree.\n\n"
	"Example: bench_bf16 1\n";

int main(int argc, char **argv)
{
	const int threads = argc > 1 ? atoi(argv[1]) : omp_get_num_procs();
	struct memory memory;
	bool agree = true;

	if (argc == 2 && strcmp(argv[1], "--help") == 0) {
		fputs(usage, stdout);
		return 0;
	}
	if (argc > 2 || threads < 1) {
		fputs(usage, stderr);
		return 2;
	}
	omp_set_num_threads(threads);
	if (!take_memory(&memory, threads)) {
		fprintf(stderr, "bench_bf16: out of memory\n");
		free_memory(&memory);
		return 1;
	}
	printf("products in bfloat16, threads: %d\n", threads);
	for (int i = 0; bf16_forms[i]; i++) {
		const char *obstacle = bf16_obstacle(bf16_forms[i]);

		if (obstacle)
			printf("\n%s: not measured: %s\n", bf16_name(bf16_forms[i]), obstacle);
		else
			agree = run_form(bf16_forms[i], &memory, threads) && agree;
	}
	free_memory(&memory);
	return agree ? 0 : 1;
}
