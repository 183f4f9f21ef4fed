/*
 * repeat - sizes of a tensor that repeats along adjacent dimensions, or is summed over them.
 *
 * small [outer,1,inner] against large [outer,n,inner]: op expand copies the small one to the large
 * one and sums gradients, op sum does the reverse.
 */
#ifndef CORE_OPS_REPEAT_H
#define CORE_OPS_REPEAT_H

#include "core/engine/tensor.h"

struct repeat {
	int64_t outer, n, inner;
};

/* Two tensors with equally many dimensions. */
static inline struct repeat repeat_of(const struct tensor *small, const struct tensor *large)
{
	struct repeat r = { 1, 1, 1 };

	for (int i = 0; i < large->ndim; i++) {
		if (small->dim[i] != large->dim[i]) {
			r.n *= r.inner * large->dim[i];
			r.inner = 1;
		} else if (r.n == 1) {
			r.outer *= large->dim[i];
		} else {
			r.inner *= large->dim[i];
		}
	}
	return r;
}

#endif
