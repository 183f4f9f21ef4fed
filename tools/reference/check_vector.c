/*
 * check_vector - compare this program's models with test vectors of the reference.
 *
 * tools/reference/golden.py writes a vector; models/test_vector.h says what is compared.
 */
#include <getopt.h>
#include <stdio.h>

#include "models/test_vector.h"

enum { EXIT_DIFFERS = 1, EXIT_USAGE = 2 };

static const char usage[] =
	"check_vector - compare the models of this program with test vectors\n"
	"\n"
	"    check_vector [--weights FILE] [--backend cuda] VECTOR...\n"
	"    check_vector --export FILE VECTOR\n"
	"\n"
	"  --weights FILE   take the parameters from there: our weights, or a public GPT-2's\n"
	"  --backend NAME   compute on the cpu or, by cuda, on a GPU\n"
	"  --export FILE    write the vector's parameters as a run writes its weights\n"
	"\n"
	"Prints, in double and in float, the worst tensor of each kind with its error and the "
	"error\n"
	"that is allowed.  Exits with 1 if a tolerance is exceeded or a file cannot be used.\n"
	"\n"
	"Example: tools/reference/golden.py mine.safetensors attn=mla latent=8 pos=rope\n"
	"         check_vector mine.safetensors\n";

static void print_worst(enum precision precision, const struct vector_report *report)
{
	const enum dtype type = precision_type(precision);

	for (int i = 0; i < VECTOR_KINDS; i++) {
		const struct vector_worst *w = &report->worst[i];

		printf("  %-4s %-9s %-34s error %.2e  allowed %.2e%s\n", dtype_name(type),
		       vector_kind_names[i], w->name, w->error, w->allowed,
		       w->error <= w->allowed ? "" : "  EXCEEDED");
	}
	if (report->near_tie)
		printf("  %-4s a routing choice is nearly tied: judged in double only\n",
		       dtype_name(type));
}

static enum status check_types(const struct safetensors *file, const char *weights,
			       const char *backend, bool *passed, struct error *err)
{
	static const enum precision precisions[] = { FLOAT64, FLOAT32 };
	struct vector_report report;

	for (int i = 0; i < 2; i++) {
		if (vector_compare(file, weights, backend, precisions[i], &report, err) != OK)
			return FAIL;
		print_worst(precisions[i], &report);
		*passed = *passed && vector_passed(&report);
	}
	return OK;
}

/* Prints what it found; true: everything is within its tolerance. */
static bool check(const char *path, const char *weights, const char *backend)
{
	struct safetensors file;
	struct error err;
	bool passed = true;

	if (safetensors_open(&file, path, &err) != OK) {
		fprintf(stderr, "check_vector: %s\n", err.text);
		return false;
	}
	printf("%s\n", path);
	if (check_types(&file, weights, backend, &passed, &err) != OK) {
		fflush(stdout);
		fprintf(stderr, "check_vector: %s: %s\n", path, err.text);
		passed = false;
	}
	safetensors_close(&file);
	return passed;
}

static int check_all(char **paths, int n, const char *weights, const char *backend)
{
	int failed = 0;

	for (int i = 0; i < n; i++)
		failed += !check(paths[i], weights, backend);
	printf("%d of %d vectors agree\n", n - failed, n);
	return failed ? EXIT_DIFFERS : 0;
}

static int export(const char *path, const char *out)
{
	struct safetensors file;
	enum status status;
	struct error err;

	status = safetensors_open(&file, path, &err);
	if (status == OK) {
		status = vector_export(&file, out, &err);
		safetensors_close(&file);
	}
	if (status != OK)
		fprintf(stderr, "check_vector: %s\n", err.text);
	return status == OK ? 0 : EXIT_DIFFERS;
}

static int refuse_usage(void)
{
	fputs("check_vector: see check_vector --help\n", stderr);
	return EXIT_USAGE;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "weights", required_argument, NULL, 'w' },
		{ "backend", required_argument, NULL, 'b' },
		{ "export", required_argument, NULL, 'e' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	const char *weights = NULL, *backend = "cpu", *out = NULL;
	int option;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (option) {
		case 'w':
			weights = optarg;
			break;
		case 'b':
			backend = optarg;
			break;
		case 'e':
			out = optarg;
			break;
		case 'h':
			fputs(usage, stdout);
			return 0;
		default:
			return refuse_usage();
		}
	}
	if (argc == optind || (out && (weights || argc - optind > 1)))
		return refuse_usage();
	return out ? export(argv[optind], out)
		   : check_all(argv + optind, argc - optind, weights, backend);
}
