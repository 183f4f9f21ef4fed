/*
 * epilogue - products by cuBLASLt with a fused epilogue.
 *
 *     EPILOGUE_NONE             out [m,n] = alpha op(A) op(B) (+ addend [m,n], which may be out)
 *     EPILOGUE_BIAS             out [m,n] = op(A) op(B) + bias [n]
 *     EPILOGUE_GELU             s = op(A) op(B) (+ bias), out = gelu(s), pre_activation [m,n] = s
 *     EPILOGUE_GELU_GRADIENT    out = op(A) op(B) gelu'(pre_activation)
 *
 * Only stored values are rounded. cuBLASLt's gelu uses the hardware's approximate tanh. Its error
 * is far below that of bfloat16, and only products with bfloat16 output use it.
 *
 * cuBLASLt's heuristic runs once per shape, and the context caches the plan. The choice depends on
 * the shape, the GPU and the version of cuBLASLt. Split-K algorithms reduce in float and in a fixed
 * order.
 *
 * The products of replicas are one strided batch. Bits of a product must not depend on how many
 * there are, so the algorithm is chosen for REPLICAS_PLANNED of them, whatever their number, and it
 * never splits k: a tile of the output is then summed by one block, in the order of k. Of the
 * epilogues, replicas have EPILOGUE_NONE and EPILOGUE_BIAS; and they have float64.
 */
#ifndef CUDA_GEMM_EPILOGUE_CUH
#define CUDA_GEMM_EPILOGUE_CUH

#include "core/backend/cuda/primitives/kernel.cuh"

enum epilogue { EPILOGUE_NONE, EPILOGUE_BIAS, EPILOGUE_GELU, EPILOGUE_GELU_GRADIENT };

#define REPLICAS_PLANNED 64

/* Bytes of an element. */
static inline int64_t size_of_type(cudaDataType_t type)
{
	return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

#ifndef MANY_RESULTS
#define MANY_RESULTS ((int64_t)1 << 22) /* the emulation uses fewer */
#endif

/* Is k so short and the output so large that stores take much of the time? */
static inline bool is_store_bound(int64_t m, int64_t n, int64_t k)
{
	return k <= 1024 && m * n >= MANY_RESULTS;
}

/* The key of a plan: all that the choice of algorithm depends on. Compared as bytes. */
struct gemm_shape {
	int64_t epilogue;
	int64_t m, n, k;
	/* Row-major. pre_activation and addend have the output's pitch and type, bias its type. */
	int64_t a_pitch, b_pitch, pitch;
	int64_t trans_a, trans_b; /* 0 or 1 */
	int64_t factor, result;	  /* cudaDataType_t of A and B, and of the output */
	int64_t count;		  /* batch size */
	int64_t a_stride, b_stride, stride;
	int64_t a_aligned, b_aligned, aligned, bias_aligned; /* bytes, at most 16; 0: no bias */
};

struct gemm_operands {
	const void *a, *b, *bias;
	void *pre_activation; /* or NULL */
	const void *addend;   /* or NULL; EPILOGUE_NONE only */
	void *out;
	double alpha;	    /* 1 with an epilogue */
	bool b_can_preload; /* may be read before pdl_wait() */
};

/* Returns false, and does nothing, if cuBLASLt does not support the product. */
bool cuda_gemm_with_epilogue(struct cuda_context *g, struct gemm_shape shape,
			     struct gemm_operands operands);

void cuda_forget_plans(struct cuda_context *g);

#endif
