/*
 * softplus - log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), for the kernels that use it.
 */
#ifndef CUDA_SOFTPLUS_CUH
#define CUDA_SOFTPLUS_CUH

template <typename R> static __device__ R softplus(R x)
{
	return (x > 0 ? x : 0) + log1p(exp(x > 0 ? -x : x));
}

/* Also its derivative, 1 / (1 + exp(-x)). */
template <typename R> static __device__ R softplus(R x, R *slope)
{
	const R small = exp(x > 0 ? -x : x);

	*slope = (x > 0 ? 1 : small) / (1 + small);
	return (x > 0 ? x : 0) + log1p(small);
}

#endif
