/*
 * kernels - the loops that a backend gives the optimizers.
 *
 * Pointers are device memory of the parameters' type, and so are the decisions
 * of decide.h, from which the kernels take what differs from update to update.
 * With factors->skip they write nothing.
 */
#ifndef OPTIM_KERNELS_H
#define OPTIM_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/optim/decide.h"

/* Neighbouring parameters that are treated alike; padding between them stays zero. */
struct optim_segment {
	int64_t offset, count; /* in the blocks of p, g and m */
	int64_t second;	       /* offset in the blocks of v and vmax: counts all before it */
	bool decays;
};

struct optim_segments {
	struct optim_segment *list;	    /* on the host */
	const struct optim_segment *device; /* the same in device memory */
	int n;
	int64_t total; /* elements of all */
};

/* Matrices of one shape. */
struct optim_matrices {
	int64_t rows, columns;
	const int64_t *offsets; /* in the blocks of p, g and m; on the host */
	const int64_t *device;	/* the same in device memory */
	int n;
};

/*
 * The blocks of an optimizer; NULL where it has none.  `pruned` and `movement` have the weights
 * that may be pruned, as their segments say.
 */
struct optim_blocks {
	void *p;
	const void *g;
	void *m, *v, *vmax;
	void *pruned, *movement;
};

/*
 *     m = beta1 damp_m m + (1 - beta1) scale g,  v = beta2 damp_v v + (1 - beta2) (scale g)^2
 *     d = v, or with amsgrad d = vmax = max(vmax, v)
 *     p = shrink p - rate m / (sqrt(bias d) + eps)
 *
 * shrink acts on segments that decay.
 */
struct adamw_constants {
	double beta1, beta2, eps;
};

/* m = momentum m + scale g,  p = shrink p - lr m */
struct sgd_constants {
	double momentum;
};

/*
 *     m = mu m + (1 - mu) scale g,  u = nesterov ? mu m + (1 - mu) scale g : m
 *     p = (1 - lr lr_ratio decay) p - lr lr_ratio adjust orthogonalised(u)
 */
struct muon_constants {
	double lr_ratio, adjust, weight_decay, momentum, eps;
	bool nesterov;
	int steps;
};

/* Numbers whose squares belong to sums[sum]. */
struct optim_buffer {
	const void *x;
	int64_t n;
	int sum;
};

struct backend;

struct optim_kernels {
	/* sums[i] = the squares of the only stretch of this sum, in double, and the same bits for
	 * any number of threads. */
	void (*sum_squares)(const struct backend *b, const struct optim_buffer *buffers, int n,
			    double *sums);

	/* sums[i] += the squares of all stretches of this sum, one after another: recorded norms of
	 * layers are made so. */
	void (*add_squares)(const struct backend *b, const struct optim_buffer *buffers, int n,
			    double *sums);

	/* Where optim_clips_elements(): clip each entry of g to +-sqrt(theta (v + 1e-12)).  Then
	 * *sum = the squares of g. */
	void (*clip_elements)(const struct backend *b, const struct optim_rule *rule,
			      const struct optim_state *s, void *g, const void *v, int64_t n,
			      double *sum);

	/* optim_decide() */
	void (*decide)(const struct backend *b, const struct optim_rule *rule,
		       struct optim_state *s, const double *losses, int n);

	/* Where factors->restart: m = v = vmax = 0 */
	void (*restart)(const struct backend *b, const struct optim_factors *factors,
			const struct optim_segments *segments, const struct optim_blocks *blocks);

	void (*adamw)(const struct backend *b, const struct optim_factors *factors,
		      const struct adamw_constants *constants,
		      const struct optim_segments *segments, const struct optim_blocks *blocks);
	void (*sgd)(const struct backend *b, const struct optim_factors *factors,
		    const struct sgd_constants *constants, const struct optim_segments *segments,
		    const struct optim_blocks *blocks);

	/* sum = x where x comes first, else sum + x. */
	void (*add)(const struct backend *b, void *sum, const void *x, int64_t n, bool first);

	/* Each matrix for itself. */
	void (*muon)(const struct backend *b, const struct optim_factors *factors,
		     const struct muon_constants *constants, const struct optim_matrices *matrices,
		     const struct optim_blocks *blocks, void *work);
	/* Bytes of `work` for n matrices; a device may take a part of them at a time. */
	size_t (*muon_workspace)(int64_t rows, int64_t columns, int n);

	/* movement = movement - p g */
	void (*add_movement)(const struct backend *b, const struct optim_segments *prunable,
			     const struct optim_blocks *blocks);
	/* Where pruned is not 0: p = 0. */
	void (*prune)(const struct backend *b, const struct optim_segments *prunable,
		      const struct optim_blocks *blocks);
};

#endif
