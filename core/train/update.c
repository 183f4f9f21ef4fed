#include "core/train/update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/processors.h"

static int64_t batch_tokens(const struct update *u)
{
	return u->options->batch * u->workload->length;
}

int64_t update_tokens(const struct update *u)
{
	return batch_tokens(u) * u->options->accumulate;
}

int update_losses(const struct update *u)
{
	return u->n_losses * (int)u->options->accumulate;
}

static struct shards *shards(const struct update *u)
{
	return u->options->shards;
}

static int64_t rank_count(const struct update *u)
{
	return u->ranks ? u->ranks->size : 1;
}

/* In round i, rank r runs micro-batch i * ranks + r, if there is one. */
static int64_t round_count(const struct update *u)
{
	return (u->options->accumulate + rank_count(u) - 1) / rank_count(u);
}

static int64_t micro_of(const struct update *u, int64_t round)
{
	return round * rank_count(u) + (u->ranks ? u->ranks->rank : 0);
}

/* The output head's losses are weighted by targets; the others are means over a micro-batch. */
static bool from_head(const struct update *u, const struct graph_output *o)
{
	return o->tensor->producer == u->training.io.nll->producer;
}

static void share_losses(struct update *u)
{
	const struct graph *g = u->training.g;

	for (int i = 0; i < g->n_outputs; i++)
		if (g->outputs[i].is_loss && !from_head(u, &g->outputs[i]))
			program_loss_weight(u->training.p, g->outputs[i].name,
					    g->outputs[i].loss_weight /
						    (double)u->options->accumulate);
}

static size_t own_losses(const struct update *u)
{
	return (size_t)(round_count(u) * u->n_losses);
}

static enum status allocate_losses(struct update *u, struct error *err)
{
	const size_t bytes = own_losses(u) * sizeof(*u->own_losses);

	u->own_losses = calloc(own_losses(u), sizeof(*u->own_losses));
	u->all_losses = calloc(own_losses(u) * (size_t)rank_count(u), sizeof(*u->all_losses));
	return u->own_losses && u->all_losses ? OK : fail_memory(err, "losses", bytes);
}

static bool has_rows_of(const struct update *u, int run, int other)
{
	return u->runs[run].options.seed == u->runs[other].options.seed;
}

/* The first run of each seed. */
static void find_makers(struct update *u)
{
	for (int run = 0; run < u->n; run++) {
		int i = 0;

		while (i < u->n_makers && !has_rows_of(u, run, u->makers[i]))
			i++;
		if (i == u->n_makers)
			u->makers[u->n_makers++] = run;
	}
}

static enum status open_batches(struct update *u, struct error *err)
{
	const size_t runs = (size_t)u->n, n = runs * (size_t)update_tokens(u);

	u->tokens = malloc(n * sizeof(*u->tokens));
	u->targets = malloc(n * sizeof(*u->targets));
	u->scored = malloc(runs * sizeof(*u->scored));
	u->given = calloc(runs, sizeof(*u->given));
	u->run = malloc(runs * sizeof(*u->run));
	u->weights = malloc(2 * runs * sizeof(*u->weights));
	u->makers = malloc(runs * sizeof(*u->makers));
	if (!u->tokens || !u->targets || !u->scored || !u->given || !u->run || !u->weights ||
	    !u->makers)
		return fail_memory(err, "batches", n * sizeof(*u->tokens));
	find_makers(u);
	return OK;
}

static enum status open_losses(struct update *u, struct error *err)
{
	size_t bytes;

	u->n_losses = program_loss_count(u->training.p);
	bytes = (size_t)update_losses(u) * sizeof(*u->losses);
	u->seen_losses = malloc((size_t)u->n * bytes);
	u->losses = u->backend->alloc(u->backend, bytes);
	return u->losses && u->seen_losses ? OK : fail_alloc(u->backend, "losses", bytes, err);
}

static enum status join_ranks(struct update *u, struct error *err)
{
	if (!shards(u))
		return OK;
	shards_watch(shards(u), u->training.p);
	return allocate_losses(u, err);
}

enum status update_open(struct update *u, const struct train_run *runs, int n,
			struct params *params, const struct backend *backend, struct error *err)
{
	const struct train_options *options = &runs[0].options;
	struct program_options train = options->program;

	*u = (struct update){
		.runs = runs,
		.n = n,
		.helpers = n > 1 ? usable_processors() : 1,
		.workload = &runs[0].workload,
		.options = options,
		.backend = backend,
		.ranks = options->shards ? shards_ranks(options->shards) : NULL,
	};
	train.train = true;
	if (open_batches(u, err) != OK || workload_open(&u->training, u->workload, params,
							options->batch, backend, &train, err) != OK)
		return FAIL;
	share_losses(u);
	return open_losses(u, err) == OK ? join_ranks(u, err) : FAIL;
}

void update_close(struct update *u)
{
	if (!u->backend)
		return; /* it was never opened */
	token_program_close(&u->training);
	u->backend->release(u->backend, u->losses);
	free(u->seen_losses);
	free(u->tokens);
	free(u->targets);
	free(u->scored);
	free(u->given);
	free(u->run);
	free(u->weights);
	free(u->makers);
	free(u->own_losses);
	free(u->all_losses);
}

/* --------------------------------------------------------------- the passes */

/* Where a row of a run lies among those of all runs: a micro-batch of all is uploaded at once. */
static int64_t place_of(const struct update *u, int run, int64_t row)
{
	const int64_t rows = u->options->batch, micro = row / rows;

	return ((micro * u->n + run) * rows + row % rows) * u->workload->length;
}

static void copy_row(struct update *u, int64_t from, int64_t to)
{
	const size_t n = (size_t)u->workload->length;

	memcpy(u->tokens + to, u->tokens + from, n * sizeof(*u->tokens));
	memcpy(u->targets + to, u->targets + from, n * sizeof(*u->targets));
}

/* A row of this run, and of the later ones that have the same. */
static void fill_row(struct update *u, int run, int64_t iteration, int64_t row)
{
	const struct workload *w = &u->runs[run].workload;
	const int64_t at = place_of(u, run, row);

	w->train_row(w->context, (uint64_t)iteration, (uint64_t)row, u->tokens + at,
		     u->targets + at);
	for (int other = run + 1; other < u->n; other++)
		if (has_rows_of(u, other, run))
			copy_row(u, at, place_of(u, other, row));
}

static int64_t count_scored(const struct update *u, int run, int64_t first)
{
	const int32_t *targets = u->targets + place_of(u, run, first);
	int64_t scored = 0;

	for (int64_t i = 0; i < batch_tokens(u); i++)
		scored += targets[i] >= 0;
	return scored;
}

/* Fills the rows of a micro-batch of every run, and counts the scored targets. */
static void fill_micro(struct update *u, int64_t iteration, int64_t micro)
{
	const int64_t rows = u->options->batch, first = micro * rows;

#pragma omp parallel for schedule(static) num_threads(u->helpers) if (u->helpers > 1)
	for (int64_t i = 0; i < u->n_makers * rows; i++)
		fill_row(u, u->makers[i / rows], iteration, first + i % rows);
	for (int run = 0; run < u->n; run++)
		u->scored[run] += count_scored(u, run, first);
}

static enum status sum_over_ranks(struct update *u, int64_t *value, struct error *err)
{
	int64_t *all = malloc((size_t)rank_count(u) * sizeof(*all)), mine = *value;
	enum status status;

	if (!all)
		return fail_memory(err, "ranks", (size_t)rank_count(u) * sizeof(*all));
	status = ranks_gather(u->ranks, &mine, all, sizeof(*all), err);
	*value = 0;
	for (int64_t r = 0; status == OK && r < rank_count(u); r++)
		*value += all[r];
	free(all);
	return status;
}

/* Fill the rows of this rank; count the scored targets of all. */
static enum status fill_update(struct update *u, int64_t iteration, struct error *err)
{
	const enum phase before = phases_enter(u->options->phases, PHASE_DATA);

	memset(u->scored, 0, (size_t)u->n * sizeof(*u->scored));
	for (int64_t round = 0; round < round_count(u); round++)
		if (micro_of(u, round) < u->options->accumulate)
			fill_micro(u, iteration, micro_of(u, round));
	phases_enter(u->options->phases, before);
	return u->ranks ? sum_over_ranks(u, u->scored, err) : OK;
}

/* A loss is a mean over the scored targets of its own run. */
static void weigh_losses(struct update *u)
{
	const int chosen = backend_choose(u->backend, REPLICAS_EACH);
	const double each = 1 / (double)update_tokens(u);
	float *narrow = (float *)u->weights;

	for (int i = 0; i < u->n; i++) {
		const double main = 1 / fmax((double)u->scored[i], 1);

		if (u->training.g->type == F64) {
			u->weights[2 * i] = main;
			u->weights[2 * i + 1] = each;
		} else {
			narrow[2 * i] = (float)main;
			narrow[2 * i + 1] = (float)each;
		}
	}
	program_upload(u->training.p, u->training.io.weights, u->weights);
	backend_choose(u->backend, chosen);
}

/* Sums up the rows of a micro-batch that are uploaded for this run. */
static void sum_rows(struct update *u, int run, int64_t iteration, int64_t first)
{
	const int64_t T = u->workload->length;

	for (int64_t row = first; row < first + u->options->batch; row++) {
		const int64_t at = place_of(u, run, row);

		data_sum_add_row(&u->given[run], (uint64_t)iteration, (uint64_t)row, u->tokens + at,
				 u->targets + at, T);
	}
}

static void feed_micro(struct update *u, int64_t iteration, int64_t micro, bool alone)
{
	const int64_t at = place_of(u, 0, micro * u->options->batch);
	const int chosen = backend_choose(u->backend, REPLICAS_EACH);

	token_program_feed(&u->training, u->tokens + at, u->targets + at);
	backend_choose(u->backend, chosen);
#pragma omp parallel for schedule(static) num_threads(u->helpers) if (u->helpers > 1)
	for (int i = 0; i < u->n; i++)
		sum_rows(u, i, iteration, micro * u->options->batch);
	for (int i = 0; i < u->n; i++)
		u->run[i] = (struct run){
			.seed = u->runs[i].options.seed,
			.iteration = (uint64_t)iteration,
			.micro = (uint64_t)micro,
			.alone = alone,
		};
}

static enum status run_micro(struct update *u, int64_t iteration, int64_t round, struct error *err)
{
	const int64_t micro = micro_of(u, round);

	feed_micro(u, iteration, micro, u->options->ordered_sum || round == 0);
	if (program_run(u->training.p, u->run, err) != OK)
		return FAIL;
	program_collect_losses(u->training.p, u->losses + micro * u->n_losses);
	return OK;
}

/* Every rank gets the losses of all micro-batches, in their order. */
static enum status gather_losses(struct update *u, struct error *err)
{
	const size_t each = (size_t)u->n_losses * sizeof(*u->losses);
	const size_t bytes = (size_t)update_losses(u) * sizeof(*u->losses);

	u->backend->download(u->backend, u->seen_losses, u->losses, bytes);
	for (int64_t round = 0; round < round_count(u); round++)
		if (micro_of(u, round) < u->options->accumulate)
			memcpy(u->own_losses + round * u->n_losses,
			       u->seen_losses + micro_of(u, round) * u->n_losses, each);
	if (ranks_gather(u->ranks, u->own_losses, u->all_losses,
			 own_losses(u) * sizeof(*u->own_losses), err) != OK)
		return FAIL;
	for (int64_t micro = 0; micro < u->options->accumulate; micro++)
		memcpy(u->seen_losses + micro * u->n_losses,
		       u->all_losses + (size_t)(micro % rank_count(u)) * own_losses(u) +
			       micro / rank_count(u) * u->n_losses,
		       each);
	u->backend->upload(u->backend, u->losses, u->seen_losses, bytes);
	return OK;
}

/* Gradients are sent after every micro-batch, or after the last one of this rank. */
static enum status begin_round(struct update *u, int64_t round, struct error *err)
{
	const int64_t micros = u->options->accumulate, ranks = rank_count(u);
	const int64_t done = u->options->ordered_sum ? round * ranks : 0;

	return shards_begin_round(shards(u), (int)fmin((double)(micros - done), (double)ranks),
				  done == 0, err);
}

static enum status run_round(struct update *u, int64_t iteration, int64_t round, struct error *err)
{
	const bool sends = u->options->ordered_sum || round == round_count(u) - 1;
	enum status status = OK;
	struct error lost;

	if (shards(u) && sends && begin_round(u, round, err) != OK)
		return FAIL;
	if (micro_of(u, round) < u->options->accumulate)
		status = run_micro(u, iteration, round, err);
	if (shards(u) && sends && shards_end_round(shards(u), &lost) != OK && status == OK) {
		*err = lost;
		return FAIL;
	}
	return status;
}

/* Also after a failure on this rank, the others get what they wait for. */
static enum status run_rounds(struct update *u, int64_t iteration, struct error *err)
{
	enum status status = OK;
	struct error later;

	for (int64_t round = 0; round < round_count(u); round++) {
		if (status == OK)
			status = run_round(u, iteration, round, err);
		else if (u->ranks)
			(void)!run_round(u, iteration, round, &later);
	}
	if (!shards(u))
		return status;
	if (shards_sum(shards(u), &later) != OK && status == OK) {
		*err = later;
		status = FAIL;
	}
	return ranks_agree(u->ranks, status, err);
}

enum status update_run(struct update *u, int64_t iteration, struct error *err)
{
	memset(u->given, 0, (size_t)u->n * sizeof(*u->given));
	if (fill_update(u, iteration, err) != OK)
		return FAIL;
	weigh_losses(u);
	if (run_rounds(u, iteration, err) != OK)
		return FAIL;
	return u->ranks ? gather_losses(u, err) : OK;
}

/* --------------------------------------------------------------- the losses */

static void parts_add(struct loss_parts *parts, const char *name, double value)
{
	int i = 0;

	while (i < parts->n && strcmp(parts->name[i], name) != 0)
		i++;
	if (i == parts->n && i < MAX_LOSS_PARTS) {
		parts->name[i] = name;
		parts->value[i] = 0;
		parts->n++;
	}
	if (i < MAX_LOSS_PARTS)
		parts->value[i] += value;
	parts->total += value;
}

void update_read_losses(struct update *u)
{
	const int chosen = backend_choose(u->backend, REPLICAS_EACH);

	u->backend->download(u->backend, u->seen_losses, u->losses,
			     (size_t)update_losses(u) * sizeof(*u->losses));
	backend_choose(u->backend, chosen);
}

void update_loss_parts(const struct update *u, int i, struct loss_parts *parts)
{
	const struct graph *g = u->training.g;
	const double *value = u->seen_losses + (size_t)i * (size_t)update_losses(u);

	*parts = (struct loss_parts){ 0 };
	for (int64_t micro = 0; micro < u->options->accumulate; micro++)
		for (int k = 0; k < g->n_outputs; k++) {
			const struct graph_output *o = &g->outputs[k];
			double share = from_head(u, o) ? 1 : (double)u->options->accumulate;

			if (o->is_loss)
				parts_add(parts, o->plain_name, o->loss_weight * *value++ / share);
		}
}

static double main_loss(const struct update *u)
{
	const struct graph *g = u->training.g;

	for (int i = 0; i < g->n_outputs; i++)
		if (g->outputs[i].is_loss && strcmp(g->outputs[i].plain_name, "main") == 0)
			return program_scalar(u->training.p, g->outputs[i].tensor);
	return NAN;
}

/* The last micro-batch that this rank runs. */
static int64_t last_micro(const struct update *u)
{
	const int64_t last = micro_of(u, round_count(u) - 1);

	return last < u->options->accumulate ? last : last - rank_count(u);
}

struct update_rows update_last_rows(const struct update *u)
{
	const int64_t at = place_of(u, 0, last_micro(u) * u->options->batch);

	return (struct update_rows){ u->tokens + at, u->targets + at, batch_tokens(u) };
}

void update_read_nll(const struct update *u, double *nll)
{
	program_read_each(u->training.p, u->training.io.nll, nll);
}

void update_read_last(const struct update *u, int i, const double *nll, double *trained,
		      double *mean)
{
	const struct update_rows rows = update_last_rows(u);
	const int chosen = backend_choose(u->backend, i);
	double sum = 0;

	for (int64_t k = i * rows.n; k < (i + 1) * rows.n; k++)
		if (rows.targets[k] >= 0)
			sum += nll[k];
	*trained = main_loss(u);
	backend_choose(u->backend, chosen);
	*mean = sum / fmax((double)u->scored[i], 1);
}
