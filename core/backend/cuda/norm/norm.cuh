/*
 * The tensors of a call of norm or norm_residual:
 *
 *     s = x + residual   (norm: s = x)
 *     y = w (s - mean) / sqrt(variance + eps) + b
 *
 * RMSNorm subtracts no mean.
 */
#ifndef CUDA_NORM_NORM_CUH
#define CUDA_NORM_NORM_CUH

#include "core/backend/cuda/primitives/kernel.cuh"

/* Both ops in one struct.  What an op or a call lacks is NULL. */
template <typename P> struct norm_call {
	typedef typename P::real R;

	enum norm_kind kind;
	R eps;
	int64_t rows;
	int width, residual_pitch; /* elements of a row; elements from one row of residual to the
				      next */
	int weight;		   /* index of the input w; b is the next one */
	const R *w, *b;
	input_view<P> x, residual;
	output_view<P> s, y;
	R *statistics; /* [rows,2]: mean, 1 / standard deviation */

	/* The tensor that is normalised. */
	__host__ __device__ input_view<P> sum() const
	{
		return s ? (input_view<P>)s : x;
	}
};

template <typename P> static norm_call<P> read_call(const struct call *c)
{
	typedef typename P::real real;
	const struct norm_attr *attr = (const struct norm_attr *)c->node->attr;
	const bool has_residual = c->node->id == OP_norm_residual;
	const int64_t width = tensor_dim(c->node->in[0], -1);
	const struct tensor *residual = has_residual ? c->node->in[1] : NULL;
	norm_call<P> m;

	m.kind = attr->kind;
	m.eps = (real)attr->eps;
	m.width = (int)width;
	m.residual_pitch =
		(int)(residual && !tensor_contiguous(residual) ? residual->pitch : width);
	m.rows = tensor_count(c->node->in[0]) / width;
	m.weight = has_residual ? 2 : 1;
	m.x = input<P>(c, 0);
	m.residual = has_residual ? input<P>(c, 1) : input_view<P>{ NULL, false };
	m.w = real_input<P>(c, m.weight);
	m.b = real_input<P>(c, m.weight + 1);
	m.s = has_residual ? output<P>(c, 0) : output_view<P>{ NULL, false };
	m.y = output<P>(c, has_residual ? 1 : 0);
	m.statistics = real_output<P>(c, has_residual ? 2 : 1);
	return m;
}

#endif
