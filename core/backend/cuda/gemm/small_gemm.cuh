/*
 * small_gemm - products of bfloat16 that are too small for cuBLAS, by a kernel of our own.
 *
 * For a product of 2048 x 128 x 128 cuBLAS takes 6 to 7 microseconds on an H200: its kernels are
 * made for larger ones.
 */
#ifndef CUDA_GEMM_SMALL_GEMM_CUH
#define CUDA_GEMM_SMALL_GEMM_CUH

#include "core/backend/cuda/gemm/epilogue.cuh"

/* As epilogue.cuh says.  false: the product is not one of these, and nothing was done. */
bool cuda_small_gemm(struct cuda_context *g, const struct gemm_shape &shape,
		     const struct gemm_operands &memory);

#endif
