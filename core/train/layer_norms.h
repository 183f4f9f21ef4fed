/*
 * layer_norms - the norm of the gradient, layer by layer.
 */
#ifndef CORE_TRAIN_LAYER_NORMS_H
#define CORE_TRAIN_LAYER_NORMS_H

#include "core/engine/backend.h"
#include "core/engine/params.h"
#include "core/record/metrics.h"

struct layer_norms {
	const struct params *params;
	const struct backend *backend;
	int layers;
	double *squares; /* device: of each layer, then of what belongs to none */
	double *seen;	 /* the same on the host, replica by replica */
};

/* After a failure layer_norms_close() is due as well. */
enum status layer_norms_open(struct layer_norms *n, const struct params *params,
			     const struct backend *backend, struct error *err);
void layer_norms_close(struct layer_norms *n);

/* Of the gradients as they are now, of all replicas. */
enum status layer_norms_read(struct layer_norms *n, struct error *err) MUST_CHECK;

/* Record those of replica i as grad_norm/PREFIX0 and so on, and as grad_norm/other. */
void layer_norms_record(const struct layer_norms *n, int i, struct metrics *m, int64_t iteration,
			const char *prefix);

#endif
