/*
 * type - the parts of one optimizer, private to core/optim/.
 */
#ifndef OPTIM_TYPE_H
#define OPTIM_TYPE_H

#include "core/engine/backend.h"
#include "core/optim/optim.h"
#include "core/optim/kernels.h"

struct optimizer {
	struct pool pool;
	const struct optim_type *type;
	struct optim_options options;
	struct params *params;
	const struct optim_kernels *kernels;

	struct optim_segments segments; /* what the element-wise kernels update */
	void *m, *v, *vmax;		/* blocks; NULL: this optimizer has none */
	void *work;			/* of one matrix */
	int64_t second_total;		/* elements of v and of vmax */
	size_t work_bytes;

	struct optim_tensor *tensors;
	int tensor_count;
	struct optim_scalars scalars;
};

/* One update, after the norm is known to be finite. */
struct optim_step {
	int64_t t;
	double lr;
	double scale; /* clipping: of the gradient */
};

struct optim_type {
	bool has_v, has_vmax;
	/* Does v (and vmax) cover this parameter, and do the segments?  NULL: all of them. */
	bool (*elementwise)(const struct param *p);
	/* The global norm; may change the gradient.  NULL: it does not. */
	double (*norm)(struct optimizer *o, int64_t t);
	void (*update)(struct optimizer *o, const struct optim_step *step,
		       struct optim_report *report);
	/* Bytes of workspace for a parameter; NULL: none. */
	size_t (*workspace)(const struct optimizer *o, const struct param *p);
};

extern const struct optim_type optim_adamw, optim_adamwspam, optim_sgd, optim_muon;

/* The share that a decaying parameter keeps. */
static inline double optim_shrink(const struct optimizer *o, double lr)
{
	return 1 - lr * o->options.weight_decay;
}

/* AdamW on the segments; the moments are first multiplied by the two factors. */
void optim_adamw_update(struct optimizer *o, const struct optim_step *step, double damp_m,
			double damp_v);

#endif
