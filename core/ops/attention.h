/*
 * attention - checks and counts that the ops share which rebuild its scores.
 */
#ifndef CORE_OPS_ATTENTION_H
#define CORE_OPS_ATTENTION_H

#include "core/ops/ops.h"

/* Do q, k and (or NULL) key_bias, band and recent of the node, and the attributes, fit together? */
enum status attention_check(struct graph *g, const struct node *n,
			    const struct attention_attr *attr, const struct attention_inputs *in);

/* Is this the lse of an attention with these queries? */
enum status attention_check_lse(struct graph *g, const struct node *n, const struct tensor *q,
				const struct tensor *lse);

/*
 * Pairs (query, key <= query) of one example and head, at most `window` apart (< 0: any), if the
 * queries q are the last tokens for which k has room.
 */
double attention_pairs(const struct tensor *q, const struct tensor *k, int64_t window);

/* Operations to compute the scores of all heads of all examples once. */
double attention_score_flops(const struct attention_attr *attr, const struct tensor *q,
			     const struct tensor *k);

/* Bytes of the node's inputs and outputs, each once. */
double attention_bytes(const struct node *n);

#endif
