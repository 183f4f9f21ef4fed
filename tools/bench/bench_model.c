/*
 * bench_model - one configured model, trained an iteration at a time on demand.
 *
 * tools/bench/bench.py compares it with others, and only one may compute at a time.
 * So this program prints one line of JSON when it is ready, and then answers each
 * line of its standard input with another:
 *
 *     N            run N iterations (batch, forward, backward, update); [seconds, ...]
 *     losses N     run N iterations; the loss of each, before its update
 *     profile N    run N passes; the least time of every instruction of the program
 *     memory       bytes of the device's own memory; null: the device is the host
 *     share N DIR  write the weights and the batches of iterations 1 to N to DIR; N
 *
 * An asynchronous device is waited for once, after the last of N iterations: the answer is
 * then one number, the mean.
 *
 * It allocates and does nothing else, so the peak memory of the process is that
 * of training.  With --replicas it trains many runs at once, on batches that are made once,
 * and a line is about all of them: `tokens` counts theirs together.  With --decode it measures
 * decoding instead, as `kablate bench-decode`.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <omp.h>

#include "core/backend/cpu/blas.h"
#include "core/backend/open.h"
#include "core/train/checkpoint.h"
#include "models/describe.h"
#include "tools/kablate/bench_decode.h"
#include "tools/kablate/run_setup.h"
#include "tools/kablate/run_workload.h"

#define MAX_CONFIG_BYTES 65536 /* there are about 150 symbols of 30 letters */
#define MAX_PATH_BYTES 4096
#define PATH_SCAN "4000" /* letters of a directory, so that a file's name fits behind it */
#define DEVICE_TEXT 200
#define STEPS_TOGETHER 8 /* of a profile, on an asynchronous device */

struct bench {
	struct run_setup setup;
	struct workload workload;
	struct token_program training;
	int32_t *tokens, *targets; /* [replicas,B,T] */
	int64_t iteration;
	struct run *runs; /* by replica, as all of the following */
	double *rates;
	struct optim_reports *reports;
};

/* Runs that are trained at once, and the device memory of each; 0: one, in the ordinary form. */
struct replica_options {
	int count;
	size_t bytes;
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

static int replica_count(const struct bench *b)
{
	return backend_replicas(&b->setup.backend);
}

/* Of one replica. */
static int64_t batch_tokens(const struct bench *b)
{
	return b->setup.train.batch * b->workload.length;
}

/* The same device again, for replicas. */
static enum status open_replicas(struct run_setup *setup, const struct replica_options *o,
				 struct error *err)
{
	struct backend_options options = {
		.name = setup->backend.name,
		.precision = setup->precision,
		.replicas = o->count,
		.replica_bytes = o->bytes,
	};

	if (!o->count)
		return OK;
	setup->backend.close(&setup->backend);
	return backend_open(&setup->backend, &options, err);
}

static enum status allocate_host(struct bench *b, struct error *err)
{
	const size_t replicas = (size_t)replica_count(b), n = replicas * (size_t)batch_tokens(b);

	b->tokens = malloc(n * sizeof(*b->tokens));
	b->targets = malloc(n * sizeof(*b->targets));
	b->runs = calloc(replicas, sizeof(*b->runs));
	b->rates = calloc(replicas, sizeof(*b->rates));
	b->reports = calloc(replicas, sizeof(*b->reports));
	if (!b->tokens || !b->targets || !b->runs || !b->rates || !b->reports)
		return fail_memory(err, "batch", n * sizeof(*b->tokens));
	return OK;
}

static enum status open_bench(struct bench *b, const char *path,
			      const struct replica_options *replicas, struct error *err)
{
	struct program_options options;
	struct config *config;

	*b = (struct bench){ 0 };
	if (read_config(&config, path, err) != OK ||
	    run_setup_open_config(&b->setup, config, 1, 0, err) != OK ||
	    open_replicas(&b->setup, replicas, err) != OK)
		return FAIL;
	b->workload = run_workload(&b->setup);
	if (allocate_host(b, err) != OK)
		return FAIL;
	options = b->setup.train.program;
	options.train = true;
	if (run_setup_make_parameters(&b->setup, &b->setup.seed, NULL, NULL, err) != OK)
		return FAIL;
	return workload_open(&b->training, &b->workload, b->setup.params, b->setup.train.batch,
			     &b->setup.backend, &options, err);
}

static void close_bench(struct bench *b)
{
	token_program_close(&b->training);
	free(b->tokens);
	free(b->targets);
	free(b->runs);
	free(b->rates);
	free(b->reports);
	run_setup_close(&b->setup);
}

/* ------------------------------------------------------------------ running */

static void fill_batch(struct bench *b, int64_t iteration)
{
	const int64_t T = b->workload.length;

	for (int64_t row = 0; row < replica_count(b) * b->setup.train.batch; row++)
		b->workload.train_row(b->workload.context, (uint64_t)iteration, (uint64_t)row,
				      b->tokens + row * T, b->targets + row * T);
}

static enum status run_passes(struct bench *b, struct error *err)
{
	const struct backend *backend = &b->setup.backend;
	int64_t scored = 0;
	int chosen;

	for (int i = 0; i < replica_count(b); i++)
		b->runs[i] = (struct run){ .seed = (uint64_t)i + 1,
					   .iteration = (uint64_t)b->iteration };
	/* Those of replicas are made once: the host would take longer than the GPU. */
	if (!backend->replicas || b->iteration == 1)
		fill_batch(b, b->iteration);
	for (int64_t i = 0; i < batch_tokens(b); i++)
		scored += b->targets[i] >= 0;
	token_program_weigh(&b->training, 1 / (double)(scored ? scored : 1),
			    1 / (double)batch_tokens(b));
	chosen = backend_choose(backend, REPLICAS_EACH);
	token_program_feed(&b->training, b->tokens, b->targets);
	backend_choose(backend, chosen);
	return program_run(b->training.p, b->runs, err);
}

/* Issues an iteration.  An asynchronous device still computes it after this call. */
static enum status iterate(struct bench *b, struct error *err)
{
	b->iteration++;
	for (int i = 0; i < replica_count(b); i++)
		b->rates[i] = schedule_rate(&b->setup.train.schedule, b->iteration);
	if (run_passes(b, err) != OK)
		return FAIL;
	optimizer_ask(b->setup.optimizer, b->iteration, b->rates, NULL, 0);
	return OK;
}

/* Waits for the issued iterations. */
static enum status settle(struct bench *b, struct error *err)
{
	if (optimizer_read_each(b->setup.optimizer, b->reports, err) != OK)
		return FAIL;
	for (int r = 0; r < replica_count(b); r++)
		for (int i = 0; i < b->reports[r].n; i++)
			if (!b->reports[r].list[i].finite)
				return fail(err,
					    "the gradient of iteration %" PRId64 " is not finite",
					    b->reports[r].list[i].t);
	return b->setup.backend.wait(&b->setup.backend, err);
}

static enum status time_each(struct bench *b, int n, cJSON *answer, struct error *err)
{
	for (int i = 0; i < n; i++) {
		const double start = omp_get_wtime();

		if (iterate(b, err) != OK || settle(b, err) != OK)
			return FAIL;
		cJSON_AddItemToArray(answer, cJSON_CreateNumber(omp_get_wtime() - start));
	}
	return OK;
}

static enum status time_all(struct bench *b, int n, cJSON *answer, struct error *err)
{
	const double start = omp_get_wtime();

	for (int i = 0; i < n; i++)
		if (iterate(b, err) != OK || ((i + 1) % OPTIM_REPORTS == 0 && settle(b, err) != OK))
			return FAIL;
	if (settle(b, err) != OK)
		return FAIL;
	cJSON_AddItemToArray(answer, cJSON_CreateNumber((omp_get_wtime() - start) / n));
	return OK;
}

static enum status time_iterations(struct bench *b, int n, cJSON *answer, struct error *err)
{
	return b->setup.backend.is_async && n > 0 ? time_all(b, n, answer, err)
						  : time_each(b, n, answer, err);
}

/* The sum that is minimised, of the last passes. */
static double total_loss(const struct bench *b)
{
	const struct graph *g = b->training.g;
	double sum = 0;

	for (int i = 0; i < g->n_outputs; i++)
		if (g->outputs[i].is_loss)
			sum += g->outputs[i].loss_weight *
			       program_scalar(b->training.p, g->outputs[i].tensor);
	return sum;
}

static enum status add_losses(struct bench *b, int n, cJSON *answer, struct error *err)
{
	for (int i = 0; i < n; i++) {
		if (iterate(b, err) != OK || settle(b, err) != OK)
			return FAIL;
		cJSON_AddItemToArray(answer, cJSON_CreateNumber(total_loss(b)));
	}
	return OK;
}

/*
 * An asynchronous device gets an instruction several times and is waited for once, so that
 * launches hide behind what runs already.  An instruction shorter than a launch takes as long as
 * one.
 */
static enum status time_step(struct bench *b, int index, double *least, struct error *err)
{
	const int times = b->setup.backend.is_async ? STEPS_TOGETHER : 1;
	const double start = omp_get_wtime();
	double seconds;

	for (int i = 0; i < times; i++)
		program_run_step(b->training.p, index);
	if (b->setup.backend.wait(&b->setup.backend, err) != OK)
		return FAIL;
	seconds = (omp_get_wtime() - start) / times;
	if (seconds < *least)
		*least = seconds;
	return OK;
}

static cJSON *describe_step(const struct program_step *step, double seconds)
{
	cJSON *item = cJSON_CreateObject();

	cJSON_AddStringToObject(item, "op", step->node ? step->node->op->name : "zero");
	cJSON_AddStringToObject(item, "pass", pass_name(step->pass));
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

/* ------------------------------------------------------------------ sharing */

/* Tokens, then targets of every iteration, as 32-bit integers. */
static enum status write_batches(struct bench *b, int n, const char *path, struct error *err)
{
	const size_t count = (size_t)batch_tokens(b);
	FILE *file = fopen(path, "wb");
	bool whole = true;

	if (!file)
		return fail_errno(err, "cannot write %s", path);
	for (int i = 1; i <= n && whole; i++) {
		fill_batch(b, i);
		whole = fwrite(b->tokens, sizeof(*b->tokens), count, file) == count &&
			fwrite(b->targets, sizeof(*b->targets), count, file) == count;
	}
	if (fclose(file) != 0 || !whole)
		return fail_errno(err, "cannot write %s", path);
	return OK;
}

/* What another program needs to train the same model from the same start. */
static enum status share(struct bench *b, int n, const char *directory, cJSON *answer,
			 struct error *err)
{
	char path[MAX_PATH_BYTES];

	snprintf(path, sizeof(path), "%s/batches", directory);
	if (write_batches(b, n, path, err) != OK)
		return FAIL;
	snprintf(path, sizeof(path), "%s/weights.safetensors", directory);
	if (weights_save(b->setup.params, path, NULL, err) != OK)
		return FAIL;
	cJSON_AddItemToArray(answer, cJSON_CreateNumber(n));
	return OK;
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

/* The device's own memory; null: the host's. */
static cJSON *device_memory(const struct backend *backend)
{
	struct backend_memory memory;
	cJSON *json;

	if (!backend->memory)
		return cJSON_CreateNull();
	backend->memory(backend, &memory);
	json = cJSON_CreateObject();
	cJSON_AddNumberToObject(json, "most", memory.most);
	return json;
}

/* Bytes that the ops of an iteration read and write if no op is fused with another. */
static double moved_bytes(const struct graph *g)
{
	double bytes = 0;

	for (int i = 0; i < g->n_nodes; i++) {
		struct op_cost cost = { 0 };

		g->nodes[i]->op->cost(g->nodes[i], &cost);
		bytes += cost.forward_bytes + cost.backward_bytes;
	}
	return bytes;
}

static enum status say_ready(const struct bench *b, struct error *err)
{
	const struct description_options options = {
		.batch = b->setup.train.batch,
		.length = b->workload.length,
	};
	cJSON *json = cJSON_CreateObject();
	struct description d;

	if (describe_model(b->setup.model, &b->setup.backend, &options, &d, err) != OK) {
		cJSON_Delete(json);
		return FAIL;
	}
	cJSON_AddNumberToObject(json, "threads", b->setup.backend.threads);
	cJSON_AddNumberToObject(json, "tokens", (double)(replica_count(b) * batch_tokens(b)));
	cJSON_AddNumberToObject(json, "vocab", (double)b->setup.model->vocab);
	cJSON_AddNumberToObject(json, "parameters", (double)d.parameters);
	cJSON_AddNumberToObject(json, "flops", description_flops(&d) * (double)batch_tokens(b));
	cJSON_AddNumberToObject(json, "bytes", moved_bytes(b->training.g));
	print_line(json);
	return OK;
}

static enum status answer_line(struct bench *b, const char *line, struct error *err)
{
	char directory[MAX_PATH_BYTES];
	cJSON *answer = cJSON_CreateArray();
	enum status status = OK;
	int n;

	if (strcmp(line, "memory\n") == 0)
		cJSON_AddItemToArray(answer, device_memory(&b->setup.backend));
	else if (sscanf(line, "losses %d", &n) == 1)
		status = add_losses(b, n, answer, err);
	else if (sscanf(line, "share %d %" PATH_SCAN "[^\n]", &n, directory) == 2)
		status = share(b, n, directory, answer, err);
	else if (sscanf(line, "profile %d", &n) == 1)
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
	char line[MAX_PATH_BYTES];

	if (say_ready(b, err) != OK)
		return FAIL;
	while (fgets(line, sizeof(line), stdin))
		if (answer_line(b, line, err) != OK)
			return FAIL;
	return OK;
}

/* ----------------------------------------------------------------- decoding */

/* What is measured, and on what. */
static char *decode_record(const struct run_setup *setup)
{
	cJSON *json = cJSON_CreateObject();
	char device[DEVICE_TEXT], *text;

	setup->backend.describe(&setup->backend, device, sizeof(device));
	cJSON_AddStringToObject(json, "backend", setup->backend.name);
	cJSON_AddStringToObject(json, "device", device);
	cJSON_AddStringToObject(json, "precision", precision_names[setup->precision]);
	cJSON_AddNumberToObject(json, "threads", setup->backend.threads);
	text = cJSON_PrintUnformatted(json);
	cJSON_Delete(json);
	return text;
}

static enum status decode(const char *path, struct bench_decode_options *o, struct error *err)
{
	enum status status = FAIL;
	struct config *config;
	struct run_setup setup;
	char *record;

	if (read_config(&config, path, err) != OK ||
	    run_setup_open_config(&setup, config, 1, 0, err) != OK)
		return FAIL;
	o->record = record = decode_record(&setup);
	status = record ? bench_decode(&setup, o, stdout, err) : fail_memory(err, "record", 0);
	cJSON_free(record);
	run_setup_close(&setup);
	return status;
}

/* CONFIG --decode CONTEXTS BATCH SECONDS */
static bool asks_to_decode(int argc, char **argv, struct bench_decode_options *o)
{
	if (argc != 6 || strcmp(argv[2], "--decode") != 0)
		return false;
	*o = (struct bench_decode_options){ .contexts = argv[3],
					    .batch = strtoll(argv[4], NULL, 10),
					    .seconds = strtod(argv[5], NULL) };
	return o->batch > 0 && o->seconds > 0;
}

/* --------------------------------------------------------------------- main */

/* CONFIG --replicas COUNT MEBIBYTES */
static bool asks_for_replicas(int argc, char **argv, struct replica_options *o)
{
	*o = (struct replica_options){ 0 };
	if (argc != 5 || strcmp(argv[2], "--replicas") != 0)
		return false;
	o->count = atoi(argv[3]);
	o->bytes = (size_t)strtoull(argv[4], NULL, 10) << 20;
	return o->count > 0 && o->bytes > 0;
}

static enum status train(const char *path, const struct replica_options *replicas,
			 struct error *err)
{
	struct bench bench;
	enum status status = open_bench(&bench, path, replicas, err);

	if (status == OK)
		status = answer_all(&bench, err);
	close_bench(&bench);
	return status;
}

static const char usage[] =
	"usage: bench_model CONFIG [--decode CONTEXTS BATCH SECONDS]\n"
	"       bench_model CONFIG --replicas COUNT MEBIBYTES\n"
	"\n"
	"The file names every symbol; tools/bench/bench.py writes it and speaks "
	"with this program.\n"
	"--decode measures how long a token takes after so many others.\n"
	"--replicas trains that many runs at once on a GPU, with so much memory for each.\n"
	"\n"
	"Example: echo 10 | bench_model model.symbols\n"
	"Example: echo 100 | bench_model model.symbols --replicas 64 100\n"
	"Example: bench_model model.symbols --decode 1024,4096 1 0.5\n";

int main(int argc, char **argv)
{
	struct bench_decode_options options;
	struct replica_options replicas;
	const bool decodes = asks_to_decode(argc, argv, &options);
	const bool many = asks_for_replicas(argc, argv, &replicas);
	struct error err;
	enum status status;

	if (argc == 2 && strcmp(argv[1], "--help") == 0) {
		fputs(usage, stdout);
		return 0;
	}
	if (argc < 2 || argv[1][0] == '-' || (argc > 2 && !decodes && !many)) {
		fputs(usage, stderr);
		return 2;
	}
	blas_start(argv);
	status = decodes ? decode(argv[1], &options, &err) : train(argv[1], &replicas, &err);
	if (status != OK)
		fprintf(stderr, "bench_model: %s\n", err.text);
	return status == OK ? 0 : 1;
}
