/*
 * small_gemm - bfloat16 products that are too small for cuBLAS, by a custom kernel.
 *
 * cuBLAS takes 6 to 7 us for a product of 2048 x 128 x 128 on an H200: its kernels are made for
 * larger ones.
 */
#ifndef CUDA_GEMM_SMALL_GEMM_CUH
#define CUDA_GEMM_SMALL_GEMM_CUH

#include "core/backend/cuda/gemm/epilogue.cuh"

/*
 * A product with an epilogue (epilogue.cuh). Returns false, and does nothing, if the kernel does
 * not apply.
 */
bool cuda_small_gemm(struct cuda_context *g, const struct gemm_shape &shape,
		     const struct gemm_operands &operands);

#endif
