/*
 * w2 - what the kernels of W2 attention share: the temperature of a head.
 */
#ifndef CUDA_W2_CUH
#define CUDA_W2_CUH

#include "core/backend/cuda/heads.cuh"

/* 1 / (|tau| + eps) */
template <typename R> static __device__ R inverse_temperature(R tau, R eps)
{
	return 1 / ((tau < 0 ? -tau : tau) + eps);
}

/* d |tau| / d tau; 0 where it has none */
template <typename R> static __device__ R sign(R tau)
{
	return (R)((tau > 0) - (tau < 0));
}

#endif
