#include "core/train/recount.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDING 1e-9 /* of sums of doubles in another order */

enum status recounter_open(struct recounter *c, const struct workload *workload,
			   const struct token_program *forward, int replicas, int64_t rows,
			   struct error *err)
{
	const size_t n = (size_t)(rows * workload->length);
	const size_t bytes = 2 * (size_t)replicas * n * sizeof(double);

	*c = (struct recounter){
		.workload = workload,
		.forward = forward,
		.rows = rows,
		.nll = malloc(bytes),
		.all = {
			.tokens = malloc(n * sizeof(int32_t)),
			.targets = malloc(n * sizeof(int32_t)),
			.component = malloc(n),
			.floor = malloc(n * sizeof(float)),
		},
	};
	if (!c->nll || !c->all.tokens || !c->all.targets || !c->all.component || !c->all.floor)
		return fail_memory(err, "evaluation", bytes);
	c->hit = c->nll + (size_t)replicas * n;
	return OK;
}

void recounter_close(struct recounter *c)
{
	free(c->nll);
	free(c->all.tokens);
	free(c->all.targets);
	free(c->all.component);
	free(c->all.floor);
}

static void add(struct recount_sum *s, double nll, double hit)
{
	s->count++;
	s->loss += nll;
	s->hits += hit;
}

void recount_begin(struct recounter *c, uint64_t first)
{
	const struct workload *w = c->workload;

	memset(c->all.component, 0, (size_t)(c->rows * w->length));
	for (c->made = 0; c->made < c->rows && first + (uint64_t)c->made < w->valid_rows;
	     c->made++) {
		const int64_t at = c->made * w->length;
		struct workload_row row = {
			.tokens = c->all.tokens + at,
			.targets = c->all.targets + at,
			.component = c->all.component + at,
			.floor = c->all.floor + at,
		};

		w->valid_row(w->context, first + (uint64_t)c->made, &row);
	}
	if (c->made == 0)
		return;
	program_read_each(c->forward->p, c->forward->io.nll, c->nll);
	program_read_each(c->forward->p, c->forward->io.hit, c->hit);
}

void recount_rows(const struct recounter *c, int replica, struct recount *sums)
{
	const int64_t at = replica * c->rows * c->workload->length;
	const double *nll = c->nll + at, *hit = c->hit + at;

	for (int64_t i = 0; i < c->made * c->workload->length; i++) {
		const uint8_t component = c->all.component[i];

		if (c->all.targets[i] < 0)
			continue;
		add(&sums->all, nll[i], hit[i]);
		if (c->workload->components && component < WORKLOAD_MAX_COMPONENTS)
			add(&sums->component[component], nll[i], hit[i]);
	}
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
