/*
 * prune - which weights are pruned, and when.
 *
 * Before update t the weights with the lowest scores are chosen, and from that update on the
 * optimizer keeps them at 0.  A pruned weight never comes back.  The score is
 *
 *     magnitude:      |w|
 *     movement:       minus the sum, over the updates so far, of w g
 *                     (Sanh et al. 2020, whose pruned weights may come back)
 *     second moment:  w^2 v, v of Adam, which estimates the diagonal Fisher information
 *                     (LeCun et al. 1989, "Optimal brain damage")
 *
 * g is the gradient before it is clipped to the global norm.  Of equal scores, the weight with the
 * smaller index is pruned.  The share of pruned weights rises by the cubic schedule of Zhu and
 * Gupta 2017, from 0 at update a to S at update b:
 *
 *     s(t) = S (1 - (1 - (c - a) / (b - a))^3)
 *
 * where c is the last update at which weights were chosen: every `interval` updates after a, and b.
 */
#ifndef CORE_TRAIN_PRUNE_H
#define CORE_TRAIN_PRUNE_H

#include "core/optim/optim.h"
#include "core/train/shards.h"

enum prune_method { PRUNE_NONE, PRUNE_MAGNITUDE, PRUNE_MOVEMENT, PRUNE_SECOND_MOMENT };

/*
 * The weights that are compared with each other: all, or those of a tensor.  2of4: those of a
 * tensor, but in every four neighbouring inputs of an output, two weights at most are pruned.
 */
enum prune_scope { PRUNE_GLOBAL, PRUNE_TENSOR, PRUNE_2OF4 };

struct prune_options {
	enum prune_method method;
	enum prune_scope scope;
	double sparsity;	       /* S */
	int64_t first, last, interval; /* a, b */
};

struct config;

/* The options of the configuration; config_check() reports symbols that are missing. */
struct prune_options prune_configured(struct config *c);

/* Can these parameters be pruned so, with this optimizer? */
enum status prune_check(const struct prune_options *o, const struct optim_options *optim,
			const struct params *params, struct error *err) MUST_CHECK;

/* The share that is pruned after update t.  Is it chosen anew before that update? */
double prune_share(const struct prune_options *o, int64_t t);
bool prune_due(const struct prune_options *o, int64_t t);

/*
 * Chooses what is pruned from update t on.  Of the device, one replica must be chosen.  All ranks
 * call it; rank 0 chooses for all.
 */
enum status prune_choose(const struct prune_options *o, int64_t t, const struct params *params,
			 const struct optimizer *optimizer, struct shards *shards,
			 struct error *err) MUST_CHECK;

/*
 * The choice itself: the scores of pruned weights become -INFINITY, those of `share` of the
 * weights, rounded.  `matrices` is a list of matrices, row by row, whose columns are outputs.
 */
struct prune_matrices {
	int64_t n, rows, columns;
};
void prune_mark(enum prune_scope scope, double share, const struct prune_matrices *matrices,
		int tensors, double *scores);

/* The share of 0 in all weights that may be pruned. */
enum status prune_measure(const struct params *params, double *share, struct error *err) MUST_CHECK;

/*
 * Bytes of the weights if such a share is left out: 4 for a weight, and one bit for each that may
 * be pruned, or 2 bits for each that is kept of 2of4.
 */
double prune_bytes(const struct prune_options *o, const struct params *params, double share);

/* Memory of the host for a choice. */
double prune_host_bytes(const struct prune_options *o, const struct params *params);

#endif
