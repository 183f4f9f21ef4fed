/*
 * Ten updates by the trainer follow the reference's losses (models/parity.json, which
 * tools/reference/parity.py writes and explains), for every attention, feed-forward and mechanism,
 * with AdamW and AdamWSPAM, with and without accumulated batches.
 */
#include <math.h>
#include <unistd.h>

#include "core/record/journal.h"
#include "core/train/train.h"
#include "models/gpt2_names.h"
#include "models/model_case.h"

enum { UPDATES = 10, ROWS = 2, LENGTH = 7, VALID_ROWS = 4 };

/* Worst relative error of all losses, gcc 12 on aarch64: 1e-15 in double, 5.1e-7 in float. */
#define TOLERANCE_F64 1e-13
#define TOLERANCE_F32 5e-6

/* The options of tools/reference/parity.py. */
static const struct optim_options optim_options = {
	.beta1 = 0.9,
	.beta2 = 0.95,
	.eps = 1e-8,
	.weight_decay = 0.1,
	.clip = 1,
	.spam = { .theta = 5, .spike = 2, .interval = 4, .warmup = 3, .clip_elements = true },
};

static const struct train_options train_options = {
	.seed = 1,
	.iterations = UPDATES,
	.batch = ROWS,
	.eval_interval = UPDATES,
	.log_interval = 1,
	.checkpoint_keep = 1,
	.schedule = { .lr = 0.01, .min_lr = 0.001, .warmup = 3, .total = UPDATES },
	.identity = "parity",
};

/* ------------------------------------------------------------------ workload */

static void build(void *context, struct graph *g, int64_t rows, struct token_io *io)
{
	const struct model_case *k = context;

	model_build(k->model, g, g->training ? MODEL_TRAIN : MODEL_EVAL, rows, LENGTH, io);
}

static void train_row(void *context, uint64_t iteration, uint64_t row, int32_t *tokens,
		      int32_t *targets)
{
	const struct model_case *k = context;

	case_row(k->model, (int64_t)iteration, (int64_t)row, LENGTH, tokens, targets);
}

static void valid_row(void *context, uint64_t index, struct workload_row *row)
{
	const struct model_case *k = context;

	case_row(k->model, 0, (int64_t)index, LENGTH, row->tokens, row->targets);
}

/* ------------------------------------------------------------------ training */

static void train(struct model_case *k, const cJSON *run, const char *run_dir)
{
	struct optim_options optim = optim_options;
	struct train_run this = {
		.workload = {
			.context = k,
			.length = LENGTH,
			.build = build,
			.train_row = train_row,
			.valid_row = valid_row,
			.valid_rows = VALID_ROWS,
			.layer_prefix = LAYER_PREFIX,
		},
		.options = train_options,
	};
	const struct metrics_options told = {
		.run_dir = run_dir,
		.record = { .experiment = "parity", .step = "0", .identity = "0" },
	};
	struct optimizer *optimizer;
	struct progress progress;
	struct trainer *trainer;
	struct error err;

	if (strcmp(case_item(run, "optimizer")->valuestring, "adamwspam") == 0)
		optim.kind = OPTIM_ADAMWSPAM;
	this.options.accumulate = (int64_t)case_number(run, "accumulate");
	this.options.run_dir = run_dir;
	must(optimizer_create(&optimizer, &optim, k->params, &err), &err);
	must(trainer_create(&trainer, &this, 1, k->params, optimizer, &k->backend, &err), &err);
	must(metrics_open(&this.metrics, &told, -1, &err), &err);
	progress_begin(&progress, stderr, "", PROGRESS_QUIET, 0);
	must(trainer_run(trainer, &progress, &err), &err);
	assert_int_equal(this.end, TRAIN_DONE);
	must(metrics_close(this.metrics, RUN_DONE, "", &err), &err);
	trainer_destroy(trainer);
	optimizer_destroy(optimizer);
}

/* ---------------------------------------------------------------- comparison */

struct losses {
	double train[UPDATES + 1], valid;
};

static void read_journal(const char *run_dir, struct losses *l)
{
	char path[300], line[1024];
	FILE *file;

	for (int i = 0; i <= UPDATES; i++)
		l->train[i] = NAN;
	l->valid = NAN;
	snprintf(path, sizeof(path), "%s/" JOURNAL_FILE, run_dir);
	file = fopen(path, "r");
	assert_non_null(file);
	while (fgets(line, sizeof(line), file)) {
		cJSON *json = cJSON_Parse(line);
		const cJSON *name = cJSON_GetObjectItemCaseSensitive(json, "name");

		if (name && strcmp(name->valuestring, "train/loss") == 0)
			l->train[(int)case_number(json, "iteration")] = case_number(json, "value");
		if (name && strcmp(name->valuestring, "val/loss") == 0)
			l->valid = case_number(json, "value"); /* the last one stays */
		cJSON_Delete(json);
	}
	fclose(file);
}

static double check_loss(const cJSON *run, const char *what, double ours, double theirs,
			 double tolerance)
{
	const double error = fabs(ours - theirs) / fabs(theirs);

	if (!(error <= tolerance))
		fail_msg("%s with %s, %s: %.17g, the reference %.17g, error %.3g",
			 case_item(run, "vector")->valuestring,
			 case_item(run, "optimizer")->valuestring, what, ours, theirs, error);
	return error;
}

static double follow(const cJSON *run, enum dtype type, double tolerance)
{
	struct model_case k;
	struct losses ours;
	char run_dir[256], what[40];
	double worst;
	int t = 0;
	const cJSON *loss;

	test_template(run_dir, sizeof(run_dir), "parity");
	assert_non_null(mkdtemp(run_dir));
	case_open_vector(&k, type, case_item(run, "vector")->valuestring);
	train(&k, run, run_dir);
	case_close(&k);
	read_journal(run_dir, &ours);
	assert_int_equal(test_remove(run_dir), 0);

	worst = check_loss(run, "validation", ours.valid, case_number(run, "valid"), tolerance);
	cJSON_ArrayForEach (loss, case_item(run, "losses")) {
		snprintf(what, sizeof(what), "update %d", ++t);
		worst = fmax(worst,
			     check_loss(run, what, ours.train[t], loss->valuedouble, tolerance));
	}
	assert_int_equal(t, UPDATES);
	return worst;
}

static void follow_all(enum dtype type, double tolerance)
{
	cJSON *expected = case_expected();
	double worst = 0;
	const cJSON *run;
	int runs = 0;

	cJSON_ArrayForEach (run, case_item(expected, "training")) {
		worst = fmax(worst, follow(run, type, tolerance));
		runs++;
	}
	assert_true(runs >= 40);
	print_message("# %s: worst relative error %.3g\n", dtype_name(type), worst);
	cJSON_Delete(expected);
}

static void test_double(void **state)
{
	(void)state;
	follow_all(F64, TOLERANCE_F64);
}

static void test_float(void **state)
{
	(void)state;
	follow_all(F32, TOLERANCE_F32);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_double),
		cmocka_unit_test(test_float),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
