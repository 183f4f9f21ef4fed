#include "tools/kablate/lab.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/backend/cpu/blas.h"
#include "core/train/weights.h"
#include "tools/kablate/lengths.h"

#define SAMPLE_ROWS 4 /* of the attention metrics */

/* ------------------------------------------------------------ configuration */

static int configured_threads(struct config *c)
{
	int64_t threads = config_int(c, "THREADS");

	return threads > 0 ? (int)threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static struct train_options configured_training(struct config *c)
{
	return (struct train_options){
		.iterations = config_int(c, "GPT2_MAX_ITERS"),
		.batch = config_int(c, "TRAIN_BATCH"),
		.accumulate = config_int(c, "TRAIN_ACCUMULATE"),
		.eval_interval = config_int(c, "EVAL_INTERVAL"),
		.log_interval = config_int(c, "LOG_INTERVAL"),
		.checkpoint_interval = config_int(c, "CHECKPOINT_INTERVAL"),
		.checkpoint_keep = config_int(c, "CHECKPOINT_KEEP"),
		.checkpoint_megabytes = config_int(c, "CHECKPOINT_DISK_MB"),
		.seconds_budget = (double)config_int(c, "TRAIN_SECONDS_BUDGET"),
		.tokens_budget = (double)config_int(c, "TRAIN_TOKENS_BUDGET"),
		.save_best = true,
		.schedule = schedule_configured(c),
		.program = {
			.no_planner = !config_bool(c, "PLANNER"),
			.no_remake = !config_bool(c, "REMAKE"),
			.check_nan = config_bool(c, "CHECK_NAN"),
		},
	};
}

static void hash_symbol(void *context, const char *name, const char *value)
{
	struct sha256 *s = context;

	sha256_add(s, name, strlen(name) + 1);
	sha256_add(s, value, strlen(value) + 1);
}

/* Everything that decides what the run computes; nothing that does not. */
static void make_identity(struct lab *lab)
{
	char text[160];
	struct sha256 s;

	sha256_init(&s);
	config_visit_read(lab->config, hash_symbol, &s);
	snprintf(text, sizeof(text), "seed %" PRIu64 " repeat %" PRIu64 " threads %d", lab->seed,
		 lab->repeat, lab->backend.threads);
	sha256_add(&s, text, strlen(text) + 1);
	sha256_add(&s, build_info.sources, strlen(build_info.sources) + 1);
	sha256_add(&s, lab->source.hash, strlen(lab->source.hash) + 1);
	sha256_add(&s, lab->init_hash, strlen(lab->init_hash) + 1);
	sha256_hex(&s, lab->identity);
}

static enum status open_source(struct lab *lab, bool model_only, struct error *err)
{
	struct config *c = lab->config;
	const int64_t vocab = model_only ? config_int(c, "MODEL_VOCAB") : 0;

	if (config_check(c, err) != OK)
		return FAIL;
	if (vocab > 0)
		source_blank(&lab->source, config_int(c, "MODEL_BLOCK"), vocab);
	else if (source_open(&lab->source, c, lab->seed, err) != OK)
		return FAIL;
	lab->source_open = true;
	return OK;
}

static enum status open_lab(struct lab *lab, struct config *c, uint64_t seed, uint64_t repeat,
			    bool model_only, struct error *err)
{
	enum dtype type;

	*lab = (struct lab){ .config = c, .seed = seed, .repeat = repeat };
	lab->precision = (enum precision)config_choice(c, "PRECISION", precision_names);
	type = precision_type(lab->precision);
	if (backend_cpu_open(&lab->backend, lab->precision, configured_threads(c), err) != OK)
		return FAIL;
	lab->optim = optim_configured(c);
	lab->train = configured_training(c);
	lab->train.seed = seed;
	lab->train.identity = lab->identity;
	lab->init_from = config_text(c, "INIT_FROM");
	if (lab->init_from && lab->init_from[0])
		lab->init_allow = config_text(c, "INIT_FROM_ALLOW");
	lab->lengths = config_text(c, "EVAL_LENGTHS");
	lab->tensorboard = config_bool(c, "TENSORBOARD");
	if (open_source(lab, model_only, err) != OK ||
	    model_read(&lab->model, c, lab->source.vocab, err) != OK ||
	    params_create(&lab->params, type, err) != OK)
		return FAIL;
	if (!model_only && check_lengths(lab, lab->lengths, err) != OK)
		return fail_prefix(err, "CONFIG_EVAL_LENGTHS");
	if (lab->init_from && lab->init_from[0] &&
	    sha256_file(lab->init_from, lab->init_hash, err) != OK)
		return fail_prefix(err, "CONFIG_INIT_FROM");
	if (!model_only)
		make_identity(lab);
	/* Audits change no result: they are read after the identity was made. */
	lab->audit = audit_configured(c, lab->model, type, seed);
	return config_check(c, err);
}

static enum status open_builtin(struct lab *lab, uint64_t seed, uint64_t repeat, bool model_only,
				struct error *err)
{
	struct config *config;

	*lab = (struct lab){ 0 };
	if (config_builtin(&config, err) != OK)
		return FAIL;
	return open_lab(lab, config, seed, repeat, model_only, err);
}

enum status lab_open(struct lab *lab, uint64_t seed, uint64_t repeat, struct error *err)
{
	return open_builtin(lab, seed, repeat, false, err);
}

enum status lab_open_model(struct lab *lab, struct error *err)
{
	return open_builtin(lab, 1, 0, true, err);
}

enum status lab_open_config(struct lab *lab, struct config *c, uint64_t seed, uint64_t repeat,
			    struct error *err)
{
	return open_lab(lab, c, seed, repeat, false, err);
}

/* -------------------------------------------------------------- preparation */

/* Name every parameter once: the training graph has them all. */
static enum status name_parameters(struct lab *lab, struct error *err)
{
	enum status status;
	struct model_io io;
	struct graph *g;

	if (graph_create(&g, lab->params, true, err) != OK)
		return FAIL;
	model_build(lab->model, g, MODEL_TRAIN, 1, 1, &io);
	status = graph_finish(g, err);
	graph_destroy(g);
	return status;
}

static enum status make_measurer(struct lab *lab, struct error *err)
{
	const int64_t T = lab->source.length;
	const int64_t rows = lab->source.valid_rows < SAMPLE_ROWS ? (int64_t)lab->source.valid_rows
								  : SAMPLE_ROWS;
	int32_t *tokens = malloc((size_t)(rows * T) * 2 * sizeof(*tokens));
	enum status status;

	if (!tokens)
		return fail_memory(err, "sample", (size_t)(rows * T) * 2 * sizeof(*tokens));
	for (int64_t row = 0; row < rows; row++) {
		struct row out = { .tokens = tokens + row * T, .targets = tokens + (rows + row) * T };

		source_valid(&lab->source, (uint64_t)row, &out);
	}
	status = measurer_create(&lab->measurer, lab->model, lab->params, &lab->backend, rows, tokens,
				 err);
	free(tokens);
	return status;
}

enum status lab_make_parameters(struct lab *lab, void (*note)(void *context, const char *text),
				void *context, struct error *err)
{
	if (name_parameters(lab, err) != OK ||
	    params_allocate(lab->params, &lab->backend, true, err) != OK ||
	    params_initialise(lab->params, lab->seed, err) != OK)
		return FAIL;
	if (lab->init_hash[0] &&
	    weights_load(lab->params, lab->init_from, lab->init_allow, note, context, err) != OK)
		return FAIL;
	return optimizer_create(&lab->optimizer, &lab->optim, lab->params, err);
}

enum status lab_prepare(struct lab *lab, void (*note)(void *context, const char *text),
			void *context, struct error *err)
{
	if (lab_make_parameters(lab, note, context, err) != OK)
		return FAIL;
	return make_measurer(lab, err);
}

static void say(void *context, const char *text)
{
	(void)context;
	fprintf(stderr, "kablate: %s\n", text);
}

enum status lab_draw(struct lab *lab, struct error *err)
{
	if (name_parameters(lab, err) != OK ||
	    params_allocate(lab->params, &lab->backend, false, err) != OK)
		return FAIL;
	return params_initialise(lab->params, lab->seed, err);
}

enum status lab_load(struct lab *lab, const char *weights, struct error *err)
{
	if (lab_draw(lab, err) != OK)
		return FAIL;
	return weights_load(lab->params, weights, "h.", say, NULL, err);
}

void lab_close(struct lab *lab)
{
	measurer_destroy(lab->measurer);
	optimizer_destroy(lab->optimizer);
	params_destroy(lab->params);
	model_free(lab->model);
	if (lab->source_open)
		source_close(&lab->source);
	config_free(lab->config);
}

/* ---------------------------------------------------------------- examining */

/* Numbers of optimizer state per parameter. */
static double optimizer_numbers(enum optim_kind kind)
{
	static const double numbers[] = {
		[OPTIM_ADAMW] = 2, [OPTIM_ADAMWSPAM] = 3, [OPTIM_SGD] = 1, [OPTIM_MUON] = 2
	};

	return numbers[kind];
}

enum status lab_describe(const struct lab *lab, int64_t context, struct description *d,
			 struct error *err)
{
	const struct description_options options = {
		.batch = lab->train.batch,
		.length = lab->source.length,
		.optimizer_numbers = optimizer_numbers(lab->optim.kind),
		.context = context > 0 ? context : lab->source.length,
		.planner = !lab->train.program.no_planner,
		.remake = !lab->train.program.no_remake,
	};

	return describe_model(lab->model, &lab->backend, &options, d, err);
}

enum status lab_audit(const struct lab *lab, struct audit_report *report, struct error *err)
{
	return audit_model(lab->config, lab->source.vocab, &lab->backend, &lab->audit, report, err);
}

/* ------------------------------------------------------------------ subject */

static void build(void *context, struct graph *g, int64_t rows, struct subject_io *io)
{
	const struct lab *lab = context;
	struct model_io made;

	model_build(lab->model, g, g->training ? MODEL_TRAIN : MODEL_EVAL, rows, lab->source.length,
		    &made);
	*io = (struct subject_io){
		.tokens = made.tokens,
		.targets = made.targets,
		.weights = made.weights,
		.nll = made.loss.nll,
		.hit = made.loss.hit,
	};
}

static void train_row(void *context, uint64_t iteration, uint64_t row, int32_t *tokens,
		      int32_t *targets)
{
	const struct lab *lab = context;
	struct row out = { .tokens = tokens, .targets = targets };

	source_train(&lab->source, iteration, row, &out);
}

static void valid_row(void *context, uint64_t index, struct subject_row *row)
{
	const struct lab *lab = context;
	struct row out = { row->tokens, row->targets, row->component, row->floor };

	source_valid(&lab->source, index, &out);
}

struct measured {
	struct metrics *metrics;
	int64_t iteration;
};

static void record(void *context, const char *name, double value)
{
	const struct measured *m = context;

	metrics_value(m->metrics, m->iteration, name, value);
}

static enum status measure_model(void *context, struct metrics *m, int64_t iteration,
				 struct error *err)
{
	const struct lab *lab = context;
	struct measured measured = { m, iteration };

	return measure(lab->measurer, record, &measured, err);
}

static enum status conclude(void *context, struct metrics *m, int64_t iteration, struct error *err)
{
	struct lab *lab = context;

	return record_lengths(lab, lab->lengths, m, iteration, err);
}

struct subject lab_subject(struct lab *lab)
{
	return (struct subject){
		.context = lab,
		.length = lab->source.length,
		.build = build,
		.train_row = train_row,
		.valid_row = valid_row,
		.valid_rows = lab->source.valid_rows,
		.components = lab->source.task->components,
		.bytes_per_token = lab->source.bytes_per_token,
		.measure = measure_model,
		.conclude = conclude,
	};
}
