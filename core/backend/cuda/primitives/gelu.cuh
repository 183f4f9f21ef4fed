/*
 * GELU in the tanh form, y = x s(x), and its derivative:
 *
 *     s(x) = (1 + tanh(u)) / 2 = sigmoid(2 u) = 1 / (1 + exp(t)),  t = x (GELU_LINEAR + GELU_CUBIC
 * x^2)
 */
#ifndef CUDA_PRIMITIVES_GELU_CUH
#define CUDA_PRIMITIVES_GELU_CUH

#include "core/backend/cuda/primitives/fast_math.cuh"

#define GELU_LINEAR -1.5957691216057308 /* -2 sqrt(2/pi) */
#define GELU_CUBIC -0.0713548162726009	/* -2 sqrt(2/pi) 0.044715 */

template <typename R> static __device__ R gelu_power(R x)
{
	return x * ((R)GELU_LINEAR + (R)GELU_CUBIC * (x * x));
}

template <typename P> static __device__ typename P::real gelu_factor(typename P::real x)
{
	return fast_sigmoid<P>(-gelu_power(x));
}

/* y = x s, so dy/dx = s - s (1 - s) x dt/dx */
template <typename R> static __device__ R gelu_slope(R x, R s)
{
	return s - s * (1 - s) * (x * ((R)GELU_LINEAR + 3 * (R)GELU_CUBIC * (x * x)));
}

#endif
