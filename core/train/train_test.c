/*
 * The training loop on a workload of one matrix: predict the next of a few tokens.
 *
 * Signals, damage and divergence are made by the workload itself, in the
 * middle of a chosen iteration.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/backend/cpu/cpu.h"
#include "core/engine/backend.h"
#include "core/util/config.h"
#include "core/util/hash.h"
#include "core/ops/ops.h"
#include "core/util/signals.h"
#include "core/util/test.h"
#include "core/train/train.h"

#define IDENTITY "abc0000000000000000000000000000000000000000000000000000000000000"

enum { VOCAB = 5, WIDTH = 4, LENGTH = 6, VALID_ROWS = 3, ITERATIONS = 12, LAYER = 200 };

struct fixture {
	char dir[200];
	struct backend backend;
	struct params *params;
	struct optimizer *optimizer;
	struct trainer *trainer;
	struct train_run run;
	struct progress progress;
	FILE *log;
	struct train_options options;
	struct optim_options optim;
	struct config *config; /* NULL: updates are not audited */
	bool forgets;	       /* moments, when it goes on */
	uint64_t act_at;       /* iteration whose first row runs `act` */
	void (*act)(struct fixture *f);
	float floor;		  /* of every validation target; 0: unknown */
	bool evaluates_otherwise; /* than it trains */
	bool changing;		  /* every second time that all validation rows are asked for */
	int times;		  /* that one was */
	bool spoils;		  /* weights, when validation rows are asked for */
	uint64_t shift;		  /* of training rows */
	struct error err;
};

/* ------------------------------------------------------------------ the workload */

static void build(void *context, struct graph *g, int64_t rows, struct token_io *io)
{
	const struct param_init init = { .kind = INIT_NORMAL, .value = 0.5, .embedding = true };
	const struct param_init matrix = { .kind = INIT_NORMAL, .value = 0.5 };
	struct tensor *table = graph_param(g, "table", &init, 2, SHAPE(VOCAB, WIDTH));
	const struct fixture *f = context;
	struct head_loss_outputs loss;
	struct tensor *head, *x;

	graph_origin(g, LAYER, 0);
	head = graph_param(g, "head", &matrix, 2, SHAPE(VOCAB, WIDTH));
	graph_origin(g, -1, 0);
	io->tokens = graph_input(g, "tokens", I32, 2, SHAPE(rows, LENGTH));
	io->targets = graph_input(g, "targets", I32, 2, SHAPE(rows, LENGTH));
	io->weights = graph_input(g, "weights", g->type, 1, SHAPE(2));
	x = op_embedding(g, "x", table, NULL, io->tokens);
	if (f->evaluates_otherwise && !g->training)
		x = op_scale(g, "larger", x, 1.001);
	loss = op_head_loss(g, "loss", x, head, io->targets, io->weights);
	graph_loss(g, "main", loss.main, 1);
	graph_output(g, "nll", loss.nll);
	graph_output(g, "hit", loss.hit);
	io->nll = loss.nll;
	io->hit = loss.hit;
}

/* Token t is followed by 2 t + 1; every third row scores half of its targets only. */
static void fill_row(uint64_t number, int32_t *tokens, int32_t *targets)
{
	for (int i = 0; i < LENGTH; i++) {
		tokens[i] = (int32_t)((number + (uint64_t)i * 3) % VOCAB);
		targets[i] = number % 3 == 0 && i % 2 ? -1 : (2 * tokens[i] + 1) % VOCAB;
	}
}

static void train_row(void *context, uint64_t iteration, uint64_t row, int32_t *tokens,
		      int32_t *targets)
{
	struct fixture *f = context;

	if (iteration == f->act_at && row == 0 && f->act)
		f->act(f);
	fill_row(iteration * 100 + row + f->shift, tokens, targets);
}

static void valid_row(void *context, uint64_t index, struct workload_row *row)
{
	struct fixture *f = context;

	fill_row(7000 + index, row->tokens, row->targets);
	/* A run of the evaluation asks for all rows, and for all of them once more. */
	if (f->changing && f->times++ / VALID_ROWS % 2)
		row->targets[LENGTH - 1] = -1;
	if (f->spoils)
		((double *)f->params->data)[0] += 1;
	for (int i = 0; i < LENGTH && f->floor > 0; i++)
		row->floor[i] = f->floor;
}

/* ------------------------------------------------------------------ the run */

static void forget_moments(struct fixture *f)
{
	const struct optim_tensor *tensors;
	int n;

	tensors = optimizer_tensors(f->optimizer, &n);
	for (int i = 0; i < n; i++)
		f->backend.zero(&f->backend, tensors[i].data,
				(size_t)tensors[i].param->count * sizeof(double));
}

/* Parameters, optimizer, trainer and record as at the start of a process. */
static void open_run(struct fixture *f)
{
	const struct workload workload = {
		.context = f,
		.length = LENGTH,
		.build = build,
		.train_row = train_row,
		.valid_row = valid_row,
		.valid_rows = VALID_ROWS,
		.layer_prefix = "block.",
	};
	const struct metrics_options metrics = {
		.run_dir = f->dir,
		.record = { .experiment = "e", .step = "0", .identity = IDENTITY },
		.warn = progress_warn,
		.warn_context = &f->progress,
	};
	struct token_program naming;
	int64_t resume;

	must(params_create(&f->params, F64, &f->err), &f->err);
	must(workload_open(&naming, &workload, f->params, 1, &f->backend,
			   &(struct program_options){ .train = true }, &f->err),
	     &f->err);
	token_program_close(&naming);
	must(params_initialise(f->params, f->options.seed, &f->err), &f->err);
	must(optimizer_create(&f->optimizer, &f->optim, f->params, &f->err), &f->err);
	f->run = (struct train_run){ .workload = workload, .options = f->options };
	must(trainer_create(&f->trainer, &f->run, 1, f->params, f->optimizer, &f->backend, &f->err),
	     &f->err);
	must(trainer_resume(f->trainer, 0, &resume, &f->progress, &f->err), &f->err);
	if (resume > 0 && f->forgets)
		forget_moments(f);
	must(metrics_open(&f->run.metrics, &metrics, resume, &f->err), &f->err);
}

static void close_run(struct fixture *f)
{
	metrics_abandon(f->run.metrics);
	trainer_destroy(f->trainer);
	optimizer_destroy(f->optimizer);
	params_destroy(f->params);
	f->run.metrics = NULL;
	f->trainer = NULL;
	f->optimizer = NULL;
	f->params = NULL;
}

static void run(struct fixture *f)
{
	must(trainer_run(f->trainer, &f->progress, &f->err), &f->err);
}

static void hash(struct fixture *f, char hex[SHA256_HEX_SIZE])
{
	must(params_hash(f->params, hex, &f->err), &f->err);
}

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	*state = f;
	test_template(f->dir, sizeof(f->dir), "train");
	f->log = tmpfile();
	if (!mkdtemp(f->dir) || !f->log)
		return -1;
	progress_begin(&f->progress, f->log, "test", PROGRESS_LINES, 0);
	f->backend = backend_cpu(1);
	f->options = (struct train_options){
		.seed = 1,
		.iterations = ITERATIONS,
		.batch = 4,
		.accumulate = 1,
		.eval_interval = 5,
		.log_interval = 1,
		.checkpoint_interval = 4,
		.checkpoint_keep = 9,
		.schedule = { .kind = SCHEDULE_CONSTANT, .lr = 0.05, .total = ITERATIONS },
		.run_dir = f->dir,
		.identity = IDENTITY,
	};
	f->optim = (struct optim_options){
		.kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1
	};
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;
	const int result = test_remove(f->dir);

	close_run(f);
	config_free(f->config);
	fclose(f->log);
	free(f);
	return result;
}

/* ------------------------------------------------------------------ questions */

static bool has_checkpoint(const struct fixture *f, int iteration)
{
	char path[300];

	snprintf(path, sizeof(path), "%s/checkpoint-%08d/state.json", f->dir, iteration);
	return access(path, F_OK) == 0;
}

/* How often the journal has this name and iteration; the last value is kept. */
static int told(const struct fixture *f, const char *name, int64_t iteration, double *value)
{
	char path[300], line[1024], wanted[200];
	const char *found;
	int count = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/journal.jsonl", f->dir);
	snprintf(wanted, sizeof(wanted), "\"iteration\":%lld,\"name\":\"%s\"", (long long)iteration,
		 name);
	file = fopen(path, "r");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file)) {
		if (!strstr(line, wanted))
			continue;
		count++;
		found = strstr(line, "\"value\":");
		if (found && value)
			*value = strtod(found + strlen("\"value\":"), NULL);
	}
	fclose(file);
	return count;
}

/* --------------------------------------------------------------------- cases */

static void test_it_learns_and_records(void **state)
{
	struct fixture *f = *state;
	double first = NAN, last = NAN;

	open_run(f);
	run(f);
	assert_int_equal(f->run.end, TRAIN_DONE);
	for (int i = 0; i <= ITERATIONS; i++) {
		assert_int_equal(told(f, "train/loss", i, NULL), i > 0);
		assert_int_equal(told(f, "val/loss", i, NULL), i % 5 == 0 || i == ITERATIONS);
		assert_int_equal(has_checkpoint(f, i), i > 0 && i % 4 == 0);
	}
	assert_int_equal(told(f, "val/loss", 0, &first), 1);
	assert_int_equal(told(f, "val/loss", ITERATIONS, &last), 1);
	assert_true(last < 0.9 * first);
}

/* One parameter is in a layer, the other in none. */
static void test_gradients_by_layer(void **state)
{
	struct fixture *f = *state;
	double all = NAN, layer = NAN, other = NAN;

	open_run(f);
	run(f);
	assert_int_equal(told(f, "grad_norm", 5, &all), 1);
	assert_int_equal(told(f, "grad_norm/block.200", 5, &layer), 1);
	assert_int_equal(told(f, "grad_norm/other", 5, &other), 1);
	assert_int_equal(told(f, "grad_norm/block.0", 5, NULL), 0);
	assert_true(layer > 0 && other > 0);
	assert_true(fabs(hypot(layer, other) - all) < 1e-6 * all);
}

/* Killed after any iteration, and resumed: the same weights as in one go. */
static void resume_from_every_checkpoint(struct fixture *f)
{
	char straight[SHA256_HEX_SIZE], resumed[SHA256_HEX_SIZE], path[300];

	f->options.checkpoint_interval = 1;
	f->options.checkpoint_keep = 100;
	open_run(f);
	run(f);
	hash(f, straight);
	for (int last = ITERATIONS; last >= 1; last--) {
		close_run(f);
		open_run(f);
		run(f);
		assert_int_equal(f->run.end, TRAIN_DONE);
		hash(f, resumed);
		assert_string_equal(resumed, straight);
		for (int i = 1; i <= ITERATIONS; i++) {
			assert_int_equal(told(f, "train/loss", i, NULL), 1);
			if (i >= last) {
				snprintf(path, sizeof(path), "%s/checkpoint-%08d", f->dir, i);
				assert_int_equal(test_remove(path), 0);
			}
		}
	}
}

static void test_resumed_from_every_checkpoint(void **state)
{
	resume_from_every_checkpoint(*state);
}

/* Chosen before updates 3, 6, 9 and 10: what is pruned is in the checkpoints. */
static void prune(struct fixture *f, enum prune_method method)
{
	f->options.prune = (struct prune_options){
		.method = method, .scope = PRUNE_TENSOR, .sparsity = 0.75, .last = 10, .interval = 3
	};
	f->optim.prune.on = true;
	f->optim.prune.movement = method == PRUNE_MOVEMENT;
}

static void test_resumed_when_pruned(void **state)
{
	struct fixture *f = *state;

	for (int method = PRUNE_MAGNITUDE; method <= PRUNE_SECOND_MOMENT; method++) {
		double sparsity = NAN, bytes = NAN;

		prune(f, (enum prune_method)method);
		resume_from_every_checkpoint(f);
		/* Of the head's 20 weights, 9.9 and 15 are pruned; the table's 20 are not. */
		assert_int_equal(told(f, "sparsity", 5, &sparsity), 1);
		assert_true(sparsity == 10 / 20.0);
		assert_int_equal(told(f, "sparsity", 12, &sparsity), 1);
		assert_true(sparsity == 15 / 20.0);
		assert_int_equal(told(f, "compressed_bytes", 12, &bytes), 1);
		assert_true(bytes == 4 * (20 + 5) + 20 / 8.0);
		close_run(f);
		test_remove(f->dir);
		assert_int_equal(mkdir(f->dir, 0777), 0);
	}
	open_run(f); /* for tear_down() */
}

/* Killed after it saved the last checkpoint, and before it removed old ones. */
static void test_resumed_before_pruning(void **state)
{
	struct fixture *f = *state;

	f->options.checkpoint_interval = 1;
	open_run(f);
	run(f);
	assert_true(has_checkpoint(f, ITERATIONS - 2));
	close_run(f);
	f->options.checkpoint_keep = 2;
	open_run(f);
	run(f);
	for (int i = 1; i <= ITERATIONS; i++)
		assert_int_equal(has_checkpoint(f, i), i > ITERATIONS - 2);
}

static void ask_for_checkpoint(struct fixture *f)
{
	(void)f;
	raise(SIGUSR2);
}

static void test_a_checkpoint_on_demand(void **state)
{
	struct fixture *f = *state;

	f->options.checkpoint_interval = 0;
	f->act_at = 6;
	f->act = ask_for_checkpoint;
	signals_install();
	open_run(f);
	run(f);
	for (int i = 0; i <= ITERATIONS; i++)
		assert_int_equal(has_checkpoint(f, i), i == 6 || i == ITERATIONS);
}

/* The loss is a mean over the update's scored targets; a mean of micro-batches would differ. */
static void test_micro_batches_add_up(void **state)
{
	struct fixture *f = *state;
	double whole = NAN, parts = NAN;

	f->options.batch = 6;
	open_run(f);
	run(f);
	assert_int_equal(told(f, "train/loss", ITERATIONS, &whole), 1);
	close_run(f);
	assert_int_equal(test_remove(f->dir), 0);
	assert_int_equal(mkdir(f->dir, 0777), 0);
	f->options.batch = 2;
	f->options.accumulate = 3;
	open_run(f);
	run(f);
	assert_int_equal(told(f, "train/loss", ITERATIONS, &parts), 1);
	assert_true(fabs(parts - whole) < 1e-12); /* measured: 2e-16 */
}

static void poison(struct fixture *f)
{
	double values[VOCAB * WIDTH] = { 0 };

	values[3] = INFINITY;
	must(param_set(f->params, params_find(f->params, "head"), values, &f->err), &f->err);
}

static void check_divergence(struct fixture *f, const char *where, int checkpoint)
{
	open_run(f);
	run(f);
	assert_int_equal(f->run.end, TRAIN_DIVERGED);
	assert_non_null(strstr(f->run.reason.text, "diverged in iteration "));
	assert_non_null(strstr(f->run.reason.text, where));
	for (int i = 0; i <= ITERATIONS; i++)
		assert_int_equal(has_checkpoint(f, i), i > 0 && i <= checkpoint && i % 4 == 0);
}

static void test_divergence_names_iteration_and_tensor(void **state)
{
	struct fixture *f = *state;

	f->act_at = 7;
	f->act = poison;
	check_divergence(f, "diverged in iteration 7: ", 4);
	assert_non_null(strstr(f->run.reason.text, "head"));
	assert_int_equal(told(f, "diverged", 7, NULL), 1);
}

static void test_divergence_found_by_the_check(void **state)
{
	struct fixture *f = *state;

	f->options.program.check_nan = true;
	test_divergence_names_iteration_and_tensor(state);
	assert_int_equal(told(f, "train/loss", 6, NULL), 1);
}

/* Reads the outcome of updates as rarely as it may, as from a device that lags behind the host. */
static void lag(struct fixture *f)
{
	f->backend.is_async = true;
	f->options.log_interval = f->options.eval_interval = 100;
	f->options.checkpoint_interval = 0;
}

static void test_a_device_that_lags_ends_with_the_same_weights(void **state)
{
	struct fixture *f = *state;
	char prompt[SHA256_HEX_SIZE], late[SHA256_HEX_SIZE];
	double expected = NAN, loss = NAN;

	open_run(f);
	run(f);
	hash(f, prompt);
	assert_int_equal(told(f, "train/loss", ITERATIONS, &expected), 1);
	close_run(f);
	assert_int_equal(test_remove(f->dir), 0);
	assert_int_equal(mkdir(f->dir, 0777), 0);
	lag(f);
	open_run(f);
	run(f);
	assert_int_equal(f->run.end, TRAIN_DONE);
	hash(f, late);
	assert_string_equal(late, prompt);
	assert_int_equal(told(f, "train/loss", ITERATIONS, &loss), 1);
	assert_true(loss == expected);
	assert_int_equal(told(f, "train/loss", ITERATIONS - 1, NULL), 0);
}

/* The updates issued after the one that was not finite leave no trace. */
static void test_a_device_that_lags_diverges_in_the_same_iteration(void **state)
{
	struct fixture *f = *state;

	lag(f);
	f->act_at = 7;
	f->act = poison;
	check_divergence(f, "diverged in iteration 7: ", 0);
	assert_non_null(strstr(f->run.reason.text, "head"));
	assert_int_equal(told(f, "diverged", 7, NULL), 1);
}

static void test_a_device_that_lags_saves_on_demand(void **state)
{
	struct fixture *f = *state;

	lag(f);
	f->act_at = 6;
	f->act = ask_for_checkpoint;
	signals_install();
	open_run(f);
	run(f);
	for (int i = 0; i <= ITERATIONS; i++)
		assert_int_equal(has_checkpoint(f, i), i == 6 || i == ITERATIONS);
}

static enum status broken(const struct backend *b, struct error *err)
{
	(void)b;
	return fail(err, "the device is gone");
}

static void break_device(struct fixture *f)
{
	f->backend.check = broken;
}

/* A device that fails ends the run with its own words; the run can go on later. */
static void test_a_failed_device_is_no_divergence(void **state)
{
	struct fixture *f = *state;

	f->act_at = 7;
	f->act = break_device;
	open_run(f);
	assert_int_equal(trainer_run(f->trainer, &f->progress, &f->err), FAIL);
	assert_string_equal(f->err.text, "the device is gone");
	assert_int_equal(told(f, "diverged", 7, NULL), 0);
	assert_true(has_checkpoint(f, 4));
}

/* Finite but huge weights: the evaluation fails, and no checkpoint is saved. */
static void test_divergence_in_an_evaluation(void **state)
{
	struct fixture *f = *state;

	f->options.schedule.lr = 1e300;
	f->options.checkpoint_interval = 1;
	f->options.eval_interval = 1;
	check_divergence(f, "diverged in iteration 1: the validation loss", 0);
	close_run(f);
	f->options.program.check_nan = true;
	check_divergence(f, "diverged in iteration 1: ", 0);
}

/* A loss that no model can have is no success. */
static void test_a_loss_below_the_floor(void **state)
{
	struct fixture *f = *state;

	f->floor = 1000;
	open_run(f);
	run(f);
	assert_int_equal(f->run.end, TRAIN_DONE); /* no stop was requested */
	close_run(f);
	assert_int_equal(test_remove(f->dir), 0);
	assert_int_equal(mkdir(f->dir, 0777), 0);
	f->options.check_floor = true;
	open_run(f);
	run(f);
	assert_int_equal(f->run.end, TRAIN_INVALID);
	assert_non_null(strstr(f->run.reason.text, "no model can have less than 1000.0000"));
	assert_int_equal(told(f, "train/loss", 1, NULL), 0);
}

static void test_a_loss_above_the_floor(void **state)
{
	struct fixture *f = *state;

	f->floor = 0.001f;
	f->options.check_floor = true;
	open_run(f);
	run(f);
	assert_int_equal(f->run.end, TRAIN_DONE);
}

/* Some rows score half of their targets: they must not be averaged over all. */
static void test_the_first_loss(void **state)
{
	struct fixture *f = *state;
	struct first_loss loss;

	f->options.accumulate = 3;
	open_run(f);
	must(trainer_first_loss(f->trainer, &loss, &f->err), &f->err);
	assert_true(loss.mean > 0);
	assert_true(fabs(loss.trained - loss.mean) < 1e-12 * loss.mean);
}

/* What is scored alike by the programs of training and evaluation, and what is not. */
static void test_the_first_losses_of_both_programs(void **state)
{
	struct fixture *f = *state;
	struct first_loss loss;

	f->options.accumulate = 3;
	for (int otherwise = 0; otherwise < 2; otherwise++) {
		f->evaluates_otherwise = otherwise;
		open_run(f);
		must(trainer_first_loss(f->trainer, &loss, &f->err), &f->err);
		assert_true(otherwise ? loss.difference > 1e-5 : loss.difference < 1e-12);
		close_run(f);
	}
}

/* They leave the training as it is. */
static void test_the_first_losses_change_nothing(void **state)
{
	struct fixture *f = *state;
	char without[SHA256_HEX_SIZE], with[SHA256_HEX_SIZE];
	struct first_loss loss;

	open_run(f);
	run(f);
	hash(f, without);
	close_run(f);
	test_remove(f->dir);
	assert_int_equal(mkdir(f->dir, 0777), 0);
	open_run(f);
	must(trainer_first_loss(f->trainer, &loss, &f->err), &f->err);
	run(f);
	hash(f, with);
	assert_string_equal(without, with);
}

static void test_a_budget_of_tokens(void **state)
{
	struct fixture *f = *state;

	f->options.tokens_budget = 7 * 4 * LENGTH;
	open_run(f);
	run(f);
	assert_int_equal(f->run.end, TRAIN_BUDGET);
	assert_int_equal(told(f, "train/loss", 7, NULL), 1);
	assert_int_equal(told(f, "train/loss", 8, NULL), 0);
	assert_int_equal(told(f, "val/loss", 7, NULL), 1);
	assert_true(has_checkpoint(f, 7));
}

static void take_time(struct fixture *f)
{
	(void)f;
	nanosleep(&(struct timespec){ .tv_sec = 3 }, NULL);
}

/* The checkpoint at 4 used 3 of 5 seconds, or a little more on a slow disk; the resumed run has 2
 * left. */
static void test_a_budget_of_time_goes_on_after_a_pause(void **state)
{
	struct fixture *f = *state;

	f->options.seconds_budget = 5;
	f->act = take_time;
	f->act_at = 2;
	f->options.iterations = 4;
	open_run(f);
	run(f);
	assert_int_equal(f->run.end, TRAIN_DONE);
	close_run(f);
	f->options.iterations = ITERATIONS;
	f->act_at = 6;
	open_run(f);
	run(f);
	assert_int_equal(f->run.end, TRAIN_BUDGET);
	assert_int_equal(told(f, "train/loss", 6, NULL), 1);
	assert_int_equal(told(f, "train/loss", 7, NULL), 0);
}

static void test_the_estimate_changes_nothing(void **state)
{
	struct fixture *f = *state;
	char before[SHA256_HEX_SIZE], after[SHA256_HEX_SIZE];
	double seconds = -1;

	open_run(f);
	hash(f, before);
	must(trainer_estimate(f->trainer, &seconds, &f->err), &f->err);
	assert_true(seconds >= 0);
	hash(f, after);
	assert_string_equal(after, before);
}

/* ------------------------------------------------------------ audited updates */

#define CONFIGURED                                                                                 \
	"CONFIG_TRAIN_BATCH=4\nCONFIG_TRAIN_ACCUMULATE=2\nCONFIG_EVAL_ROWS=3\n"                    \
	"CONFIG_LEARNING_RATE=\"0.05\"\nCONFIG_SCHEDULE=\"cosine\"\n"                              \
	"CONFIG_MIN_LEARNING_RATE=\"0.01\"\nCONFIG_WARMUP_ITERS=3\nCONFIG_GPT2_MAX_ITERS=12\n"     \
	"CONFIG_WEIGHT_DECAY=\"0.1\"\nCONFIG_DECAY_GROUP=\"matrices\"\nCONFIG_GRAD_CLIP=\"0.2\"\n" \
	"CONFIG_BETA1=\"0.9\"\nCONFIG_BETA2=\"0.95\"\nCONFIG_OPTIMIZER_EPS=\"1e-8\"\n"             \
	"CONFIG_SGD_MOMENTUM=\"0.9\"\nCONFIG_SPAM_THETA=\"1.0\"\nCONFIG_SPAM_SPIKE=\"0.5\"\n"      \
	"CONFIG_SPAM_INTERVAL=5\nCONFIG_SPAM_WARMUP=3\nCONFIG_SPAM_CLIP_ELEMENTS=y\n"              \
	"CONFIG_MUON_LEARNING_RATE=\"0.1\"\nCONFIG_MUON_MOMENTUM=\"0.95\"\n"                       \
	"CONFIG_MUON_EPS=\"1e-7\"\nCONFIG_MUON_STEPS=5\nCONFIG_MUON_NESTEROV=y\n"                  \
	"CONFIG_MUON_ADJUST=\"original\"\n"

/* The same as options. */
static void configure(struct fixture *f, const char *optimizer)
{
	char text[2000];

	snprintf(text, sizeof(text), CONFIGURED "CONFIG_OPTIMIZER=\"%s\"\n", optimizer);
	config_free(f->config);
	must(config_parse(&f->config, text, &f->err), &f->err);
	f->options.audited = f->config;
	f->options.scoring_tolerance = 1e-10;
	f->options.accumulate = 2;
	f->options.schedule = schedule_configured(f->config);
	f->optim = optim_configured(f->config);
}

static void test_every_optimizer_passes_its_audit(void **state)
{
	struct fixture *f = *state;

	for (const char *const *name = optim_names; *name; name++) {
		configure(f, *name);
		open_run(f);
		run(f);
		if (f->run.end != TRAIN_DONE)
			fail_msg("%s: %s", *name, f->run.reason.text);
		if (name[1]) {
			close_run(f);
			test_remove(f->dir);
			assert_int_equal(mkdir(f->dir, 0777), 0);
		}
	}
}

/* The run stops as invalid, and the reason has these words. */
static void expect_stop(struct fixture *f, const char *words)
{
	open_run(f);
	run(f);
	if (f->run.end != TRAIN_INVALID || !strstr(f->run.reason.text, words))
		fail_msg("ended as %d: %s", (int)f->run.end, f->run.reason.text);
}

/* As prune() says. */
static void configure_pruning(struct fixture *f, const char *method, const char *scope)
{
	const char *symbols[][2] = { { "PRUNE", method },	   { "PRUNE_SCOPE", scope },
				     { "PRUNE_SPARSITY", "0.75" }, { "PRUNE_START", "0" },
				     { "PRUNE_END", "84" },	   { "PRUNE_INTERVAL", "3" } };

	configure(f, "adamw");
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++)
		must(config_set(f->config, symbols[i][0], symbols[i][1], &f->err), &f->err);
}

static void test_pruning_passes_its_audit(void **state)
{
	struct fixture *f = *state;

	configure_pruning(f, "movement", "tensor");
	prune(f, PRUNE_MOVEMENT);
	open_run(f);
	run(f);
	if (f->run.end != TRAIN_DONE)
		fail_msg("%s", f->run.reason.text);
}

static void test_another_schedule_of_pruning(void **state)
{
	struct fixture *f = *state;

	configure_pruning(f, "magnitude", "tensor");
	prune(f, PRUNE_MAGNITUDE);
	f->options.prune.last++;
	expect_stop(f, "audit update FAILED: head: after update 3 9 of 20 weights are pruned; the "
		       "configured schedule makes it 9.9");
}

static void test_pruning_that_is_configured_and_not_done(void **state)
{
	struct fixture *f = *state;

	configure_pruning(f, "magnitude", "global");
	prune(f, PRUNE_MAGNITUDE);
	f->options.prune.method = PRUNE_NONE;
	expect_stop(f, "audit update FAILED: the model: after update 3 0 of 20 weights are pruned");
}

/* Not by core/train/prune.c: by tensor, and in no order. */
static void test_pruning_that_is_not_two_of_four(void **state)
{
	struct fixture *f = *state;

	configure_pruning(f, "magnitude", "2of4");
	must(config_set(f->config, "PRUNE_SPARSITY", "0.5", &f->err), &f->err);
	prune(f, PRUNE_MAGNITUDE);
	f->options.prune.sparsity = 0.5;
	expect_stop(f, "of the four weights from element");
}

static void test_another_rate(void **state)
{
	struct fixture *f = *state;

	configure(f, "adamw");
	f->options.schedule.lr *= 1.5;
	expect_stop(f, "audit update FAILED: table: after update 1 the weight of element 0 is");
}

static void test_another_decay(void **state)
{
	struct fixture *f = *state;

	configure(f, "sgd");
	f->optim.decay_all = true;
	expect_stop(f, "audit update FAILED: table: after update 1 the weight");
}

static void test_other_clipping(void **state)
{
	struct fixture *f = *state;

	configure(f, "muon");
	f->optim.clip = 0;
	expect_stop(f, "the first moment of element 0");
}

static void test_another_rate_of_matrices(void **state)
{
	struct fixture *f = *state;

	configure(f, "muon");
	f->optim.muon.lr_ratio *= 1.5;
	expect_stop(f, "audit update FAILED: head: after update 1 the weight");
}

static void test_a_forgotten_micro_batch(void **state)
{
	struct fixture *f = *state;

	configure(f, "adamw");
	f->options.accumulate = 1;
	expect_stop(f, "those of its 2 micro-batches add up to");
}

static void test_validation_rows_that_are_missing(void **state)
{
	struct fixture *f = *state;

	configure(f, "adamw");
	must(config_set(f->config, "EVAL_ROWS", "6", &f->err), &f->err);
	expect_stop(f, "validation: 3 of 6 rows were evaluated");
}

/* The rows are the same when they are uploaded, and others when the losses are added up again. */
static void test_a_loss_that_is_not_the_mean(void **state)
{
	struct fixture *f = *state;

	configure(f, "adamw");
	f->changing = true;
	expect_stop(f, "audit update FAILED: validation: a loss of");
}

static void test_an_evaluation_by_another_program(void **state)
{
	struct fixture *f = *state;

	configure(f, "adamw");
	f->evaluates_otherwise = true;
	expect_stop(f, "validation: the program that trains scores a target of its last rows");
}

static void test_an_evaluation_that_changes_weights(void **state)
{
	struct fixture *f = *state;

	configure(f, "adamw");
	f->options.scoring_tolerance = 0; /* which would see it too */
	f->spoils = true;
	expect_stop(f, "unchanged: after update 5, evaluation, records or checkpoint changed");
}

static void raise_the_rate(struct fixture *f)
{
	f->run.options.schedule.lr *= 1.5;
}

static void test_another_rate_between_logs(void **state)
{
	struct fixture *f = *state;

	configure(f, "adamw");
	f->options.log_interval = ITERATIONS;
	f->act = raise_the_rate;
	f->act_at = 3;
	expect_stop(f, "after update 4 the weight");
}

static void shift_rows(struct fixture *f)
{
	f->shift++;
}

/* The update before an evaluation is made of other rows than those asked for again. */
static void test_a_gradient_of_other_rows(void **state)
{
	struct fixture *f = *state;

	configure(f, "adamw");
	must(config_set(f->config, "TRAIN_ACCUMULATE", "1", &f->err), &f->err);
	f->options.accumulate = 1;
	f->act = shift_rows;
	f->act_at = 5;
	expect_stop(f, "the gradient of update 5");
}

static void test_too_few_updates(void **state)
{
	struct fixture *f = *state;

	configure(f, "adamw");
	f->options.iterations = 6;
	expect_stop(f, "updates: the run ends after 6 of 12");
}

static void test_forgotten_moments(void **state)
{
	struct fixture *f = *state;

	configure(f, "adamwspam");
	f->options.iterations = 6; /* fewer than configured: it stops there, and can go on */
	open_run(f);
	run(f);
	close_run(f);
	f->options.iterations = ITERATIONS;
	f->forgets = true;
	expect_stop(f, "weights or moments are not those that were saved after update 6");
}

/* The same rows have the same sum, however they are divided into micro-batches. */
static void test_rows_are_recorded(void **state)
{
	struct fixture *f = *state;
	double rows = NAN, targets = NAN, again = NAN, other = NAN;

	open_run(f);
	run(f);
	assert_int_equal(told(f, "rows/training", 7, &rows), 1);
	assert_int_equal(told(f, "rows/training_targets", 7, &targets), 1);
	assert_int_equal(told(f, "rows/training", 8, &other), 1);
	assert_int_equal(told(f, "rows/validation_targets", 5, NULL), 1);
	assert_true(rows != other && targets > 7 * 4 * LENGTH / 2);
	close_run(f);
	test_remove(f->dir);
	assert_int_equal(mkdir(f->dir, 0777), 0);
	f->options.batch = 2;
	f->options.accumulate = 2;
	f->options.iterations = 5;
	open_run(f);
	run(f);
	close_run(f);
	f->options.iterations = ITERATIONS;
	open_run(f); /* from a checkpoint, which knows the sum so far */
	run(f);
	assert_int_equal(told(f, "rows/training", 7, &again), 1);
	assert_true(again == rows);
}

static void interrupt(struct fixture *f)
{
	(void)f;
	raise(SIGTERM);
}

/* Must be the last case: the process never forgets a signal to stop. */
static void test_a_signal_stops_after_the_iteration(void **state)
{
	struct fixture *f = *state;

	signals_install();
	f->act = interrupt;
	f->act_at = 7;
	open_run(f);
	run(f);
	assert_int_equal(f->run.end, TRAIN_INTERRUPTED);
	assert_non_null(strstr(f->run.reason.text, "signal 15"));
	assert_true(has_checkpoint(f, 7));
	assert_int_equal(told(f, "train/loss", 7, NULL), 1);
	assert_int_equal(told(f, "train/loss", 8, NULL), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(test_it_learns_and_records),
		CASE(test_gradients_by_layer),
		CASE(test_resumed_from_every_checkpoint),
		CASE(test_resumed_when_pruned),
		CASE(test_resumed_before_pruning),
		CASE(test_a_checkpoint_on_demand),
		CASE(test_micro_batches_add_up),
		CASE(test_divergence_names_iteration_and_tensor),
		CASE(test_divergence_found_by_the_check),
		CASE(test_a_device_that_lags_ends_with_the_same_weights),
		CASE(test_a_device_that_lags_diverges_in_the_same_iteration),
		CASE(test_a_device_that_lags_saves_on_demand),
		CASE(test_a_failed_device_is_no_divergence),
		CASE(test_divergence_in_an_evaluation),
		CASE(test_a_loss_below_the_floor),
		CASE(test_a_loss_above_the_floor),
		CASE(test_the_first_loss),
		CASE(test_the_first_losses_of_both_programs),
		CASE(test_the_first_losses_change_nothing),
		CASE(test_a_budget_of_tokens),
		CASE(test_a_budget_of_time_goes_on_after_a_pause),
		CASE(test_the_estimate_changes_nothing),
		CASE(test_every_optimizer_passes_its_audit),
		CASE(test_pruning_passes_its_audit),
		CASE(test_another_schedule_of_pruning),
		CASE(test_pruning_that_is_configured_and_not_done),
		CASE(test_pruning_that_is_not_two_of_four),
		CASE(test_another_rate),
		CASE(test_another_decay),
		CASE(test_other_clipping),
		CASE(test_another_rate_of_matrices),
		CASE(test_a_forgotten_micro_batch),
		CASE(test_validation_rows_that_are_missing),
		CASE(test_a_loss_that_is_not_the_mean),
		CASE(test_an_evaluation_by_another_program),
		CASE(test_an_evaluation_that_changes_weights),
		CASE(test_another_rate_between_logs),
		CASE(test_a_gradient_of_other_rows),
		CASE(test_too_few_updates),
		CASE(test_forgotten_moments),
		CASE(test_rows_are_recorded),
		CASE(test_a_signal_stops_after_the_iteration),
	};

	return cmocka_run_group_tests_name("train", tests, NULL, NULL);
}
