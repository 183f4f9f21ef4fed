/*
 * Runs that train together end as each of them does alone, whatever becomes of the others: one
 * diverges, one cannot write, one uses up its budget, all are interrupted.
 *
 * The workload is one matrix, whose rows and dropout follow from each run's seed.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/backend/open.h"
#include "core/ops/ops.h"
#include "core/train/train.h"
#include "core/util/file.h"
#include "core/util/hash.h"
#include "core/util/test.h"

enum { VOCAB = 5, WIDTH = 4, LENGTH = 6, VALID_ROWS = 3, ITERATIONS = 6, RUNS = 3 };

#define REPLICA_BYTES ((size_t)1 << 20)

/* One of the runs. */
struct one {
	struct group *group;
	uint64_t seed;
	char dir[200], identity[SHA256_HEX_SIZE];
};

struct group {
	struct backend backend;
	struct params *params;
	struct optimizer *optimizer;
	struct trainer *trainer;
	struct train_run runs[RUNS];
	struct one one[RUNS];
	int n;
	struct progress progress;
	struct error err;
	void (*act)(struct group *g, int run); /* happens to the victim at the evaluation of 2 */
	int victim;
	int trained; /* calls of note_trained() */
};

static char place[200];
static FILE *log_file;
static double dropout = 0.1, scale_of_evaluation = 1;

/* ------------------------------------------------------------------ the workload */

static void build(void *context, struct graph *g, int64_t rows, struct token_io *io)
{
	const struct param_init init = { .kind = INIT_NORMAL, .value = 0.5, .embedding = true };
	struct tensor *table = graph_param(g, "table", &init, 2, SHAPE(VOCAB, WIDTH)), *x;
	struct tensor *head = graph_param(g, "head", &init, 2, SHAPE(VOCAB, WIDTH));
	struct head_loss_outputs loss;

	(void)context;
	io->tokens = graph_input(g, "tokens", I32, 2, SHAPE(rows, LENGTH));
	io->targets = graph_input(g, "targets", I32, 2, SHAPE(rows, LENGTH));
	io->weights = graph_input(g, "weights", g->type, 1, SHAPE(2));
	x = op_embedding(g, "x", table, NULL, io->tokens);
	if (g->training)
		x = op_dropout(g, "dropped", x, dropout);
	else
		x = op_scale(g, "scaled", x, scale_of_evaluation);
	loss = op_head_loss(g, "loss", x, head, io->targets, io->weights);
	graph_loss(g, "main", loss.main, 1);
	graph_output(g, "nll", loss.nll);
	graph_output(g, "hit", loss.hit);
	io->nll = loss.nll;
	io->hit = loss.hit;
}

/* Some rows score half of their targets: how many an update scores depends on the run. */
static void fill_row(uint64_t number, int32_t *tokens, int32_t *targets)
{
	for (int i = 0; i < LENGTH; i++) {
		tokens[i] = (int32_t)((number + (uint64_t)i * 3) % VOCAB);
		targets[i] = number % 3 == 0 && i % 2 ? -1 : (2 * tokens[i] + 1) % VOCAB;
	}
}

static int rows_made; /* for training */

static void train_row(void *context, uint64_t iteration, uint64_t row, int32_t *tokens,
		      int32_t *targets)
{
	const struct one *one = context;

#pragma omp atomic
	rows_made++;
	fill_row(one->seed * 1000 + iteration * 100 + row, tokens, targets);
}

static void valid_row(void *context, uint64_t index, struct workload_row *row)
{
	(void)context;
	fill_row(7000 + index, row->tokens, row->targets);
}

static enum status measure(void *context, struct metrics *m, int64_t iteration, struct error *err)
{
	const struct one *one = context;
	struct group *g = one->group;

	(void)m, (void)err;
	if (g->act && iteration == 2 && one == &g->one[g->victim])
		g->act(g, g->victim);
	return OK;
}

/* ------------------------------------------------------------------ the runs */

static struct workload workload_of(struct one *one)
{
	return (struct workload){
		.context = one,
		.length = LENGTH,
		.build = build,
		.train_row = train_row,
		.valid_row = valid_row,
		.valid_rows = VALID_ROWS,
		.layer_prefix = "block.",
		.measure = measure,
	};
}

static void name_run(struct group *g, int i, const char *where, uint64_t seed)
{
	struct one *one = &g->one[i];

	*one = (struct one){ .group = g, .seed = seed };
	snprintf(one->dir, sizeof(one->dir), "%s/%s-%d", place, where, (int)seed);
	snprintf(one->identity, sizeof(one->identity), "%064d", (int)seed);
	mkdir(one->dir, 0777);
	g->runs[i] = (struct train_run){
		.workload = workload_of(one),
		.options = {
			.seed = seed,
			.iterations = ITERATIONS,
			.batch = 4,
			.accumulate = 2,
			.eval_interval = 2,
			.log_interval = 1,
			.checkpoint_interval = 2,
			.checkpoint_keep = 9,
			.save_best = true,
			.schedule = { .kind = SCHEDULE_CONSTANT,
				      .lr = 0.05 * (double)seed,
				      .total = ITERATIONS },
			.run_dir = one->dir,
			.identity = one->identity,
		},
	};
}

static void open_device(struct group *g)
{
	const struct backend_options options = {
		.name = backend_name_for_tests(),
		.precision = FLOAT32,
		.threads = 1,
		.replicas = g->n,
		.replica_bytes = REPLICA_BYTES,
	};
	const struct optim_options optim = {
		.kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1
	};
	struct token_program naming;

	must(backend_open(&g->backend, &options, &g->err), &g->err);
	must(params_create(&g->params, F32, &g->err), &g->err);
	must(workload_open(&naming, &g->runs[0].workload, g->params, 1, &g->backend,
			   &(struct program_options){ .train = true }, &g->err),
	     &g->err);
	token_program_close(&naming);
	must(optimizer_create(&g->optimizer, &optim, g->params, &g->err), &g->err);
}

static void open_record(struct group *g, int i)
{
	const struct metrics_options metrics = {
		.run_dir = g->one[i].dir,
		.record = { .experiment = "e", .step = "0", .identity = g->one[i].identity },
		.warn = progress_warn,
		.warn_context = &g->progress,
	};
	int64_t resume;

	must(trainer_resume(g->trainer, i, &resume, &g->progress, &g->err), &g->err);
	must(metrics_open(&g->runs[i].metrics, &metrics, resume, &g->err), &g->err);
}

/* Runs with the seeds first .. first + n - 1, in directories named after `where`. */
static void open_group(struct group *g, const char *where, uint64_t first, int n)
{
	*g = (struct group){ .n = n };
	for (int i = 0; i < n; i++)
		name_run(g, i, where, first + (uint64_t)i);
	progress_begin(&g->progress, log_file, "test", PROGRESS_LINES, 0);
	open_device(g);
	for (int i = 0; i < n; i++) {
		backend_choose(&g->backend, i);
		must(params_initialise(g->params, g->one[i].seed, &g->err), &g->err);
	}
	backend_choose(&g->backend, REPLICAS_ALL);
}

static void open_trainer(struct group *g)
{
	must(trainer_create(&g->trainer, g->runs, g->n, g->params, g->optimizer, &g->backend,
			    &g->err),
	     &g->err);
}

static void train_group(struct group *g)
{
	open_trainer(g);
	for (int i = 0; i < g->n; i++)
		open_record(g, i);
	must(trainer_run(g->trainer, &g->progress, &g->err), &g->err);
	for (int i = 0; i < g->n; i++)
		must(metrics_commit(g->runs[i].metrics, &g->err), &g->err);
}

static void hash_of(struct group *g, int i, char hex[SHA256_HEX_SIZE])
{
	backend_choose(&g->backend, i);
	must(params_hash(g->params, hex, &g->err), &g->err);
	backend_choose(&g->backend, REPLICAS_ALL);
}

static void close_group(struct group *g)
{
	for (int i = 0; i < g->n; i++)
		metrics_abandon(g->runs[i].metrics);
	trainer_destroy(g->trainer);
	optimizer_destroy(g->optimizer);
	params_destroy(g->params);
	g->backend.close(&g->backend);
}

/* --------------------------------------------------------------- what is compared */

/* The journal without what depends on time and memory. */
static int read_values(const char *dir, char lines[][200], int most)
{
	static const char *const changing[] = { "tokens_per_second", "megabytes",
						"\"kind\":\"start\"" };
	char path[300], line[1024];
	FILE *file;
	int n = 0;

	snprintf(path, sizeof(path), "%s/journal.jsonl", dir);
	file = fopen(path, "r");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file)) {
		const char *value = strstr(line, "\"iteration\"");
		bool skips = !value;

		for (int i = 0; i < 3 && !skips; i++)
			skips = strstr(line, changing[i]);
		if (skips)
			continue;
		assert_true(n < most);
		snprintf(lines[n++], 200, "%.150s", value);
		lines[n - 1][strcspn(lines[n - 1], "}")] = '\0';
		if (strstr(lines[n - 1],
			   ",\"line\"")) /* and its sum: a resumed run has more lines */
			*strstr(lines[n - 1], ",\"line\"") = '\0';
	}
	fclose(file);
	return n;
}

static void assert_same_values(const char *a, const char *b)
{
	static char one[400][200], other[400][200];
	const int n = read_values(a, one, 400);

	assert_int_equal(read_values(b, other, 400), n);
	assert_true(n > ITERATIONS);
	for (int i = 0; i < n; i++)
		assert_string_equal(one[i], other[i]);
}

static void assert_same_file(const char *a, const char *b, const char *name)
{
	char path[300], hex[2][SHA256_HEX_SIZE];
	struct error err;

	snprintf(path, sizeof(path), "%s/%s", a, name);
	must(sha256_file(path, hex[0], &err), &err);
	snprintf(path, sizeof(path), "%s/%s", b, name);
	must(sha256_file(path, hex[1], &err), &err);
	assert_string_equal(hex[0], hex[1]);
}

/* Trains a run alone, once; every test compares with these. */
static const char *alone(uint64_t seed)
{
	static char dirs[RUNS + 1][200];
	struct group g;

	if (dirs[seed][0])
		return dirs[seed];
	open_group(&g, "alone", seed, 1);
	train_group(&g);
	assert_int_equal(g.runs[0].end, TRAIN_DONE);
	snprintf(dirs[seed], sizeof(dirs[seed]), "%s", g.one[0].dir);
	close_group(&g);
	return dirs[seed];
}

static void assert_same_runs(const char *dir, const char *other)
{
	static const char *const files[] = {
		"checkpoint-00000002/weights.safetensors",
		"checkpoint-00000002/optimizer.safetensors",
		"checkpoint-00000006/weights.safetensors",
		"checkpoint-00000006/optimizer.safetensors",
		"best.safetensors",
	};

	for (size_t k = 0; k < sizeof(files) / sizeof(*files); k++)
		assert_same_file(dir, other, files[k]);
	assert_same_values(dir, other);
}

/* The run i of a group ended as it does alone. */
static void assert_as_alone(struct group *g, int i)
{
	assert_int_equal(g->runs[i].end, TRAIN_DONE);
	assert_same_runs(g->one[i].dir, alone(g->one[i].seed));
}

/* --------------------------------------------------------------------- cases */

static void test_together_as_alone(void **state)
{
	char hex[RUNS][SHA256_HEX_SIZE];
	struct group g;

	(void)state;
	open_group(&g, "together", 1, RUNS);
	train_group(&g);
	for (int i = 0; i < RUNS; i++) {
		assert_as_alone(&g, i);
		hash_of(&g, i, hex[i]);
	}
	assert_string_not_equal(hex[0], hex[1]);
	assert_string_not_equal(hex[1], hex[2]);
	close_group(&g);
}

/* With the rows and dropout of another run, but weights and rate of its own. */
static void take_seed(struct group *g, int i, uint64_t seed)
{
	g->one[i].seed = seed;
	g->runs[i].options.seed = seed;
}

static void test_rows_of_a_seed_are_made_once(void **state)
{
	struct group g, single;

	(void)state;
	open_group(&g, "rows", 1, RUNS);
	take_seed(&g, RUNS - 1, 1);
	rows_made = 0;
	train_group(&g);
	assert_int_equal(rows_made, (RUNS - 1) * ITERATIONS * 8);
	open_group(&single, "row", RUNS, 1);
	take_seed(&single, 0, 1);
	train_group(&single);
	assert_as_alone(&g, 0);
	assert_as_alone(&g, 1);
	assert_same_runs(g.one[RUNS - 1].dir, single.one[0].dir);
	close_group(&single);
	close_group(&g);
}

/* The last checkpoint is still to come. */
static void note_trained(void *context)
{
	struct group *g = context;
	char path[300];

	snprintf(path, sizeof(path), "%s/checkpoint-%08d", g->one[0].dir, ITERATIONS);
	assert_int_equal(access(path, F_OK), -1);
	snprintf(path, sizeof(path), "%s/checkpoint-%08d", g->one[0].dir, ITERATIONS - 2);
	assert_int_equal(access(path, F_OK), 0);
	g->trained++;
}

static void test_says_when_only_records_are_left(void **state)
{
	struct group g;

	(void)state;
	open_group(&g, "trained", 1, RUNS);
	g.runs[0].options.trained = note_trained;
	g.runs[0].options.trained_context = &g;
	train_group(&g);
	assert_int_equal(g.trained, 1);
	close_group(&g);
}

/* By run, on its own rows. */
static void compare_programs(double most, double least)
{
	struct first_loss losses[RUNS];
	struct group g;

	dropout = 0;
	open_group(&g, "first", 1, RUNS);
	open_trainer(&g);
	must(trainer_first_loss(g.trainer, losses, &g.err), &g.err);
	for (int i = 0; i < RUNS; i++) {
		assert_true(fabs(losses[i].trained - losses[i].mean) < 1e-5);
		assert_true(losses[i].difference <= most && losses[i].difference >= least);
	}
	assert_true(losses[0].trained != losses[1].trained);
	close_group(&g);
	dropout = 0.1;
}

static void test_the_first_losses_of_both_programs(void **state)
{
	(void)state;
	compare_programs(1e-5, 0);
	scale_of_evaluation = 1.1;
	compare_programs(INFINITY, 1e-3);
	scale_of_evaluation = 1;
}

/* The update after it is not finite. */
static void poison(struct group *g, int run)
{
	double values[VOCAB * WIDTH] = { 0 };

	(void)run; /* it is the chosen replica */
	values[3] = INFINITY;
	must(param_set(g->params, params_find(g->params, "head"), values, &g->err), &g->err);
}

static void test_a_divergence_is_its_own(void **state)
{
	struct group g;

	(void)state;
	open_group(&g, "divergence", 1, RUNS);
	g.victim = 1;
	g.act = poison;
	train_group(&g);
	assert_int_equal(g.runs[1].end, TRAIN_DIVERGED);
	assert_non_null(strstr(g.runs[1].reason.text, "diverged in iteration 3: "));
	assert_non_null(strstr(g.runs[1].reason.text, "head"));
	assert_as_alone(&g, 0);
	assert_as_alone(&g, 2);
	close_group(&g);
}

/* A file where its checkpoints are written: none can be saved. */
static void block(struct group *g, int run)
{
	char path[300];
	FILE *file;

	snprintf(path, sizeof(path), "%s/saving", g->one[run].dir);
	file = fopen(path, "w");
	assert_non_null(file);
	fclose(file);
}

static void test_a_disk_that_fails_ends_one_run(void **state)
{
	struct group g;

	(void)state;
	open_group(&g, "disk", 1, RUNS);
	g.victim = 2;
	g.act = block;
	train_group(&g);
	assert_int_equal(g.runs[2].end, TRAIN_FAILED);
	assert_non_null(strstr(g.runs[2].reason.text, "was not saved"));
	assert_as_alone(&g, 0);
	assert_as_alone(&g, 1);
	close_group(&g);
}

static void test_a_budget_ends_one_run(void **state)
{
	struct group g;

	(void)state;
	open_group(&g, "budget", 1, RUNS);
	g.runs[0].options.tokens_budget = 3 * 8 * LENGTH;
	train_group(&g);
	assert_int_equal(g.runs[0].end, TRAIN_BUDGET);
	assert_as_alone(&g, 1);
	assert_as_alone(&g, 2);
	close_group(&g);
}

static void remove_after(const struct group *g, int i, int iteration)
{
	char path[300];

	for (int k = iteration + 1; k <= ITERATIONS; k++) {
		snprintf(path, sizeof(path), "%s/checkpoint-%08d", g->one[i].dir, k);
		if (access(path, F_OK) == 0)
			assert_int_equal(test_remove(path), 0);
	}
}

/* As after a kill: the runs go on from their checkpoints, one without the others, and end alike. */
static void test_a_group_goes_on(void **state)
{
	struct group g;

	(void)state;
	open_group(&g, "resumed", 1, RUNS);
	train_group(&g);
	for (int i = 0; i < RUNS; i++)
		remove_after(&g, i, 2);
	close_group(&g);
	open_group(&g, "resumed", 1, 2);
	train_group(&g);
	assert_as_alone(&g, 0);
	assert_as_alone(&g, 1);
	close_group(&g);
	open_group(&g, "resumed", RUNS, 1);
	train_group(&g);
	assert_as_alone(&g, 0);
	close_group(&g);
}

static int set_up(void **state)
{
	(void)state;
	test_template(place, sizeof(place), "group");
	log_file = tmpfile();
	return mkdtemp(place) && log_file ? 0 : -1;
}

static int tear_down(void **state)
{
	(void)state;
	fclose(log_file);
	return test_remove(place);
}

/* What a device can never run is not registered. */
static void test_an_ordinary_device_has_no_replicas(void **state)
{
	const struct backend_options options = { .name = "cpu", .threads = 1, .replicas = 2 };
	struct backend b;
	struct error err;

	(void)state;
	assert_int_equal(backend_open(&b, &options, &err), FAIL);
	assert_non_null(strstr(err.text, "replicas"));
}

int main(void)
{
	const struct CMUnitTest cpu[] = {
		cmocka_unit_test(test_an_ordinary_device_has_no_replicas),
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_together_as_alone),
		cmocka_unit_test(test_rows_of_a_seed_are_made_once),
		cmocka_unit_test(test_says_when_only_records_are_left),
		cmocka_unit_test(test_the_first_losses_of_both_programs),
		cmocka_unit_test(test_a_divergence_is_its_own),
		cmocka_unit_test(test_a_disk_that_fails_ends_one_run),
		cmocka_unit_test(test_a_budget_ends_one_run),
		cmocka_unit_test(test_a_group_goes_on),
	};

	if (strcmp(backend_name_for_tests(), "cpu") == 0)
		return cmocka_run_group_tests_name("group", cpu, NULL, NULL);
	return cmocka_run_group_tests_name("group", tests, set_up, tear_down);
}
