/*
 * strides - the layout of a permuted tensor, for kernels: four dimensions in the order of y, and
 * how many elements of x lie between neighbours.
 */
#ifndef CORE_OPS_STRIDES_H
#define CORE_OPS_STRIDES_H

#include "core/ops/ops.h"

struct strides {
	int64_t dim[TENSOR_MAX_DIMS], x[TENSOR_MAX_DIMS], y[TENSOR_MAX_DIMS];
};

static inline struct strides permute_strides(const struct node *n)
{
	const struct permute_attr *attr = (const struct permute_attr *)n->attr;
	const struct tensor *x = n->in[0];
	const int missing = TENSOR_MAX_DIMS - x->ndim;
	int64_t stride[TENSOR_MAX_DIMS] = { 0 }, step = 1;
	struct strides s;

	for (int i = x->ndim - 1; i >= 0; i--) {
		if (step == x->row)
			step = x->pitch;
		stride[i] = step;
		step *= x->dim[i];
	}
	step = 1;
	for (int i = TENSOR_MAX_DIMS - 1; i >= 0; i--) {
		const int from = i < missing ? -1 : attr->order[i - missing];

		s.dim[i] = from < 0 ? 1 : x->dim[from];
		s.x[i] = from < 0 ? 0 : stride[from];
		s.y[i] = step;
		step *= s.dim[i];
	}
	return s;
}

#endif
