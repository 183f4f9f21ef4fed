/*
 * formulas - the formulas of core/ops/pointwise.h and rowwise.h for kernels of precision P.
 *
 * formulas<P>::NAME_forward() and NAME_backward() are the op's own text, compiled with the
 * functions of fast_math.cuh; fused kernels use them, too.  formulas<P>::NAME_op describes the op.
 */
#ifndef CUDA_PRIMITIVES_FORMULAS_CUH
#define CUDA_PRIMITIVES_FORMULAS_CUH

#include "core/backend/cuda/primitives/fast_math.cuh"

#define POINTWISE_DEVICE
#include "core/ops/rowwise.h"

#define SCORE_INDEX static inline __host__ __device__
#include "core/ops/score.h"

#define FORMULA static __device__ __forceinline__
#define POINTWISE(name, inputs, constants, saves, domain, flops)                               \
	struct name##_op {                                                                     \
		static constexpr int INPUTS = inputs, SAVES = saves;                           \
                                                                                               \
		static __device__ __forceinline__ real forward(const real *in, const real *k)  \
		{                                                                              \
			return name##_forward(in, k);                                          \
		}                                                                              \
		static __device__ __forceinline__ void backward(const real *in, const real *k, \
								real y, real dy, real *d)      \
		{                                                                              \
			name##_backward(in, k, y, dy, d);                                      \
		}                                                                              \
	};

#define ROWWISE(name, shape, reductions, saves, flops)                                           \
	struct name##_op {                                                                       \
		static constexpr bool ROWS = shape == PER_ROW;                                   \
		static constexpr int REDUCTIONS = reductions, SAVES = saves;                     \
                                                                                                 \
		static __device__ __forceinline__ real term(real x, real m)                      \
		{                                                                                \
			return name##_term(x, m);                                                \
		}                                                                                \
		static __device__ __forceinline__ real forward(real x, real e, real m, real s)   \
		{                                                                                \
			return name##_forward(x, e, m, s);                                       \
		}                                                                                \
		static __device__ __forceinline__ real back_term(real x, real y, real dy)        \
		{                                                                                \
			return name##_back_term(x, y, dy);                                       \
		}                                                                                \
		static __device__ __forceinline__ real backward(real x, real y, real dy, real t) \
		{                                                                                \
			return name##_backward(x, y, dy, t);                                     \
		}                                                                                \
	};

template <typename P> struct formulas {
	typedef typename P::real real;

	FORMULA real fast_exp(real x)
	{
		return ::fast_exp<P>(x);
	}
	FORMULA real fast_log(real x)
	{
		return ::log(x);
	}
	FORMULA real fast_log1p(real x)
	{
		return ::fast_log1p<P>(x);
	}
	FORMULA real fast_tanh(real x)
	{
		return ROUNDS<P> ? 1 - ::fast_divide<P>(2, 1 + ::fast_exp<P>(2 * x)) : tanh(x);
	}
	FORMULA real fast_divide(real a, real b)
	{
		return ::fast_divide<P>(a, b);
	}
	FORMULA real one_plus_exp2(real t)
	{
		if constexpr (ROUNDS<P>)
			return 1 + ex2_approx(t);
		else
			return 1 + exp2(t);
	}
	FORMULA real fast_sigmoid(real x)
	{
		return ::fast_sigmoid<P>(x);
	}
	FORMULA real reciprocal_root(real x)
	{
		return 1 / sqrt(x);
	}
	FORMULA real larger(real a, real b)
	{
		return a > b ? a : b;
	}
	FORMULA real size_of(real x)
	{
		return x < 0 ? -x : x;
	}

#include "core/ops/score.h"
#include "generated/pointwise_formulas.h"
#include "generated/rowwise_formulas.h"
};

#undef FORMULA
#undef POINTWISE
#undef ROWWISE
#endif
