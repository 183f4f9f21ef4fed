/*
 * bench_model - one configured model, trained an iteration at a time on demand.
 *
 * tools/bench/bench.py compares it with others, and only one may compute at a time.
 * So this program prints one line of JSON when it is ready, and then answers each
 * line of its standard input with another:
 *
 *     N          run N iterations (batch, forward, backward, update); [seconds, ...]
 *     profile N  run N passes; the least time of every instruction of the program
 *
 * It allocates and does nothing else, so the peak memory of the process is that
 * of training.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <omp.h>

#include "core/backend/cpu/blas.h"
#include "models/describe.h"
#include "tools/kablate/run_setup.h"

#define MAX_CONFIG_BYTES 65536 /* there are about 150 symbols of 30 letters */

struct bench {
	struct run_setup setup;
	struct workload workload;
	struct token_program training;
	int32_t *tokens, *targets; /* [B,T] */
	int64_t iteration;
};

/* ----------------------------------------------------------------- creation */

static enum status read_config(struct config **config, const char *path, struct error *err)
{
	char text[MAX_CONFIG_BYTES];
	FILE *file = fopen(path, "r");
	size_t n;

	if (!file)
		return fail_errno(err, "cannot open %s", path);
	n = fread(text, 1, sizeof(text), file);
	fclose(file);
	if (n == sizeof(text))
		return fail(err, "%s is longer than %d bytes", path, MAX_CONFIG_BYTES);
	text[n] = '\0';
	return config_parse(config, text, err);
}

static int64_t batch_tokens(const struct bench *b)
{
	return b->setup.train.batch * b->workload.length;
}

static enum status open_bench(struct bench *b, const char *path, struct error *err)
{
	struct program_options options;
	struct config *config;

	*b = (struct bench){ 0 };
	if (read_config(&config, path, err) != OK ||
	    run_setup_open_config(&b->setup, config, 1, 0, err) != OK)
		return FAIL;
	b->workload = run_setup_workload(&b->setup);
	b->tokens = malloc((size_t)batch_tokens(b) * sizeof(*b->tokens));
	b->targets = malloc((size_t)batch_tokens(b) * sizeof(*b->targets));
	if (!b->tokens || !b->targets)
		return fail_memory(err, "batch", (size_t)batch_tokens(b) * sizeof(*b->tokens));
	options = b->setup.train.program;
	options.train = true;
	if (run_setup_make_parameters(&b->setup, NULL, NULL, err) != OK)
		return FAIL;
	return workload_open(&b->training, &b->workload, b->setup.params, b->setup.train.batch,
			     &b->setup.backend, &options, err);
}

static void close_bench(struct bench *b)
{
	token_program_close(&b->training);
	free(b->tokens);
	free(b->targets);
	run_setup_close(&b->setup);
}

/* ------------------------------------------------------------------ running */

static enum status run_passes(struct bench *b, struct error *err)
{
	const int64_t T = b->workload.length;
	const struct run run = { .seed = 1, .iteration = (uint64_t)b->iteration };
	int64_t scored = 0;

	for (int64_t row = 0; row < b->setup.train.batch; row++)
		b->workload.train_row(b->workload.context, (uint64_t)b->iteration, (uint64_t)row,
				      b->tokens + row * T, b->targets + row * T);
	for (int64_t i = 0; i < batch_tokens(b); i++)
		scored += b->targets[i] >= 0;
	token_program_weigh(&b->training, 1 / (double)(scored ? scored : 1),
			    1 / (double)batch_tokens(b));
	token_program_feed(&b->training, b->tokens, b->targets);
	return program_run(b->training.p, &run, err);
}

static enum status iterate(struct bench *b, struct error *err)
{
	struct optim_report report;

	b->iteration++;
	if (run_passes(b, err) != OK)
		return FAIL;
	optimizer_update(b->setup.optimizer, b->iteration,
			 schedule_rate(&b->setup.train.schedule, b->iteration), &report);
	return report.finite ? OK : fail(err, "the gradient is not finite");
}

static enum status time_iterations(struct bench *b, int n, cJSON *answer, struct error *err)
{
	for (int i = 0; i < n; i++) {
		const double start = omp_get_wtime();

		if (iterate(b, err) != OK)
			return FAIL;
		cJSON_AddItemToArray(answer, cJSON_CreateNumber(omp_get_wtime() - start));
	}
	return OK;
}

/* A device is asked for one instruction and waited for: its launch and the wait count too. */
static enum status time_step(struct bench *b, int index, double *least, struct error *err)
{
	const double start = omp_get_wtime();
	double seconds;

	program_run_step(b->training.p, index);
	if (b->setup.backend.wait(&b->setup.backend, err) != OK)
		return FAIL;
	seconds = omp_get_wtime() - start;
	if (seconds < *least)
		*least = seconds;
	return OK;
}

static void add_shape(cJSON *item, const char *name, const struct tensor *t)
{
	cJSON *shape = cJSON_AddArrayToObject(item, name);

	for (int i = 0; i < t->ndim; i++)
		cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->dim[i]));
}

static cJSON *describe_step(const struct program_step *step, double seconds)
{
	cJSON *item = cJSON_CreateObject();

	cJSON_AddStringToObject(item, "module",
				step->node ? module_names[step->node->origin.module] : "zero");
	cJSON_AddStringToObject(item, "op", step->node ? step->node->op->name : "zero");
	cJSON_AddStringToObject(item, "pass", pass_name(step->pass));
	if (step->node)
		cJSON_AddStringToObject(item, "name", step->node->name);
	for (int i = 0; step->node && i < 2 && step->node->in[i]; i++)
		add_shape(item, i ? "second" : "first", step->node->in[i]);
	cJSON_AddNumberToObject(item, "seconds", seconds);
	return item;
}

static enum status profile(struct bench *b, int n, cJSON *answer, struct error *err)
{
	const int steps = program_step_count(b->training.p);
	double *seconds = malloc((size_t)steps * sizeof(*seconds));
	enum status status = OK;

	if (!seconds)
		return fail_memory(err, "profile", (size_t)steps * sizeof(*seconds));
	for (int i = 0; i < steps; i++)
		seconds[i] = 1e9;
	for (int k = 0; k < n && status == OK; k++)
		for (int i = 0; i < steps && status == OK; i++)
			status = time_step(b, i, &seconds[i], err);
	for (int i = 0; i < steps && status == OK; i++) {
		const struct program_step step = program_step(b->training.p, i);

		cJSON_AddItemToArray(answer, describe_step(&step, seconds[i]));
	}
	free(seconds);
	return status;
}

/* ---------------------------------------------------------------- answering */

static void print_line(cJSON *json)
{
	char *text = cJSON_PrintUnformatted(json);

	puts(text ? text : "null");
	fflush(stdout);
	cJSON_free(text);
	cJSON_Delete(json);
}

static enum status say_ready(const struct bench *b, struct error *err)
{
	const struct description_options options = {
		.batch = b->setup.train.batch,
		.length = b->workload.length,
		.planner = !b->setup.train.program.no_planner,
		.remake = !b->setup.train.program.no_remake,
	};
	char blas[BLAS_DESCRIPTION_TEXT];
	cJSON *json = cJSON_CreateObject();
	struct description d;
	double flops = 0;

	if (describe_model(b->setup.model, &b->setup.backend, &options, &d, err) != OK) {
		cJSON_Delete(json);
		return FAIL;
	}
	for (int i = 0; i < MODULES; i++)
		flops += d.forward_flops[i] + d.backward_flops[i];
	cJSON_AddStringToObject(json, "blas", blas_description(blas));
	cJSON_AddNumberToObject(json, "threads", b->setup.backend.threads);
	cJSON_AddNumberToObject(json, "tokens", (double)batch_tokens(b));
	cJSON_AddNumberToObject(json, "vocab", (double)b->setup.model->vocab);
	cJSON_AddNumberToObject(json, "parameters", (double)d.parameters);
	cJSON_AddNumberToObject(json, "flops", flops * (double)batch_tokens(b));
	cJSON_AddNumberToObject(json, "activation_bytes", (double)d.activation_bytes);
	print_line(json);
	return OK;
}

static enum status answer_line(struct bench *b, const char *line, struct error *err)
{
	cJSON *answer = cJSON_CreateArray();
	enum status status;
	int n;

	if (sscanf(line, "profile %d", &n) == 1)
		status = b->iteration ? profile(b, n, answer, err)
				      : fail(err, "profile: run an iteration first");
	else if (sscanf(line, "%d", &n) == 1)
		status = time_iterations(b, n, answer, err);
	else
		status = fail(err, "not understood: %s", line);
	if (status == OK)
		print_line(answer);
	else
		cJSON_Delete(answer);
	return status;
}

static enum status answer_all(struct bench *b, struct error *err)
{
	char line[80];

	if (say_ready(b, err) != OK)
		return FAIL;
	while (fgets(line, sizeof(line), stdin))
		if (answer_line(b, line, err) != OK)
			return FAIL;
	return OK;
}

static const char usage[] = "usage: bench_model CONFIG\n"
			    "\n"
			    "The file names every symbol; tools/bench/bench.py writes it and "
			    "speaks with this program.\n"
			    "\n"
			    "Example: echo 10 | bench_model model.symbols\n";

int main(int argc, char **argv)
{
	struct bench bench;
	struct error err;
	enum status status;

	if (argc == 2 && strcmp(argv[1], "--help") == 0) {
		fputs(usage, stdout);
		return 0;
	}
	if (argc != 2 || argv[1][0] == '-') {
		fputs(usage, stderr);
		return 2;
	}
	blas_start(argv);
	status = open_bench(&bench, argv[1], &err);
	if (status == OK)
		status = answer_all(&bench, &err);
	close_bench(&bench);
	if (status != OK)
		fprintf(stderr, "bench_model: %s\n", err.text);
	return status == OK ? 0 : 1;
}
