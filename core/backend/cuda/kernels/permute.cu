/*
 * permute: a thread copies a vector of 16 bytes if x and y share their last dimension, else one
 * element.  Bound by memory bandwidth.
 */
#include "core/backend/cuda/primitives/kernel.cuh"
#include "core/backend/cuda/primitives/fast_divide.cuh"

extern "C" {
#include "core/ops/strides.h"
}

/* The index in x of an element of y. */
struct place {
	struct strides s;
	struct divisor by[TENSOR_MAX_DIMS - 1];

	explicit place(const struct node *n) : s(permute_strides(n))
	{
		for (int i = 0; i < TENSOR_MAX_DIMS - 1; i++)
			by[i] = divisor_of(s.y[i], tensor_count(n->out[0]));
	}
	__device__ int64_t in_x(int64_t at) const
	{
		int64_t sum = 0;

#pragma unroll
		for (int i = 0; i < TENSOR_MAX_DIMS - 1; i++) {
			const int64_t index = by[i].quotient(at);

			sum += index * s.x[i];
			at -= index * s.y[i];
		}
		return sum + at * s.x[TENSOR_MAX_DIMS - 1];
	}
	/* Elements that are adjacent in both. */
	int64_t width() const
	{
		return s.x[TENSOR_MAX_DIMS - 1] == 1 ? s.dim[TENSOR_MAX_DIMS - 1] : 1;
	}
};

template <typename P> static void forward(const struct call *c)
{
	const place of(c->node);
	const auto x = input<P>(c, 0);
	const auto y = output<P>(c, 0);

	each_vec(c, count_of(c->node->out[0]), of.width(),
		 [=] __device__(auto p) { y.put(p, x[decltype(p){ of.in_x(p.first) }]); });
}

template <typename P> static void backward(const struct call *c)
{
	const place of(c->node);
	const auto dy = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0);

	each_vec(c, count_of(c->node->out[0]), of.width(),
		 [=] __device__(auto p) { dx.put(decltype(p){ of.in_x(p.first) }, dy[p]); });
}

KERNELS(permute, forward<P>, backward<P>)
