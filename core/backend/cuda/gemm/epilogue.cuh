/*
 * epilogue - products by cuBLASLt, which may finish their results before these are written.
 *
 *     EPILOGUE_NONE             out [m,n] = alpha op(A) op(B) (+ added [m,n], which may be out)
 *     EPILOGUE_BIAS             out [m,n] = op(A) op(B) + bias [n]
 *     EPILOGUE_GELU             out = gelu(s), before [m,n] = s, s = op(A) op(B) (+ bias)
 *     EPILOGUE_GELU_GRADIENT    out = op(A) op(B) gelu'(before)
 *
 * Nothing is rounded but what is written.  cuBLASLt takes tanh from an instruction that
 * approximates it: the error is far below that of bfloat16, and only products with results in it
 * have a gelu.
 *
 * cuBLASLt is asked once for each shape which algorithms it advises, and one of them is kept with
 * the context.  The choice follows from the shape, the GPU and the version of cuBLASLt.  Algorithms
 * that cut the sum over k add its parts in float, in a fixed order.
 */
#ifndef CUDA_GEMM_EPILOGUE_CUH
#define CUDA_GEMM_EPILOGUE_CUH

#include "core/backend/cuda/primitives/kernel.cuh"

enum epilogue { EPILOGUE_NONE, EPILOGUE_BIAS, EPILOGUE_GELU, EPILOGUE_GELU_GRADIENT };

#ifndef MANY_RESULTS
#define MANY_RESULTS ((int64_t)1 << 22) /* fewer where they are emulated */
#endif

/* Sums so short, and results so many, that writing them takes a good part of the time. */
static inline bool writes_much(int64_t m, int64_t n, int64_t k)
{
	return k <= 1024 && m * n >= MANY_RESULTS;
}

/* All that an algorithm depends on, and nothing else: plans are found by these bytes. */
struct gemm_shape {
	int64_t epilogue;
	int64_t m, n, k;
	int64_t a_pitch, b_pitch,
		pitch;		  /* row-major; `before` and `added` have that of the results */
	int64_t trans_a, trans_b; /* 0 or 1 */
	int64_t factor, result;	  /* cudaDataType_t; bias, `before`, `added` are kept as results */
	int64_t count;		  /* of products, whose matrices lie so far apart: */
	int64_t a_stride, b_stride, stride;
	int64_t a_aligned, b_aligned, aligned, bias_aligned; /* bytes, at most 16; 0: no bias */
};

struct gemm_operands {
	const void *a, *b, *bias;
	void *before;	   /* NULL: none */
	const void *added; /* NULL: nothing; only without epilogue */
	void *out;
	float alpha;  /* 1 with an epilogue */
	bool b_ready; /* before the kernel before has ended */
};

/* false: cuBLASLt has no such product, and nothing was done. */
bool cuda_gemm_with_epilogue(struct cuda_context *g, struct gemm_shape shape,
			     struct gemm_operands memory);

void cuda_forget_plans(struct cuda_context *g);

#endif
