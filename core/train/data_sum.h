/*
 * data_sum - which rows a model was given: a sum of one hash per row.
 *
 * The hash of a row covers its iteration, its number, its tokens and its targets.  A sum depends on
 * no order, so ranks and micro-batches of any number give the same one.
 */
#ifndef CORE_TRAIN_DATA_SUM_H
#define CORE_TRAIN_DATA_SUM_H

#include <stdint.h>

#include "core/ranks/ranks.h"

struct data_sum {
	uint64_t hash;
	int64_t rows, targets; /* targets that are scored */
};

#define DATA_SUM_UNKNOWN ((struct data_sum){ .rows = -1 }) /* earlier rows were not summed */

void data_sum_add_row(struct data_sum *s, uint64_t iteration, uint64_t row, const int32_t *tokens,
		      const int32_t *targets, int64_t length);

/* A sum with an unknown one is unknown. */
void data_sum_join(struct data_sum *s, const struct data_sum *more);

/* The sum over all ranks; NULL: this process is alone. */
enum status data_sum_over_ranks(struct data_sum *s, struct ranks *ranks,
				struct error *err) MUST_CHECK;

/* The hash as a number that a double holds exactly. */
double data_sum_number(const struct data_sum *s);

#endif
