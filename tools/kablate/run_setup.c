#include "tools/kablate/run_setup.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/open.h"
#include "core/util/processors.h"
#include "core/train/shards.h"
#include "models/audit/graphs.h"
#include "models/gpt2_names.h"
#include "tools/kablate/decoder_uses.h"

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
		.prune = prune_configured(c),
		.program = {
			.no_planner = !config_bool(c, "PLANNER"),
			.no_recompute = !config_bool(c, "RECOMPUTE"),
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

static bool is_for_gpu(const struct config *c)
{
	const char *device = config_raw(c, "BACKEND");

	return device && strcmp(device, "cuda") == 0;
}

static void read_rest_of_ranks(struct run_setup *setup)
{
	static const char *const transports[] = { "auto", "nccl", "host", NULL };
	struct config *c = setup->config;

	config_int(c, "RANKS");
	config_bool(c, "ORDERED_SUM");
	if (!is_for_gpu(c))
		return;
	config_int(c, "CUDA_DEVICE");
	setup->most_replicas = setup->replicas ? (int)config_int(c, "REPLICAS_MOST") : 1;
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
	config_visit_sealed(setup->config, hash_symbol, &setup->symbols);
	run_setup_identity(setup, setup->seed, setup->identity);
}

enum status run_setup_vary(struct run_setup *run, const struct run_setup *setup, uint64_t seed,
			   struct config *config, struct error *err)
{
	*run = *setup;
	run->config = config;
	run->seed = run->source.seed = run->train.seed = seed;
	run->train.schedule = schedule_configured(config);
	run->train.audited = setup->train.audited ? config : NULL;
	make_identity(run);
	run->record = (struct weights_record){ 0 };
	run->train.identity = run->identity;
	run->train.about = run->record.pair;
	return weights_record_make(&run->record, run->config, run->source.vocab, run->identity,
				   err);
}

void run_setup_hash_symbols(const struct config *c, struct sha256 *s)
{
	sha256_init(s);
	config_visit_read(c, hash_symbol, s);
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

/* In tests, KABLATE_TEST_BACKEND=emulated is the GPU of programs for a GPU. */
static const char *device_name(const char *configured)
{
	return strcmp(configured, "cuda") == 0 && strcmp(backend_name_for_tests(), "cpu") != 0
		       ? backend_name_for_tests()
		       : configured;
}

static struct backend_options backend_options_of(const struct run_setup *setup, const char *name)
{
	return (struct backend_options){
		.name = device_name(name),
		.precision = setup->precision,
		.threads = setup->threads,
		.device = number_of_gpu(setup->config),
	};
}

static enum status open_backend(struct run_setup *setup, struct error *err)
{
	const char *name = config_text(setup->config, "BACKEND");
	struct backend_options options;

	setup->threads = configured_threads(setup->config);
	if (config_check(setup->config, err) != OK)
		return FAIL;
	if (strcmp(name, "emulated") == 0)
		return fail(err,
			    "CONFIG_BACKEND=emulated: the emulated GPU is for tests, not for runs");
	options = backend_options_of(setup, name);
	return backend_open(&setup->backend, &options, err);
}

enum status run_setup_open_replicas(const struct run_setup *setup, int n, double replica_bytes,
				    struct backend *backend, struct error *err)
{
	struct backend_options options =
		backend_options_of(setup, config_raw(setup->config, "BACKEND"));

	options.replicas = n;
	options.replica_bytes = (size_t)replica_bytes;
	return backend_open(backend, &options, err);
}

/*
 * Are the runs of the step replicas of one program?  Their number is no part of their identity.
 * Records from before it was a setting lack it.
 */
static bool configured_replicas(struct config *c)
{
	return is_for_gpu(c) && config_raw(c, "REPLICAS") && config_bool(c, "REPLICAS");
}

struct model_task run_setup_task(const struct run_setup *setup)
{
	return (struct model_task){ .vocab = setup->source.vocab, .batch = setup->train.batch };
}

static enum status read_model(struct run_setup *setup, struct error *err)
{
	const struct model_task task = run_setup_task(setup);
	const struct task *data = setup->source.task;

	if (model_read(&setup->model, setup->config, &task, err) != OK)
		return FAIL;
	if (data && data->reconstructs && !setup->model->decoder)
		return fail(err,
			    "TASK=%s reconstructs its rows: let MODEL_DECODER be y for it in "
			    "models/Kconfig",
			    data->name);
	return OK;
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
	setup->replicas = configured_replicas(c);
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
	if (!model_only && check_lengths(setup->lengths, setup->model, &setup->source, err) != OK)
		return fail_prefix(err, "CONFIG_EVAL_LENGTHS");
	if (setup->init_from && setup->init_from[0] &&
	    sha256_file(setup->init_from, setup->init_hash, err) != OK)
		return fail_prefix(err, "CONFIG_INIT_FROM");
	config_seal(c);
	if (!model_only)
		make_identity(setup);
	read_rest_of_ranks(setup);
	/* Audits and samples change no result: they are read after the identity was made. */
	setup->sample = config_int(c, "EVAL_SAMPLE");
	setup->audit = audit_configured(c, setup->model, type, seed);
	setup->audit.program = setup->train.program;
	setup->audit.program.check_nan = false; /* audits judge what is not finite */
	setup->train.check_floor = setup->audit.data;
	setup->train.audited = setup->audit.training ? c : NULL;
	if (setup->audit.training && setup->model->dropout == 0)
		setup->train.scoring_tolerance = scoring_tolerance(type, setup->precision);
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

enum status run_setup_name_parameters(const struct run_setup *setup, struct params *params,
				      struct error *err)
{
	enum status status;
	struct token_io io;
	struct graph *g;

	if (graph_create(&g, params, true, err) != OK)
		return FAIL;
	model_build(setup->model, g, MODEL_TRAIN, 1, 1, &io);
	status = graph_finish(g, err);
	graph_destroy(g);
	return status;
}

/* What a generator writes without its digits is a class: DOC, name, value, w, ... */
struct classes {
	char name[32][SOURCE_TOKEN_TEXT];
	int64_t n;
};

/* More kinds than there is room for share the last class. */
static int32_t class_of(const struct source *s, int32_t token, struct classes *known)
{
	char text[SOURCE_TOKEN_TEXT];
	int64_t i;

	source_spell(s, token, text);
	text[strcspn(text, "0123456789")] = '\0';
	for (i = 0; i < known->n; i++)
		if (strcmp(known->name[i], text) == 0)
			return (int32_t)i;
	if (known->n == (int64_t)(sizeof(known->name) / sizeof(known->name[0])))
		return (int32_t)known->n - 1;
	snprintf(known->name[known->n], sizeof(known->name[0]), "%s", text);
	return (int32_t)known->n++;
}

static enum status make_measurer(struct run_setup *setup, struct error *err)
{
	const int64_t T = setup->source.length;
	const bool generated = setup->source.task->generate != NULL;
	struct classes known = { .n = 0 };
	struct measure_sample sample;
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
	/* The targets are not needed: their place takes the classes. */
	for (int64_t i = 0; i < rows * T && generated; i++)
		tokens[rows * T + i] = class_of(&setup->source, tokens[i], &known);
	sample = (struct measure_sample){
		.rows = rows,
		.tokens = tokens,
		.classes = generated ? tokens + rows * T : NULL,
		.n_classes = known.n,
	};
	status = measurer_create(&setup->measurer, setup->model, setup->params, &setup->backend,
				 &sample, err);
	free(tokens);
	return status;
}

static enum status load_initial(struct run_setup *setup, run_setup_note note, void *context,
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

bool run_setup_is_divided(const struct run_setup *setup)
{
	return setup->ranks && (setup->train.ordered_sum || setup->ranks->size > 1);
}

static enum status divide(struct run_setup *setup, struct error *err)
{
	if (shards_create(&setup->shards, setup->ranks, setup->params, &setup->optim, err) != OK ||
	    optimizer_create(&setup->optimizer, &setup->optim, shards_own(setup->shards), err) !=
		    OK)
		return FAIL;
	setup->train.shards = setup->shards;
	return shards_set_optimizer(setup->shards, setup->optimizer, err);
}

static enum status start_run(struct run_setup *setup, uint64_t seed, run_setup_note note,
			     void *context, struct error *err)
{
	if (params_initialise(setup->params, seed, err) != OK)
		return FAIL;
	return setup->init_hash[0] ? load_initial(setup, note, context, err) : OK;
}

enum status run_setup_start(struct run_setup *setup, const uint64_t *seeds, run_setup_note note,
			    void *context, struct error *err)
{
	enum status status = OK;

	if (run_setup_name_parameters(setup, setup->params, err) != OK ||
	    params_allocate(setup->params, &setup->backend, true, err) != OK)
		return FAIL;
	for (int i = 0; i < backend_replicas(&setup->backend) && status == OK; i++) {
		backend_choose(&setup->backend, i);
		status = start_run(setup, seeds[i], note, context, err);
	}
	backend_choose(&setup->backend, REPLICAS_ALL);
	return status;
}

enum status run_setup_make_parameters(struct run_setup *setup, const uint64_t *seeds,
				      run_setup_note note, void *context, struct error *err)
{
	if (run_setup_start(setup, seeds, note, context, err) != OK)
		return FAIL;
	if (run_setup_is_divided(setup))
		return divide(setup, err);
	return optimizer_create(&setup->optimizer, &setup->optim, setup->params, err);
}

enum status run_setup_prepare(struct run_setup *setup, const uint64_t *seeds, run_setup_note note,
			      void *context, struct error *err)
{
	if (run_setup_make_parameters(setup, seeds, note, context, err) != OK)
		return FAIL;
	return make_measurer(setup, err);
}

static void say(void *context, const char *text)
{
	char shown[ERROR_TEXT_SIZE];

	(void)context;
	snprintf(shown, sizeof(shown), "%s", text);
	fprintf(stderr, "kablate: %s\n", printable(shown));
}

enum status run_setup_draw(struct run_setup *setup, struct error *err)
{
	if (run_setup_name_parameters(setup, setup->params, err) != OK ||
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

void run_setup_release(struct run_setup *setup)
{
	measurer_destroy(setup->measurer);
	optimizer_destroy(setup->optimizer);
	shards_destroy(setup->shards);
	params_destroy(setup->params);
}

void run_setup_close(struct run_setup *setup)
{
	run_setup_release(setup);
	weights_record_free(&setup->record);
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
		.optimizer = setup->optim,
		.prune = setup->train.prune,
		.context = context > 0 ? context : setup->source.length,
		.planner = !setup->train.program.no_planner,
		.recompute = !setup->train.program.no_recompute,
	};

	return describe_model(setup->model, &setup->backend, &options, d, err);
}
