#include "data/tasks/words.h"

#include <math.h>
#include <stdlib.h>

#include "data/tasks/draw.h"

static int32_t cluster_of(const struct words *w, int32_t word)
{
	return word < 0 ? w->clusters : word % w->clusters;
}

static size_t contexts(const struct words *w)
{
	return (size_t)(w->clusters + 1) * (size_t)(w->clusters + 1);
}

const uint32_t *words_after(const struct words *w, int32_t before, int32_t last)
{
	int32_t context = cluster_of(w, before) * (w->clusters + 1) + cluster_of(w, last);

	return w->units + (size_t)context * (size_t)w->count;
}

/* One context; `rank` and `mixed` are scratch. */
static void fill(const struct words *w, const double *zipf, double common,
		 struct rng_reader *random, int32_t *rank, double *mixed, uint32_t *units)
{
	for (int32_t i = 0; i < w->count; i++)
		rank[i] = i;
	draw_shuffle(random, rank, (size_t)w->count);
	for (int32_t i = 0; i < w->count; i++)
		mixed[i] = common * zipf[i] + (1.0 - common) * zipf[rank[i]];
	draw_quantise(mixed, (size_t)w->count, units);
}

enum status words_open(struct words *w, int32_t count, int32_t clusters, double zipf, double common,
		       struct rng_key key, struct error *err)
{
	size_t n = (size_t)count;
	double *share = malloc(n * sizeof(*share)), *mixed = malloc(n * sizeof(*mixed));
	int32_t *rank = malloc(n * sizeof(*rank));

	*w = (struct words){ .count = count, .clusters = clusters };
	w->units = malloc(contexts(w) * n * sizeof(*w->units));
	if (share && mixed && rank && w->units) {
		for (size_t i = 0; i < n; i++)
			share[i] = pow((double)(i + 1), -zipf);
		for (size_t i = 0; i < contexts(w); i++) {
			struct rng_reader random = { .key = rng_subkey(key, i) };

			fill(w, share, common, &random, rank, mixed, w->units + i * n);
		}
	} else {
		words_close(w);
	}
	free(rank);
	free(mixed);
	free(share);
	return w->units ? OK : fail_memory(err, "word tables", contexts(w) * n * sizeof(*w->units));
}

void words_close(struct words *w)
{
	free(w->units);
	w->units = NULL;
}
