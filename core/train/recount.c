#include "core/train/recount.h"

#include <math.h>
#include <stdlib.h>

#define ROUNDING 1e-9 /* of sums of doubles in another order */

enum status recounter_open(struct recounter *c, const struct workload *workload,
			   const struct token_program *forward, int64_t rows, struct error *err)
{
	const size_t T = (size_t)workload->length, bytes = 2 * (size_t)rows * T * sizeof(double);

	*c = (struct recounter){
		.workload = workload,
		.forward = forward,
		.rows = rows,
		.nll = malloc(bytes),
		.row = {
			.tokens = malloc(T * sizeof(int32_t)),
			.targets = malloc(T * sizeof(int32_t)),
			.component = malloc(T),
			.floor = malloc(T * sizeof(float)),
		},
	};
	if (!c->nll || !c->row.tokens || !c->row.targets || !c->row.component || !c->row.floor)
		return fail_memory(err, "evaluation", bytes);
	c->hit = c->nll + (size_t)rows * T;
	return OK;
}

void recounter_close(struct recounter *c)
{
	free(c->nll);
	free(c->row.tokens);
	free(c->row.targets);
	free(c->row.component);
	free(c->row.floor);
}

static void add(struct recount_sum *s, double nll, double hit)
{
	s->count++;
	s->loss += nll;
	s->hits += hit;
}

/* The targets of a row, whose losses are at nll and hit. */
static void add_row(struct recounter *c, uint64_t number, const double *nll, const double *hit,
		    struct recount *sums)
{
	const struct workload *w = c->workload;

	for (int64_t t = 0; t < w->length; t++)
		c->row.component[t] = 0;
	w->valid_row(w->context, number, &c->row);
	for (int64_t t = 0; t < w->length; t++) {
		if (c->row.targets[t] < 0)
			continue;
		add(&sums->all, nll[t], hit[t]);
		if (w->components && c->row.component[t] < WORKLOAD_MAX_COMPONENTS)
			add(&sums->component[c->row.component[t]], nll[t], hit[t]);
	}
}

void recount_rows(struct recounter *c, uint64_t first, struct recount *sums)
{
	const uint64_t last = c->workload->valid_rows;
	const int64_t T = c->workload->length;

	if (first >= last)
		return;
	program_read(c->forward->p, c->forward->io.nll, c->nll);
	program_read(c->forward->p, c->forward->io.hit, c->hit);
	for (int64_t row = 0; row < c->rows && first + (uint64_t)row < last; row++)
		add_row(c, first + (uint64_t)row, c->nll + row * T, c->hit + row * T, sums);
}

static void join(struct recount_sum *s, const struct recount_sum *more)
{
	s->count += more->count;
	s->loss += more->loss;
	s->hits += more->hits;
}

enum status recount_over_ranks(struct recount *sums, struct ranks *ranks, struct error *err)
{
	struct recount *all;
	enum status status;

	if (!ranks)
		return OK;
	all = malloc((size_t)ranks->size * sizeof(*all));
	if (!all)
		return fail_memory(err, "ranks", (size_t)ranks->size * sizeof(*all));
	status = ranks_gather(ranks, sums, all, sizeof(*all), err);
	*sums = (struct recount){ .all.count = 0 };
	for (int r = 0; status == OK && r < ranks->size; r++) {
		join(&sums->all, &all[r].all);
		for (int i = 0; i < WORKLOAD_MAX_COMPONENTS; i++)
			join(&sums->component[i], &all[r].component[i]);
	}
	free(all);
	return status;
}

static bool is_mean(double mean, long double sum, int64_t count)
{
	const double exact = (double)(sum / (long double)count);

	return fabs(mean - exact) <= ROUNDING * fmax(1, fabs(exact));
}

bool recount_agrees(const struct recount_sum *s, int64_t count, double loss, double accuracy)
{
	return s->count == count &&
	       (count == 0 || (is_mean(loss, s->loss, count) && is_mean(accuracy, s->hits, count)));
}
