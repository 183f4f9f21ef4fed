#include "tools/kablate/run_setup.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/backend/cpu/blas.h"
#include "core/backend/open.h"
#include "core/util/memory.h"
#include "core/util/processors.h"
#include "core/train/shards.h"
#include "data/source_audit.h"
#include "models/gpt2_names.h"
#include "tools/kablate/generate.h"
#include "tools/kablate/lengths.h"
#include "tools/kablate/training_audit.h"

/* ------------------------------------------------------------ configuration */

static int configured_threads(struct config *c)
{
	int64_t threads = config_int(c, "THREADS");

	const char *ranks = config_raw(c, "RANKS"); /* see read_ranks() */
	const int share = usable_processors() / (ranks ? atoi(ranks) : 1);

	return threads > 0 ? (int)threads : share > 1 ? share : 1;
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

/*
 * Sums in the order of micro-batches do not depend on the number of ranks; other sums do.  A symbol
 * that is only looked at here changes no identity, and is read afterwards.
 */
static enum status read_ranks(struct run_setup *setup, struct error *err)
{
	struct config *c = setup->config;
	const char *ranks = config_raw(c, "RANKS"), *ordered = config_raw(c, "ORDERED_SUM");

	setup->rank_count = ranks ? atoi(ranks) : 1;
	setup->train.ordered_sum = ordered && strcmp(ordered, "y") == 0;
	if (setup->train.ordered_sum)
		config_bool(c, "ORDERED_SUM");
	else if (setup->rank_count > 1)
		config_int(c, "RANKS");
	if (setup->rank_count <= setup->train.accumulate)
		return OK;
	return fail(
		err,
		"CONFIG_RANKS=%d: an update has only CONFIG_TRAIN_ACCUMULATE=%lld micro-batches",
		setup->rank_count, (long long)setup->train.accumulate);
}

static void read_rest_of_ranks(struct run_setup *setup)
{
	static const char *const transports[] = { "auto", "nccl", "host", NULL };
	struct config *c = setup->config;

	config_int(c, "RANKS");
	config_bool(c, "ORDERED_SUM");
	if (strcmp(setup->backend.name, "cuda") != 0)
		return;
	config_int(c, "CUDA_DEVICE");
	setup->transport = transports[config_choice(c, "RANKS_TRANSPORT", transports)];
	if (setup->rank_count > 1)
		config_int(c, "RANKS_PER_GPU");
}

/* The number of this process among those that mpirun or srun started on this machine. */
static int rank_on_machine(void)
{
	static const char *const names[] = { "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
					     "SLURM_LOCALID" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (getenv(names[i]))
			return atoi(getenv(names[i]));
	return 0;
}

static int number_of_gpu(const struct config *c)
{
	const char *device = config_raw(c, "CUDA_DEVICE"), *ranks = config_raw(c, "RANKS");
	const char *share = config_raw(c, "RANKS_PER_GPU");
	const int first = device ? atoi(device) : 0;

	if (!ranks || atoi(ranks) < 2)
		return first;
	return first + rank_on_machine() / (share ? atoi(share) : 1);
}

/* Everything that decides what the run computes, and nothing else. */
void run_setup_identity(const struct run_setup *setup, uint64_t seed, char hex[SHA256_HEX_SIZE])
{
	struct sha256 s = setup->symbols;
	char text[160];

	snprintf(text, sizeof(text), "seed %" PRIu64 " repeat %" PRIu64 " threads %d", seed,
		 setup->repeat, setup->backend.threads);
	sha256_add(&s, text, strlen(text) + 1);
	sha256_add(&s, build_info.sources, strlen(build_info.sources) + 1);
	sha256_add(&s, setup->source.hash, strlen(setup->source.hash) + 1);
	sha256_add(&s, setup->init_hash, strlen(setup->init_hash) + 1);
	sha256_hex(&s, hex);
}

static void make_identity(struct run_setup *setup)
{
	sha256_init(&setup->symbols);
	config_visit_read(setup->config, hash_symbol, &setup->symbols);
	run_setup_identity(setup, setup->seed, setup->identity);
}

static enum status open_source(struct run_setup *setup, bool model_only, struct error *err)
{
	struct config *c = setup->config;
	const int64_t vocab = model_only ? config_int(c, "MODEL_VOCAB") : 0;

	if (config_check(c, err) != OK)
		return FAIL;
	if (vocab > 0)
		source_blank(&setup->source, config_int(c, "MODEL_BLOCK"), vocab);
	else if (source_open(&setup->source, c, setup->seed, err) != OK)
		return FAIL;
	setup->source_open = true;
	return OK;
}

static enum status open_backend(struct run_setup *setup, struct error *err)
{
	const char *name = config_text(setup->config, "BACKEND");
	const struct backend_options options = {
		.name = name,
		.precision = setup->precision,
		.threads = configured_threads(setup->config),
		.device = number_of_gpu(setup->config),
	};

	if (config_check(setup->config, err) != OK)
		return FAIL;
	if (strcmp(name, "emulated") == 0)
		return fail(err,
			    "CONFIG_BACKEND=emulated: the emulated GPU is for tests, not for runs");
	return backend_open(&setup->backend, &options, err);
}

/* The batch decides the model's form, even if nothing is trained. */
static struct model_task model_task(const struct run_setup *setup)
{
	return (struct model_task){ .vocab = setup->source.vocab, .batch = setup->train.batch };
}

static enum status read_model(struct run_setup *setup, struct error *err)
{
	const struct model_task task = model_task(setup);

	return model_read(&setup->model, setup->config, &task, err);
}

/* With STORE_ACTIVATIONS of a GPU.  Records from before it was a setting lack it. */
static enum precision configured_precision(struct config *c)
{
	static const char *const types[] = { "float32", "bfloat16", "bfloat16_residual", NULL };
	static const enum precision stored[] = { BFLOAT16, BFLOAT16_STORED, BFLOAT16_STREAM };
	const int precision = config_choice(c, "PRECISION", precision_names);
	const char *device = config_raw(c, "BACKEND");

	if (!device || strcmp(device, "cuda") != 0 || !config_raw(c, "STORE_ACTIVATIONS"))
		return (enum precision)precision;
	return stored[config_choice(c, "STORE_ACTIVATIONS", types)];
}

static enum status open_setup(struct run_setup *setup, struct config *c, uint64_t seed,
			      uint64_t repeat, bool model_only, struct error *err)
{
	enum dtype type;

	*setup = (struct run_setup){ .config = c, .seed = seed, .repeat = repeat };
	setup->precision = configured_precision(c);
	type = precision_type(setup->precision);
	if (open_backend(setup, err) != OK)
		return FAIL;
	setup->optim = optim_configured(c);
	setup->train = configured_training(c);
	setup->train.seed = seed;
	if (read_ranks(setup, err) != OK)
		return FAIL;
	setup->train.identity = setup->identity;
	setup->init_from = config_text(c, "INIT_FROM");
	if (setup->init_from && setup->init_from[0])
		setup->init_allow = config_text(c, "INIT_FROM_ALLOW");
	setup->lengths = config_text(c, "EVAL_LENGTHS");
	setup->tensorboard = config_bool(c, "TENSORBOARD");
	if (open_source(setup, model_only, err) != OK || read_model(setup, err) != OK ||
	    params_create(&setup->params, type, err) != OK)
		return FAIL;
	setup->train.about = setup->record.pair;
	if (weights_record_make(&setup->record, c, setup->source.vocab, setup->identity, err) != OK)
		return FAIL;
	if (!model_only && check_lengths(setup, setup->lengths, err) != OK)
		return fail_prefix(err, "CONFIG_EVAL_LENGTHS");
	if (setup->init_from && setup->init_from[0] &&
	    sha256_file(setup->init_from, setup->init_hash, err) != OK)
		return fail_prefix(err, "CONFIG_INIT_FROM");
	if (!model_only)
		make_identity(setup);
	read_rest_of_ranks(setup);
	/* Audits and samples change no result: they are read after the identity was made. */
	setup->sample = config_int(c, "EVAL_SAMPLE");
	setup->audit = audit_configured(c, setup->model, type, seed);
	setup->train.check_floor = setup->audit.data;
	return config_check(c, err);
}

static enum status open_builtin(struct run_setup *setup, uint64_t seed, uint64_t repeat,
				bool model_only, struct error *err)
{
	struct config *config;

	*setup = (struct run_setup){ 0 };
	if (config_builtin(&config, err) != OK)
		return FAIL;
	return open_setup(setup, config, seed, repeat, model_only, err);
}

enum status run_setup_open(struct run_setup *setup, uint64_t seed, uint64_t repeat,
			   struct error *err)
{
	return open_builtin(setup, seed, repeat, false, err);
}

enum status run_setup_open_model(struct run_setup *setup, struct error *err)
{
	return open_builtin(setup, 1, 0, true, err);
}

enum status run_setup_open_config(struct run_setup *setup, struct config *c, uint64_t seed,
				  uint64_t repeat, struct error *err)
{
	return open_setup(setup, c, seed, repeat, false, err);
}

/* -------------------------------------------------------------- preparation */

/* Name every parameter once: the training graph has them all. */
static enum status name_parameters(struct run_setup *setup, struct error *err)
{
	enum status status;
	struct token_io io;
	struct graph *g;

	if (graph_create(&g, setup->params, true, err) != OK)
		return FAIL;
	model_build(setup->model, g, MODEL_TRAIN, 1, 1, &io);
	status = graph_finish(g, err);
	graph_destroy(g);
	return status;
}

static enum status make_measurer(struct run_setup *setup, struct error *err)
{
	const int64_t T = setup->source.length;
	const int64_t rows = setup->source.valid_rows < SAMPLE_ROWS
				     ? (int64_t)setup->source.valid_rows
				     : SAMPLE_ROWS;
	int32_t *tokens = malloc((size_t)(rows * T) * 2 * sizeof(*tokens));
	enum status status;

	if (!tokens)
		return fail_memory(err, "sample", (size_t)(rows * T) * 2 * sizeof(*tokens));
	for (int64_t row = 0; row < rows; row++) {
		struct row out = { .tokens = tokens + row * T,
				   .targets = tokens + (rows + row) * T };

		source_valid(&setup->source, (uint64_t)row, &out);
	}
	status = measurer_create(&setup->measurer, setup->model, setup->params, &setup->backend,
				 rows, tokens, err);
	free(tokens);
	return status;
}

static enum status load_initial(struct run_setup *setup,
				void (*note)(void *context, const char *text), void *context,
				struct error *err)
{
	struct weights_origin origin;

	if (weights_record_compare(&setup->record, setup->init_from, setup->init_allow, note,
				   context, &origin, err) != OK)
		return FAIL;
	return weights_load(setup->params, setup->init_from, &gpt2_names, setup->init_allow, note,
			    context, err);
}

/* The ranks of a run on several GPUs may use NCCL. */
static enum status choose_transport(struct run_setup *setup, struct error *err)
{
	enum status status;

	if (!setup->transport || strcmp(setup->transport, "host") == 0 ||
	    (strcmp(setup->transport, "auto") == 0 && setup->rank_count == 1))
		return OK;
	status = ranks_use_nccl(&setup->ranks, setup->backend.context, err);
	if (status != OK && strcmp(setup->transport, "auto") == 0)
		return OK;
	return status == OK ? OK : fail_prefix(err, "CONFIG_RANKS_TRANSPORT_NCCL");
}

enum status run_setup_join_ranks(struct run_setup *setup, struct error *err)
{
	if (ranks_open(&setup->ranks, setup->rank_count, err) != OK)
		return FAIL;
	return choose_transport(setup, err);
}

bool run_setup_leads(const struct run_setup *setup)
{
	return !setup->ranks || setup->ranks->rank == 0;
}

/* Does each rank have pieces of the parameters of its own? */
static bool is_divided(const struct run_setup *setup)
{
	return setup->ranks && (setup->train.ordered_sum || setup->ranks->size > 1);
}

static enum status divide(struct run_setup *setup, struct error *err)
{
	if (shards_create(&setup->shards, setup->ranks, setup->params, setup->optim.kind, err) !=
		    OK ||
	    optimizer_create(&setup->optimizer, &setup->optim, shards_own(setup->shards), err) !=
		    OK)
		return FAIL;
	setup->train.shards = setup->shards;
	return shards_join(setup->shards, setup->optimizer, err);
}

enum status run_setup_make_parameters(struct run_setup *setup,
				      void (*note)(void *context, const char *text), void *context,
				      struct error *err)
{
	if (name_parameters(setup, err) != OK ||
	    params_allocate(setup->params, &setup->backend, true, err) != OK ||
	    params_initialise(setup->params, setup->seed, err) != OK)
		return FAIL;
	if (setup->init_hash[0] && load_initial(setup, note, context, err) != OK)
		return FAIL;
	if (is_divided(setup))
		return divide(setup, err);
	return optimizer_create(&setup->optimizer, &setup->optim, setup->params, err);
}

enum status run_setup_prepare(struct run_setup *setup,
			      void (*note)(void *context, const char *text), void *context,
			      struct error *err)
{
	if (run_setup_make_parameters(setup, note, context, err) != OK)
		return FAIL;
	return make_measurer(setup, err);
}

static void say(void *context, const char *text)
{
	(void)context;
	fprintf(stderr, "kablate: %s\n", text);
}

enum status run_setup_draw(struct run_setup *setup, struct error *err)
{
	if (name_parameters(setup, err) != OK ||
	    params_allocate(setup->params, &setup->backend, false, err) != OK)
		return FAIL;
	return params_initialise(setup->params, setup->seed, err);
}

enum status run_setup_load(struct run_setup *setup, const char *weights,
			   struct weights_origin *origin, struct error *err)
{
	if (weights_record_compare(&setup->record, weights, NULL, say, NULL, origin, err) != OK ||
	    run_setup_draw(setup, err) != OK)
		return FAIL;
	if (weights_load(setup->params, weights, &gpt2_names, NULL, say, NULL, err) != OK)
		return FAIL;
	return weights_record_check(setup->params, weights, err);
}

void run_setup_close(struct run_setup *setup)
{
	measurer_destroy(setup->measurer);
	weights_record_free(&setup->record);
	optimizer_destroy(setup->optimizer);
	shards_destroy(setup->shards);
	params_destroy(setup->params);
	model_free(setup->model);
	if (setup->source_open)
		source_close(&setup->source);
	config_free(setup->config);
	ranks_close(setup->ranks);
}

/* ---------------------------------------------------------------- examining */

enum status run_setup_describe(const struct run_setup *setup, int64_t context,
			       struct description *d, struct error *err)
{
	const struct description_options options = {
		.batch = setup->train.batch,
		.length = setup->source.length,
		.optimizer = setup->optim.kind,
		.context = context > 0 ? context : setup->source.length,
		.planner = !setup->train.program.no_planner,
		.remake = !setup->train.program.no_remake,
	};

	return describe_model(setup->model, &setup->backend, &options, d, err);
}

/* The arena of a graph that is only evaluated, and the numbers of the largest parameter. */
static enum status measure_forward(const struct run_setup *setup, enum model_purpose purpose,
				   int64_t rows, double *arena, double *largest, struct error *err)
{
	const struct program_options options = { .no_planner = setup->train.program.no_planner };
	struct params *params = NULL;
	struct graph *g = NULL;
	struct token_io io;
	size_t bytes = 0;
	enum status status = FAIL;

	if (params_create(&params, precision_type(setup->precision), err) != OK ||
	    graph_create(&g, params, false, err) != OK)
		goto destroy;
	model_build(setup->model, g, purpose, rows, setup->source.length, &io);
	status = graph_finish(g, err);
	if (status == OK)
		status = program_measure(g, &setup->backend, &options, &bytes, err);
	*arena = (double)bytes;
	for (int i = 0; status == OK && i < params->n; i++)
		*largest = fmax(*largest, (double)params->list[i].count);
destroy:
	graph_destroy(g);
	params_destroy(params);
	return status;
}

/* Libraries, and what BLAS touches of its buffers: 60 to 110 MiB. */
static const double LIBRARY_BYTES = 128 << 20;

/*
 * What CUDA and its libraries take of the host.  In all a small run took 430 MiB, and a run of 74
 * million parameters without audits 530 MiB.
 */
#define CUDA_HOST_BYTES (512 << 20)

/* Drawing and loading: the largest parameter once more, in double and float. */
static double draw_bytes(double largest)
{
	return largest * (sizeof(float) + sizeof(double));
}

/* Audits have weights, gradients and an optimizer of their own, and compare logits. */
static double audit_bytes(const struct run_setup *setup, const struct description *d,
			  double largest)
{
	const struct audit_options *a = &setup->audit;
	const struct param any = { .role = PARAM_MATRIX };
	const double state = a->one_batch ? optim_numbers(OPTIM_ADAMW, &any) : 0;
	const double logits =
		(double)(a->rows * a->length * setup->model->vocab) * (double)dtype_size(a->type);

	return (double)d->weights_bytes + (1 + state) * (double)d->gradient_bytes +
	       draw_bytes(largest) + 2 * logits;
}

/* What a rank has beside weights and gradients, without the optimizer's state that others have. */
static double shard_bytes(const struct run_setup *setup, const struct description *d)
{
	const double ranks = setup->ranks ? setup->ranks->size : 1;
	const double gradients = (double)d->gradient_bytes;

	if (!is_divided(setup))
		return 0;
	return 2 * gradients / ranks + (ranks > 1 ? gradients : 0) -
	       (double)d->optimizer_bytes * (1 - 1 / ranks);
}

static enum status measure_decoder(const struct run_setup *setup, const struct decoder_use *use,
				   struct decoder_memory *memory, struct error *err)
{
	return decoder_measure(memory, setup->model, precision_type(setup->precision),
			       &setup->backend, use, err);
}

enum status run_setup_measure_conclusion(const struct run_setup *setup, double *bytes,
					 struct error *err)
{
	const char *lengths = setup->lengths;
	struct decoder_memory memory;
	struct decoder_use use;
	struct error no_decoder;

	*bytes = 0;
	while (lengths[0]) {
		if (next_length_use(&lengths, &use, err) != OK ||
		    measure_decoder(setup, &use, &memory, err) != OK)
			return FAIL;
		*bytes = fmax(*bytes, memory.own);
	}
	use = sample_use(setup, 0);
	if (setup->sample == 0 || decoder_check(setup->model, use.capacity, &no_decoder) != OK)
		return OK;
	if (measure_decoder(setup, &use, &memory, err) != OK)
		return FAIL;
	*bytes = fmax(*bytes, memory.own);
	return OK;
}

enum status run_setup_reserve_decoder(const struct run_setup *setup, const struct decoder_use *use,
				      struct error *err)
{
	struct decoder_memory memory;
	double bytes;

	if (measure_decoder(setup, use, &memory, err) != OK)
		return FAIL;
	bytes = setup->backend.memory ? LIBRARY_BYTES + CUDA_HOST_BYTES + memory.weights +
						draw_bytes(memory.largest)
				      : LIBRARY_BYTES + memory.weights +
						fmax(memory.own, draw_bytes(memory.largest));
	return memory_reserve(NULL, bytes, blas_buffer_bytes(setup->backend.threads), err);
}

/* Audits end before training touches its first activation. */
enum status run_setup_memory(const struct run_setup *setup, const struct description *d,
			     struct run_memory *memory, struct error *err)
{
	double arena = 0, probe = 0, largest = 0, conclusion, audits;

	if (measure_forward(setup, MODEL_EVAL, setup->train.batch, &arena, &largest, err) != OK ||
	    measure_forward(setup, MODEL_PROBE, SAMPLE_ROWS, &probe, &largest, err) != OK ||
	    run_setup_measure_conclusion(setup, &conclusion, err) != OK)
		return FAIL;
	arena += (double)d->activation_bytes + conclusion;
	audits = audit_bytes(setup, d, largest);
	if (setup->backend.memory) { /* a GPU holds all but the numbers that are looked at */
		*memory =
			(struct run_memory){ .resident = LIBRARY_BYTES + CUDA_HOST_BYTES + audits };
		return OK;
	}
	memory->resident = LIBRARY_BYTES + probe + (double)d->weights_bytes +
			   (double)d->gradient_bytes + (double)d->optimizer_bytes +
			   shard_bytes(setup, d) + fmax(arena, audits);
	memory->idle = fmin(arena, audits);
	return OK;
}

struct data_audit {
	struct audit_report *report;
	enum status status;
	struct error *err;
};

static void add_data_finding(void *context, const struct source_finding *f)
{
	struct data_audit *d = context;

	if (d->status == OK)
		d->status = audit_add(d->report, "data", f->subject, f->passed, f->detail, d->err);
}

static enum status audit_data(const struct run_setup *setup, struct audit_report *report,
			      struct error *err)
{
	struct data_audit d = { report, OK, err };

	if (!setup->audit.data || source_is_blank(&setup->source))
		return OK;
	if (source_audit(&setup->source, setup->train.iterations,
			 setup->train.batch * setup->train.accumulate, add_data_finding, &d,
			 err) != OK)
		return FAIL;
	return d.status;
}

enum status run_setup_audit(const struct run_setup *setup, struct audit_report *report,
			    struct error *err)
{
	const struct model_task task = model_task(setup);

	if (audit_model(setup->config, &task, &setup->backend, &setup->audit, report, err) != OK ||
	    (setup->audit.training && training_audit(setup, report, err) != OK))
		return FAIL;
	return audit_data(setup, report, err);
}

/* ------------------------------------------------------------------ workload */

static void build(void *context, struct graph *g, int64_t rows, struct token_io *io)
{
	const struct run_setup *setup = context;

	model_build(setup->model, g, g->training ? MODEL_TRAIN : MODEL_EVAL, rows,
		    setup->source.length, io);
}

static void train_row(void *context, uint64_t iteration, uint64_t row, int32_t *tokens,
		      int32_t *targets)
{
	const struct run_setup *setup = context;
	struct row out = { .tokens = tokens, .targets = targets };

	source_train(&setup->source, iteration, row, &out);
}

static void valid_row(void *context, uint64_t index, struct workload_row *row)
{
	const struct run_setup *setup = context;
	struct row out = { row->tokens, row->targets, row->component, row->floor };

	source_valid(&setup->source, index, &out);
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
	const struct run_setup *setup = context;
	struct measured measured = { m, iteration };

	return measure(setup->measurer, record, &measured, err);
}

static enum status conclude(void *context, struct metrics *m, int64_t iteration, struct error *err)
{
	struct run_setup *setup = context;

	if (record_lengths(setup, setup->lengths, m, iteration, err) != OK)
		return FAIL;
	return record_sample(setup, setup->sample, m, iteration, err);
}

struct workload run_setup_workload(struct run_setup *setup)
{
	return (struct workload){
		.context = setup,
		.length = setup->source.length,
		.build = build,
		.train_row = train_row,
		.valid_row = valid_row,
		.valid_rows = setup->source.valid_rows,
		.components = setup->source.task->components,
		.bytes_per_token = setup->source.bytes_per_token,
		.layer_prefix = LAYER_PREFIX,
		.measure = measure_model,
		.conclude = conclude,
	};
}
