/*
 * type - the parts of one optimizer, private to core/optim/.
 */
#ifndef OPTIM_TYPE_H
#define OPTIM_TYPE_H

#include "core/engine/replay.h"
#include "core/optim/optim.h"
#include "core/optim/kernels.h"

struct optimizer {
	struct pool pool;
	const struct optim_type *type;
	struct optim_options options;
	struct optim_rule rule;
	struct params *params;
	const struct backend *backend;
	const struct optim_kernels *kernels;

	struct optim_segments segments; /* what the element-wise kernels update */
	struct optim_segments prunable; /* what may be pruned */
	struct optim_matrices *shapes;	/* what is updated matrix by matrix, shape by shape */
	int n_shapes;
	int64_t *matrices; /* the offsets of all shapes */
	int n_matrices;
	int64_t *device_matrices; /* the same in device memory */
	struct optim_blocks blocks;
	void *work; /* of the matrices of one shape */
	size_t work_bytes;

	struct optim_state *state;	/* device */
	struct optim_request *requests; /* by replica, of the last update */
	int asked;			/* updates whose reports were not read */
	const double *losses;		/* device: they must be finite */
	int n_losses;
	struct replay replay; /* of an update with these losses and so many copies of parameters */
	int n_copies;

	struct optim_tensor *tensors;
	int tensor_count;

	optim_join join; /* NULL: these are all parameters */
	void *join_context;
	double *squares;      /* device: for join, by parameter */
	double *seen_squares; /* the same on the host */
	struct optim_buffer *gradients;
};

struct optim_type {
	bool has_v, has_vmax;
	/* Does v (and vmax) cover this parameter, and do the segments?  If not, its last two
	 * dimensions are those of matrices.  NULL: all parameters. */
	bool (*elementwise)(const struct param *p);
	/* Ask for one update, as decided in device memory. */
	void (*update)(struct optimizer *o);
	/* Bytes of workspace for matrices of one shape; NULL: none. */
	size_t (*workspace)(const struct optimizer *o, const struct optim_matrices *m);
};

extern const struct optim_type optim_adamw, optim_adamwspam, optim_sgd, optim_muon;

/* AdamW on the segments. */
void optim_adamw_update(struct optimizer *o);

#endif
