/*
 * bench_ops - how fast is every kernel, and how fast could it be?
 *
 * Two ceilings are measured first, in the same run and with the same threads,
 * the best of several runs each: the linked BLAS multiplying large squares
 * (GFLOP/s), and the triad a = b + s c on arrays too large for any cache
 * (GB/s).  Then every op runs at the shapes of GPT-2 (124M), each pass by
 * itself and with cold caches.  The least time it could take is the larger of
 * its operations over the first ceiling and its bytes over the second; "of
 * ceiling" is that least time over the median time.  A linear layer is also
 * compared with its bare products; both are measured alternately.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <omp.h>

#include "core/backend/cpu/cpu.h"
#include "core/backend/cpu/blas.h"
#include "tools/bench/measure.h"

#define MAX_THREADS 1024

/* ------------------------------------------------------------------ output */

static void print_head(const struct machine *m)
{
	char blas[BLAS_DESCRIPTION_TEXT];

	printf("%s, threads: %d; ceilings: %.1f GFLOP/s (products), %.1f GB/s (triad)\n\n",
	       blas_description(blas), m->threads, m->flops / 1e9, m->bytes / 1e9);
	printf("%-18s %-26s %-9s %9s %6s %16s %11s %9s\n", "op", "shape", "pass", "ms", "+-%",
	       "rate", "of ceiling", "of sgemm");
}

static void print_line(const struct result *r, const struct machine *m)
{
	bool by_flops;
	double bound = result_bound(r, m, &by_flops);

	printf("%-18s %-26s %-9s %9.3f %6.1f %8.1f %-7s %10.0f%%", op_table[r->bench->op]->name,
	       r->bench->label, pass_name(r->pass), 1e3 * r->median,
	       50 * (r->high - r->low) / r->median,
	       (by_flops ? r->flops : r->bytes) / r->median / 1e9, by_flops ? "GFLOP/s" : "GB/s",
	       100 * bound / r->median);
	if (r->plain > 0)
		printf(" %8.1f%%", 100 * r->plain / r->median);
	printf("\n");
	fflush(stdout);
}

static enum status print_ceilings(const struct machine *m, struct error *err)
{
	char blas[BLAS_DESCRIPTION_TEXT], *text;
	cJSON *root = cJSON_CreateObject();

	cJSON_AddStringToObject(root, "blas", blas_description(blas));
	cJSON_AddNumberToObject(root, "threads", m->threads);
	cJSON_AddNumberToObject(root, "ceiling_flops", m->flops);
	if (m->bf16_flops > 0)
		cJSON_AddNumberToObject(root, "ceiling_flops_bfloat16", m->bf16_flops);
	cJSON_AddNumberToObject(root, "ceiling_bytes", m->bytes);
	text = cJSON_Print(root);
	cJSON_Delete(root);
	if (!text)
		return fail_memory(err, "JSON text", 0);
	puts(text);
	cJSON_free(text);
	return OK;
}

static enum status run_bench(const struct machine *m, const struct bench *bench,
			     const struct backend *backend, struct error *err)
{
	struct results results;

	if (measure_bench(m, bench, backend, &results, err) != OK)
		return FAIL;
	for (int i = 0; i < results.n; i++)
		print_line(&results.list[i], m);
	return OK;
}

/* ------------------------------------------------------------------ options */

struct options {
	int threads, op; /* op < 0: all */
	bool ceilings, help;
};

static void print_help(void)
{
	printf("bench_ops [--threads N] [--op NAME | --ceilings]\n\n"
	       "Measure every op at the shapes of GPT-2 against the ceilings of this machine.\n\n"
	       "  --threads N   use N threads (default: one per processor)\n"
	       "  --op NAME     this op only:");
	for (int i = 0; i < OP_COUNT; i++)
		printf("%s %s", i % 6 ? "" : "\n                ", op_table[i]->name);
	printf("\n  --ceilings    measure only the machine, as JSON\n"
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
	return fail(err, "--op %s: there is no such op; --help lists all", text);
}

static enum status parse_options(int argc, char **argv, struct options *o, struct error *err)
{
	static const struct option known[] = {
		{ "threads", required_argument, NULL, 't' },
		{ "op", required_argument, NULL, 'o' },
		{ "ceilings", no_argument, NULL, 'c' },
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
		o->help = o->help || c == 'h';
	}
	if (optind < argc)
		return fail(err, "%s: unexpected argument; see --help", argv[optind]);
	return OK;
}

static enum status run_all(const struct options *o, struct error *err)
{
	enum status status = benches_complete(err);
	struct backend backend;
	struct machine machine;

	if (status != OK || backend_cpu_open(&backend, FLOAT32, o->threads, err) != OK ||
	    machine_measure(&machine, o->threads, err) != OK)
		return FAIL;
	if (o->ceilings)
		status = print_ceilings(&machine, err);
	else
		print_head(&machine);
	for (int i = 0; i < n_benches && status == OK && !o->ceilings; i++)
		if (o->op < 0 || (int)benches[i].op == o->op)
			status = run_bench(&machine, &benches[i], &backend, err);
	machine_free(&machine);
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
