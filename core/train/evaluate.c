#include "core/train/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/util/processors.h"

struct evaluator {
	struct workload workload;
	const struct backend *backend;
	struct token_program forward;
	int replicas;
	int64_t rows;
	int32_t *tokens, *targets;
	uint8_t *component;
	float *floor;
	struct run *runs;      /* by replica; all zero */
	double *nll, *hit;     /* replica by replica, one after the other */
	struct ranks *ranks;   /* NULL: this process evaluates alone */
	double *all;	       /* by rank: nll and hit */
	double *trained;       /* nll of the program that trains, replica by replica */
	struct data_sum given; /* rows that were uploaded for this evaluation */
	struct recounter recounter;
};

enum status evaluator_create(struct evaluator **out, const struct workload *workload, int replicas,
			     struct params *params, int64_t rows, const struct backend *backend,
			     const struct program_options *options, struct error *err)
{
	const size_t n = (size_t)(rows * workload->length), all = (size_t)replicas * n;
	struct program_options no_training = *options;
	struct evaluator *e = calloc(1, sizeof(*e));

	if (!e)
		return fail_memory(err, "evaluation", sizeof(*e));
	no_training.train = false;
	e->workload = *workload;
	e->backend = backend;
	e->replicas = replicas;
	e->rows = rows;
	e->tokens = malloc(n * sizeof(*e->tokens));
	e->targets = malloc(n * sizeof(*e->targets));
	e->component = malloc(n);
	e->floor = malloc(n * sizeof(*e->floor));
	e->nll = malloc(2 * all * sizeof(*e->nll));
	e->trained = malloc(all * sizeof(*e->trained));
	e->runs = calloc((size_t)replicas, sizeof(*e->runs));
	if (!e->runs || !e->trained || !e->tokens || !e->targets || !e->component || !e->floor ||
	    !e->nll) {
		fail_memory(err, "evaluation", all * sizeof(double));
		evaluator_destroy(e);
		return FAIL;
	}
	e->hit = e->nll + all;
	if (workload_open(&e->forward, workload, params, rows, backend, &no_training, err) != OK ||
	    recounter_open(&e->recounter, &e->workload, &e->forward, replicas, rows, err) != OK) {
		evaluator_destroy(e);
		return FAIL;
	}
	*out = e;
	return OK;
}

void evaluator_destroy(struct evaluator *e)
{
	if (!e)
		return;
	recounter_close(&e->recounter);
	token_program_close(&e->forward);
	free(e->tokens);
	free(e->targets);
	free(e->component);
	free(e->floor);
	free(e->nll);
	free(e->trained);
	free(e->runs);
	free(e->all);
	free(e);
}

size_t evaluator_arena_bytes(const struct evaluator *e)
{
	return program_arena_bytes(e->forward.p);
}

/* Rows first .. first + rows - 1; beyond the last one nothing is scored. */
static void fill(struct evaluator *e, uint64_t first)
{
	const int64_t T = e->workload.length;

	for (int64_t i = 0; i < e->rows * T; i++) {
		e->tokens[i] = 0;
		e->targets[i] = -1;
		e->component[i] = 0;
		e->floor[i] = NAN;
	}
	for (int64_t row = 0; row < e->rows && first + (uint64_t)row < e->workload.valid_rows;
	     row++) {
		struct workload_row out = {
			.tokens = e->tokens + row * T,
			.targets = e->targets + row * T,
			.component = e->component + row * T,
			.floor = e->floor + row * T,
		};

		e->workload.valid_row(e->workload.context, first + (uint64_t)row, &out);
	}
}

static void score_add(struct score *s, double nll, double hit, double floor)
{
	s->count++;
	s->loss += nll;
	s->accuracy += hit;
	s->floor += floor;
	s->error += (nll - floor) * (nll - floor); /* becomes the standard error in the end */
}

static void score_finish(struct score *s)
{
	const double n = s->count ? (double)s->count : NAN;

	s->loss /= n;
	s->accuracy /= n;
	s->floor /= n;
	s->error = sqrt(fmax(s->error / n - (s->loss - s->floor) * (s->loss - s->floor), 0) / n);
}

static int64_t token_count(const struct evaluator *e)
{
	return e->rows * e->workload.length;
}

static void collect(const struct evaluator *e, int replica, struct evaluation *out)
{
	const int64_t n = token_count(e);
	const double *nll = e->nll + replica * n, *hit = e->hit + replica * n;

	for (int64_t i = 0; i < n; i++) {
		if (e->targets[i] < 0)
			continue;
		score_add(&out->all, nll[i], hit[i], (double)e->floor[i]);
		if (e->workload.components && e->component[i] < WORKLOAD_MAX_COMPONENTS)
			score_add(&out->component[e->component[i]], nll[i], hit[i],
				  (double)e->floor[i]);
	}
}

/* Uploads the rows, and sums up what was uploaded. */
static void give_rows(struct evaluator *e, uint64_t first)
{
	const int64_t T = e->workload.length;

	token_program_feed(&e->forward, e->tokens, e->targets);
	for (int64_t row = 0; row < e->rows && first + (uint64_t)row < e->workload.valid_rows;
	     row++)
		data_sum_add_row(&e->given, 0, first + (uint64_t)row, e->tokens + row * T,
				 e->targets + row * T, T);
}

/* The rows from `first` on; beyond the last row there is nothing to do. */
static enum status run_rows(struct evaluator *e, uint64_t first, struct error *err)
{
	if (first >= e->workload.valid_rows)
		return OK;
	fill(e, first);
	give_rows(e, first);
	return program_run(e->forward.p, e->runs, err);
}

static void read_losses(struct evaluator *e)
{
	program_read_each(e->forward.p, e->forward.io.nll, e->nll);
	program_read_each(e->forward.p, e->forward.io.hit, e->hit);
}

static enum status score_rows(struct evaluator *e, uint64_t first, struct error *err)
{
	if (run_rows(e, first, err) != OK)
		return FAIL;
	if (first < e->workload.valid_rows)
		read_losses(e);
	return OK;
}

static size_t loss_bytes(const struct evaluator *e)
{
	return (size_t)(2 * token_count(e)) * sizeof(*e->nll);
}

/* As many rows per rank; every rank adds up the losses of all, in the order of rows. */
static enum status evaluate_shared(struct evaluator *e, struct evaluation *out, struct error *err)
{
	const uint64_t rows = (uint64_t)e->rows, ranks = (uint64_t)e->ranks->size;

	for (uint64_t first = 0; first < e->workload.valid_rows; first += rows * ranks) {
		const uint64_t mine = first + rows * (uint64_t)e->ranks->rank;

		if (ranks_agree(e->ranks, score_rows(e, mine, err), err) != OK ||
		    ranks_gather(e->ranks, e->nll, e->all, loss_bytes(e), err) != OK)
			return FAIL;
		recount_begin(&e->recounter, mine);
		recount_rows(&e->recounter, 0, &out->recount);
		for (uint64_t r = 0; r < ranks && first + rows * r < e->workload.valid_rows; r++) {
			fill(e, first + rows * r);
			memcpy(e->nll, (const char *)e->all + r * loss_bytes(e), loss_bytes(e));
			collect(e, 0, out);
		}
	}
	if (recount_over_ranks(&out->recount, e->ranks, err) != OK)
		return FAIL;
	return data_sum_over_ranks(&e->given, e->ranks, err);
}

static enum status evaluate_alone(struct evaluator *e, struct evaluation *out, struct error *err)
{
	for (uint64_t first = 0; first < e->workload.valid_rows; first += (uint64_t)e->rows) {
		if (run_rows(e, first, err) != OK)
			return FAIL;
		read_losses(e);
		recount_begin(&e->recounter, first);
#pragma omp parallel for schedule(static) num_threads(usable_processors()) if (e->replicas > 1)
		for (int r = 0; r < e->replicas; r++) {
			collect(e, r, &out[r]);
			recount_rows(&e->recounter, r, &out[r].recount);
		}
	}
	return OK;
}

enum status evaluator_share(struct evaluator *e, struct ranks *ranks, struct error *err)
{
	e->ranks = ranks;
	e->all = malloc((size_t)ranks->size * loss_bytes(e));
	return e->all ? OK : fail_memory(err, "evaluation", (size_t)ranks->size * loss_bytes(e));
}

static void finish_scores(const struct evaluator *e, struct evaluation *out)
{
	score_finish(&out->all);
	for (int i = 0; i < WORKLOAD_MAX_COMPONENTS; i++)
		score_finish(&out->component[i]);
	if (e->workload.bytes_per_token > 0)
		out->bits_per_byte = out->all.loss / M_LN2 / e->workload.bytes_per_token;
}

enum status evaluate(struct evaluator *e, struct evaluation *out, struct error *err)
{
	for (int r = 0; r < e->replicas; r++)
		out[r] = (struct evaluation){ .bits_per_byte = NAN };
	e->given = (struct data_sum){ 0 };
	token_program_weigh(&e->forward, 1, 1);
	if ((e->ranks ? evaluate_shared : evaluate_alone)(e, out, err) != OK)
		return FAIL;
	for (int r = 0; r < e->replicas; r++) {
		finish_scores(e, &out[r]);
		out[r].given = e->given;
	}
	return OK;
}

/* One that is no number is the largest. */
static double largest_difference(const double *a, const double *b, int64_t n)
{
	double most = 0;

	for (int64_t i = 0; i < n; i++)
		most = fabs(a[i] - b[i]) < INFINITY ? fmax(most, fabs(a[i] - b[i])) : INFINITY;
	return most;
}

enum status evaluator_compare(struct evaluator *e, const int32_t *tokens, const int32_t *targets,
			      const double *nll, double *differences, struct error *err)
{
	const int64_t n = token_count(e);
	int chosen;

	token_program_weigh(&e->forward, 1, 1);
	chosen = backend_choose(e->backend, REPLICAS_EACH);
	token_program_feed(&e->forward, tokens, targets);
	backend_choose(e->backend, chosen);
	if (program_run(e->forward.p, e->runs, err) != OK)
		return FAIL;
	program_read_each(e->forward.p, e->forward.io.nll, e->nll);
	for (int r = 0; r < e->replicas; r++)
		differences[r] = largest_difference(e->nll + r * n, nll + r * n, n);
	return OK;
}

static enum status largest_of_ranks(struct ranks *ranks, double *value, struct error *err)
{
	enum status status;
	double *all;

	if (!ranks)
		return OK;
	all = malloc((size_t)ranks->size * sizeof(*all));
	if (!all)
		return fail_memory(err, "ranks", (size_t)ranks->size * sizeof(*all));
	status = ranks_gather(ranks, value, all, sizeof(*all), err);
	for (int r = 0; status == OK && r < ranks->size; r++)
		*value = fmax(*value, all[r]);
	free(all);
	return status;
}

enum status evaluator_compare_trained(struct evaluator *e, struct token_program *training,
				      struct evaluation *out, struct error *err)
{
	const int64_t n = token_count(e);
	enum status status;

	token_program_weigh(training, 1, 1);
	token_program_feed(training, e->tokens, e->targets);
	status = program_run(training->p, e->runs, err);
	if (e->ranks)
		status = ranks_agree(e->ranks, status, err);
	if (status != OK)
		return FAIL;
	if (!e->ranks) /* with ranks, these are of the rank that evaluated the rows */
		read_losses(e);
	program_read_each(training->p, training->io.nll, e->trained);
	for (int r = 0; r < e->replicas; r++)
		out[r].difference = largest_difference(e->nll + r * n, e->trained + r * n, n);
	return largest_of_ranks(e->ranks, &out->difference, err);
}
