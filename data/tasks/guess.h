/*
 * guess - the smallest loss of a guess that ignores the row.
 *
 * The best such guess gives each token its frequency, so its loss is the
 * entropy of the counts: H = - sum_i n_i/n ln(n_i/n), in nats.
 */
#ifndef DATA_TASKS_GUESS_H
#define DATA_TASKS_GUESS_H

#include <stddef.h>
#include <stdint.h>

double guess_loss(const uint64_t *counts, size_t n);

#endif
