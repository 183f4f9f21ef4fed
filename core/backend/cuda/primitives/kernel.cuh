/*
 * What every kernel file includes: the precisions, launches, reductions and scratch memory.
 *
 * A kernel file is a template over a precision P: single_precision, double_precision, or
 * bfloat16_products, which computes in float and multiplies matrices in bfloat16.  Its functions
 * mirror those of the CPU: forward and backward take a struct call, whose pointers are device
 * memory.  They launch work with elementwise.cuh and reduce.cuh, and matrix products with gemm().
 * All work goes to the context's current stream.  Every sum has a fixed order.
 */
#ifndef CUDA_PRIMITIVES_KERNEL_CUH
#define CUDA_PRIMITIVES_KERNEL_CUH

#include <math.h>
#include <stdint.h>

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

extern "C" {
#include "core/engine/backend.h"
#include "core/ops/ops.h"
}

#include "core/backend/cuda/device/launch.cuh"
#include "core/backend/cuda/device/context.cuh"
#include "core/backend/cuda/primitives/view.cuh"
#include "core/backend/cuda/primitives/elementwise.cuh"
#include "core/backend/cuda/primitives/reduce.cuh"

/* Defines the tables of an op that the backend looks up: a struct kernels for each precision P. */
#define KERNELS(name, ...)                                                             \
	template <typename P> static constexpr struct kernels name##_kernels()         \
	{                                                                              \
		return { __VA_ARGS__ };                                                \
	}                                                                              \
	extern "C" {                                                                   \
	extern const struct kernels cuda_##name##_f32;                                 \
	extern const struct kernels cuda_##name##_f64;                                 \
	extern const struct kernels cuda_##name##_bf16;                                \
	const struct kernels cuda_##name##_f32 = name##_kernels<single_precision>();   \
	const struct kernels cuda_##name##_f64 = name##_kernels<double_precision>();   \
	const struct kernels cuda_##name##_bf16 = name##_kernels<bfloat16_products>(); \
	}

/* ------------------------------------------------------------ learned or constant factor */

/*
 * The factor of a node with struct factor_attr: a learned scalar, or the constant of the node.
 * Only the device can read a learned one.
 */
template <typename R> struct scalar_factor {
	const R *learned;
	R constant;

	__device__ R get() const
	{
		return learned ? *learned : constant;
	}
};

template <typename P>
static scalar_factor<typename P::real> factor(const struct call *c, int learned)
{
	const struct factor_attr *attr = (const struct factor_attr *)c->node->attr;

	return { real_input<P>(c, learned), (typename P::real)attr->constant };
}

/* ------------------------------------------------------------- scratch memory */

/* Allocates from c->work, aligned to 256 bytes.  With `at` NULL it only counts bytes. */
struct scratch {
	char *at;
	int sms; /* multiprocessors of the GPU */
	size_t used;

	template <typename R> R *alloc(int64_t elements)
	{
		R *memory = at ? (R *)(at + used) : NULL;

		used += ((size_t)elements * sizeof(R) + 255) / 256 * 256;
		return memory;
	}
};

static inline struct scratch scratch_of(const struct call *c)
{
	return { (char *)c->work, context_of(c)->sm_count, 0 };
}

/* To count bytes. */
static inline struct scratch count_scratch(int sms)
{
	return { NULL, sms, 0 };
}

/* The `workspace` function of kernels whose `alloc_all` allocates all scratch memory of a pass. */
template <auto alloc_all> static size_t workspace_of(const struct node *n, enum pass pass, int sms)
{
	struct scratch m = count_scratch(sms);

	alloc_all(&m, n, pass);
	return m.used;
}

static inline int64_t count_of(const struct tensor *t)
{
	return tensor_count(t);
}

#endif
