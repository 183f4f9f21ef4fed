/*
 * real - the element type of a kernel template.
 *
 * Every file in core/backend/cpu/kernels/ is compiled three times, with
 * REAL_F32, REAL_F64 and REAL_BF16, which is float with products in bfloat16
 * (gemm.h); `real` is its element type, and KERNELS(name) at its end
 * publishes the set under the name the backend's table expects.
 */
#ifndef CPU_REAL_H
#define CPU_REAL_H

#include <math.h>
#include <string.h>

#include <omp.h>

#include "core/engine/backend.h"
#include "core/backend/cpu/blas.h"
#include "core/ops/ops.h"

#ifdef REAL_F64
#ifdef __clang__ /* double serves checks: exp and log are calls, and such loops stay scalar */
#pragma clang diagnostic ignored "-Wpass-failed"
#endif
typedef double real;
#define KERNELS_OF(name) cpu_##name##_f64
#define gemm blas_gemm_f64
#define root sqrt
#define natural_log log
#else
typedef float real;
#ifdef REAL_BF16
#define KERNELS_OF(name) cpu_##name##_bf16
#else
#define KERNELS_OF(name) cpu_##name##_f32
#endif
#define gemm blas_gemm_f32
#define root sqrtf
#define natural_log logf
#endif
#define KERNELS(name) const struct kernels KERNELS_OF(name)

/* Loops over fewer elements are not worth waking the other threads (measured: about 5 us). */
#define GRAIN 16384

/*
 * Elements that an inner loop of fixed length takes together: some whole vectors, whose
 * instructions the compiler interleaves, so that none waits for the one before it.
 */
#define LANES 16

union float_bits {
	float f;
	uint32_t u;
	int32_t i;
};

/*
 * condition ? yes : x, in integer arithmetic: of a plain conditional with a constant
 * the compiler makes a branch, and the loop around it stays scalar (gcc 12).
 */
static inline float replace_if(bool condition, float yes, float x)
{
	union float_bits from = { .f = x }, to = { .f = yes };

	from.u ^= (from.u ^ to.u) & -(uint32_t)condition;
	return from.f;
}

/*
 * exp without a branch or a call, so that loops over it vectorise: Cody and
 * Waite's reduction x = n ln2 + r, |r| <= ln2/2, then 1 + r + r^2 q(r) with
 * q the minimax polynomial of degree 4 (double: libm).  Relative error over
 * the whole range at most 8.5e-8, 1.4 units in the last place (measured:
 * real_test).  A result below 2^-126 is 0, one above 2^127.5 is infinite;
 * NaN stays NaN.
 */
static inline real fast_exp(real x)
{
#ifdef REAL_F64
	return exp(x);
#else
	const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
	union float_bits t;
	float n, r, q;

	x = replace_if(x < -88.0f, -88.0f, x); /* n = -127: an exponent of 0, the number 0 */
	x = replace_if(x > 89.0f, 89.0f, x);   /* n = 128: an exponent of 255, infinity */
	t.f = x * 1.44269504088896341f + shift;
	n = t.f - shift;
	r = x - n * 0.693145751953125f;		/* ln 2, high part: exact product */
	r = r - n * 1.42860682030941723212e-6f; /* ln 2, low part */
	q = 0.001381461275741458f;
	q = q * r + 0.008368710055947304f;
	q = q * r + 0.04166838899254799f;
	q = q * r + 0.1666652113199234f;
	q = q * r + 0.4999999403953552f;
	q = q * (r * r) + r + 1.0f;
	t.u = (t.u << 23) + 0x3f800000u; /* 2^n: the low bits of t hold n */
	return q * t.f;
#endif
}

/*
 * log of a positive, normal number, in the same manner: x = 2^e m with m in
 * [sqrt(1/2), sqrt(2)), log m = 2 artanh(s), s = (m - 1) / (m + 1).
 */
static inline real fast_log(real x)
{
#ifdef REAL_F64
	return log(x);
#else
	const uint32_t root_half = 0x3f3504f3u; /* the bits of sqrt(1/2) */
	union float_bits t = { .f = x };
	float e, s, z, g;

	t.u -= root_half;
	e = (float)((int32_t)t.u >> 23);
	t.u = (t.u & 0x7fffffu) + root_half;
	s = (t.f - 1.0f) / (t.f + 1.0f);
	z = s * s;
	g = 0.14935864508152008f;
	g = g * z + 0.1998877078294754f;
	g = g * z + 0.3333338797092438f;
	s = 2 * s;
	return e * 0.693145751953125f + (e * 1.42860682030941723212e-6f + (s + s * (z * g)));
#endif
}

/* log(1 + u) for u in [0, 1]: 2 artanh(s), s = u / (2 + u). */
static inline real fast_log1p(real u)
{
#ifdef REAL_F64
	return log1p(u);
#else
	float s = u / (2.0f + u), z = s * s, g;

	g = 0.14012229442596436f;
	g = g * z + 0.13999570906162262f;
	g = g * z + 0.20010849833488464f;
	g = g * z + 0.3333320617675781f;
	s = 2 * s;
	return s + s * (z * g);
#endif
}

/*
 * 1 + 2^t, what a sigmoid divides by, in as few instructions as may be: with n
 * whole and |f| <= 1/2, 2^t = 2^n 2^f, where 2^f is the minimax polynomial of
 * degree 5 that is 1 at 0, and n is added to its exponent.  First t is held in
 * [-125, 126], by one minimum for either side: as unsigned integers, the negative
 * floats are the largest numbers, as signed ones the smallest.  That holds NaN,
 * too: a caller multiplies the result with what it made t from.
 */
static inline real one_plus_exp2(real t)
{
#ifdef REAL_F64
	return 1 + exp2(t);
#else
	const union float_bits low = { .f = -125 }, high = { .f = 126 };
	const float shift = 12582912.0f; /* as above */
	union float_bits x = { .f = t }, n, power;
	float f, square;

	x.u = x.u < low.u ? x.u : low.u;
	x.i = x.i < high.i ? x.i : high.i;
	n.f = x.f + shift;
	f = x.f - (n.f - shift);
	square = f * f;
	power.f = 0.009671512681033452f + 0.0013264727241400188f * f;
	power.f = power.f * square + (0.24022242084743997f + 0.05550733743522903f * f);
	power.f = power.f * square + (1.0f + 0.6931469775987843f * f);
	power.u += n.u << 23;
	return 1.0f + power.f;
#endif
}

static inline real fast_sigmoid(real x)
{
	return 1 / (1 + fast_exp(-x));
}

/* log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)) */
static inline real fast_softplus(real x)
{
	real size = x < 0 ? -x : x;

	return (real)0.5 * (x + size) + fast_log1p(fast_exp(-size));
}

/* tanh(x) = 1 - 2 / (exp(2x) + 1) */
static inline real fast_tanh(real x)
{
	return 1 - 2 / (fast_exp(2 * x) + 1);
}

static inline real larger(real a, real b)
{
	return a > b ? a : b;
}

/* The part [*first, *last) of n items that belongs to the calling thread; the same on every run. */
static inline void thread_share(int64_t n, int64_t *first, int64_t *last)
{
	int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();

	*first = n * me / threads;
	*last = n * (me + 1) / threads;
}

#endif
