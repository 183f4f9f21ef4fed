#include "core/train/data_sum.h"

#include <stdlib.h>

#define DIGITS_OF_A_DOUBLE 53

/* A step of MurmurHash3's finalizer: each bit of the result depends on each bit of both. */
static uint64_t mix(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * UINT64_C(0xff51afd7ed558ccd);
	return hash ^ hash >> 33;
}

void data_sum_add_row(struct data_sum *s, uint64_t iteration, uint64_t row, const int32_t *tokens,
		      const int32_t *targets, int64_t length)
{
	uint64_t hash = mix(mix(UINT64_C(0x9e3779b97f4a7c15), iteration), row);

	if (s->rows < 0)
		return;
	for (int64_t i = 0; i < length; i++) {
		hash = mix(hash, (uint64_t)(uint32_t)tokens[i] << 32 | (uint32_t)targets[i]);
		s->targets += targets[i] >= 0;
	}
	s->hash += mix(mix(hash, (uint64_t)length), 0);
	s->rows++;
}

void data_sum_join(struct data_sum *s, const struct data_sum *more)
{
	if (s->rows < 0 || more->rows < 0) {
		*s = DATA_SUM_UNKNOWN;
		return;
	}
	s->hash += more->hash;
	s->rows += more->rows;
	s->targets += more->targets;
}

enum status data_sum_over_ranks(struct data_sum *s, struct ranks *ranks, struct error *err)
{
	struct data_sum *all;
	enum status status;

	if (!ranks)
		return OK;
	all = malloc((size_t)ranks->size * sizeof(*all));
	if (!all)
		return fail_memory(err, "ranks", (size_t)ranks->size * sizeof(*all));
	status = ranks_gather(ranks, s, all, sizeof(*all), err);
	*s = (struct data_sum){ 0 };
	for (int r = 0; status == OK && r < ranks->size; r++)
		data_sum_join(s, &all[r]);
	free(all);
	return status;
}

double data_sum_number(const struct data_sum *s)
{
	return (double)(s->hash >> (64 - DIGITS_OF_A_DOUBLE));
}
