/*
 * linear_sizes - the sizes of y [N,O] = x [N,I] W, for the kernels of ops with such a product.
 * W is [I,O], or [O,I] when transposed.
 */
#ifndef CORE_OPS_LINEAR_SIZES_H
#define CORE_OPS_LINEAR_SIZES_H

#include "core/engine/tensor.h"

struct linear_sizes {
	int64_t n, i, o;
	int64_t x_pitch, w_pitch;
	bool transposed;
};

static inline struct linear_sizes linear_sizes_of(const struct tensor *x, const struct tensor *w,
						  bool transposed)
{
	struct linear_sizes s;

	s.i = tensor_dim(x, -1);
	s.n = tensor_count(x) / s.i;
	s.o = w->dim[!transposed];
	s.x_pitch = tensor_contiguous(x) ? s.i : x->pitch;
	s.w_pitch = w->dim[1];
	s.transposed = transposed;
	return s;
}

#endif
