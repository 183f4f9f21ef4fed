/*
 * Elementary functions as accurate as the result is stored.
 *
 * In bfloat16_products, whose products round to 2^-9, they use the GPU's approximate instructions:
 * the relative error is below 2^-14.  In the other precisions they are the functions of the CPU.
 */
#ifndef CUDA_PRIMITIVES_FAST_MATH_CUH
#define CUDA_PRIMITIVES_FAST_MATH_CUH

#include "core/backend/cuda/primitives/kernel.cuh"
#include "core/backend/cuda/primitives/ptx.cuh"

template <typename P> static __device__ typename P::real fast_exp(typename P::real x)
{
	if constexpr (ROUNDS<P>)
		return ex2_approx(x * (float)M_LOG2E);
	else
		return exp(x);
}

template <typename P>
static __device__ typename P::real fast_divide(typename P::real a, typename P::real b)
{
	if constexpr (ROUNDS<P>)
		return a * rcp_approx(b);
	else
		return a / b;
}

/* log(1 + x) for x in [0, 1] */
template <typename P> static __device__ typename P::real fast_log1p(typename P::real x)
{
	if constexpr (ROUNDS<P>)
		return x < 0x1p-7f ? x * (1 - x * (0.5f - x * (1 / 3.0f)))
				   : (float)M_LN2 * lg2_approx(1 + x);
	else
		return log1p(x);
}

/* 1 / (1 + exp(-x)) */
template <typename P> static __device__ typename P::real fast_sigmoid(typename P::real x)
{
	return fast_divide<P>(1, 1 + fast_exp<P>(-x));
}

/* Reduces the angle modulo 2 pi in double, then takes cosine and sine. */
template <typename P>
static __device__ void fast_sincos(double angle, typename P::real *cosine, typename P::real *sine)
{
	if constexpr (ROUNDS<P>) {
		const double revolutions = angle * (0.5 * M_1_PI);
		const float rest = (float)(2 * M_PI * (revolutions - rint(revolutions)));

		*cosine = cos_approx(rest);
		*sine = sin_approx(rest);
	} else {
		double s, k;

		sincos(angle, &s, &k);
		*cosine = (typename P::real)k;
		*sine = (typename P::real)s;
	}
}

#endif
