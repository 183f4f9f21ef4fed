/*
 * kernels - the loops that a backend gives the optimizers.
 *
 * Pointers are device memory of the parameters' type.  Every update is one
 * pass over memory; the step structs hold numbers common to all elements.
 */
#ifndef OPTIM_KERNELS_H
#define OPTIM_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Neighbouring parameters that are treated alike; padding between them stays zero. */
struct optim_segment {
	int64_t offset, count; /* in the blocks of p, g and m */
	int64_t second;	       /* offset in the blocks of v and vmax */
	bool decays;
};

struct optim_segments {
	struct optim_segment *list;
	int n;
};

/*
 *     m = beta1 damp_m m + (1 - beta1) g,  v = beta2 damp_v v + (1 - beta2) g^2
 *     d = v, or with amsgrad d = vmax = max(vmax, v)
 *     p = shrink p - lr (m / correction1) / (sqrt(d / correction2) + eps)
 */
struct adamw_step {
	double lr, shrink; /* shrink: of segments that decay; 1 elsewhere */
	double scale;	   /* g is the gradient times this */
	double beta1, beta2, eps, correction1, correction2;
	double damp_m, damp_v;
};

/* m = momentum m + g,  p = shrink p - lr m */
struct sgd_step {
	double lr, shrink, scale, momentum;
};

/*
 *     m = mu m + (1 - mu) g,  u = nesterov ? mu m + (1 - mu) g : m
 *     p = shrink p - lr orthogonalised(u)
 */
struct muon_step {
	double lr, shrink, scale, momentum, eps;
	bool nesterov;
	int steps;
};

struct backend;

struct optim_kernels {
	/* In double, and the same bits for any number of threads. */
	double (*sum_squares)(const struct backend *b, const void *x, int64_t n);

	/* Clip each entry of g to +-sqrt(theta (v + 1e-12)); returns the new sum of squares. */
	double (*clip_elements)(const struct backend *b, void *g, const void *v, double theta,
				int64_t n);

	void (*adamw)(const struct backend *b, const struct adamw_step *step,
		      const struct optim_segments *segments, void *p, const void *g, void *m,
		      void *v, void *vmax);
	void (*sgd)(const struct backend *b, const struct sgd_step *step,
		    const struct optim_segments *segments, void *p, const void *g, void *m);

	/* One matrix. */
	void (*muon)(const struct backend *b, const struct muon_step *step, int64_t rows,
		     int64_t columns, void *p, const void *g, void *m, void *work);
	size_t (*muon_workspace)(int64_t rows, int64_t columns);
};

#endif
