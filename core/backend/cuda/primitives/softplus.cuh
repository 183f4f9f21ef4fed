/*
 * softplus(x) = log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), and its derivative.
 */
#ifndef CUDA_PRIMITIVES_SOFTPLUS_CUH
#define CUDA_PRIMITIVES_SOFTPLUS_CUH

#include "core/backend/cuda/primitives/fast_math.cuh"

template <typename P> static __device__ typename P::real softplus(typename P::real x)
{
	return (x > 0 ? x : 0) + fast_log1p<P>(fast_exp<P>(x > 0 ? -x : x));
}

/* Also sets *slope to the derivative, 1 / (1 + exp(-x)). */
template <typename P>
static __device__ typename P::real softplus(typename P::real x, typename P::real *slope)
{
	const typename P::real e = fast_exp<P>(x > 0 ? -x : x);

	*slope = fast_divide<P>(x > 0 ? 1 : e, 1 + e);
	return (x > 0 ? x : 0) + fast_log1p<P>(e);
}

#endif
