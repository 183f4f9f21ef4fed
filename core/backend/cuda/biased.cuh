/*
 * biased - products that add a bias to every row, by cuBLASLt.
 *
 *     out [m,n] = op(A) op(B) + bias [n]
 *
 * cuBLASLt is asked once for each shape which algorithm it advises, and the answer is kept with the
 * context.  The answer follows from the shape, the GPU and the version of cuBLASLt.  Algorithms that cut
 * the sum over k add its parts in float, in a fixed order.
 */
#ifndef CUDA_BIASED_CUH
#define CUDA_BIASED_CUH

#include "core/backend/cuda/cuda.cuh"

/* All that an algorithm depends on, and nothing else: plans are found by these bytes. */
struct biased_shape {
	int64_t m, n, k;
	int64_t a_pitch, b_pitch, pitch;	/* row-major */
	int64_t trans_a, trans_b;		/* 0 or 1 */
	int64_t factor, result;			/* cudaDataType_t; the bias has that of the results */
	int64_t a_aligned, b_aligned, aligned, bias_aligned; /* bytes, at most 16 */
};

struct biased_memory {
	const void *a, *b, *bias;
	void *out;
};

/* false: cuBLASLt has no such product, and nothing was done. */
bool cuda_biased_product(struct cuda_context *g, struct biased_shape shape, struct biased_memory memory);

void cuda_forget_plans(struct cuda_context *g);

#endif
