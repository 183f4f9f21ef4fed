/*
 * cuBLAS of the emulated GPU: column-major GEMMs.
 */
#ifndef EMULATED_CUBLAS_V2_H
#define EMULATED_CUBLAS_V2_H

#include <cuda_runtime.h>

enum cublasStatus_t {
	CUBLAS_STATUS_SUCCESS = 0,
	CUBLAS_STATUS_ALLOC_FAILED = 3,
	CUBLAS_STATUS_INVALID_VALUE = 7,
	CUBLAS_STATUS_EXECUTION_FAILED = 13,
	CUBLAS_STATUS_NOT_SUPPORTED = 15,
};
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16BF = 14 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_64F = 70 };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT = -1 };

typedef struct emulated_blas *cublasHandle_t;

cublasStatus_t cublasCreate(cublasHandle_t *handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *memory, size_t bytes);
cublasStatus_t cublasGetVersion(cublasHandle_t handle, int *version);
const char *cublasGetStatusString(cublasStatus_t status);

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t trans_a,
					  cublasOperation_t trans_b, int m, int n, int k,
					  const void *alpha, const void *a, cudaDataType_t a_type,
					  int lda, long long a_stride, const void *b,
					  cudaDataType_t b_type, int ldb, long long b_stride,
					  const void *beta, void *c, cudaDataType_t c_type, int ldc,
					  long long c_stride, int count,
					  cublasComputeType_t compute, cublasGemmAlgo_t algorithm);

/* The arrays of pointers lie in device memory. */
cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t trans_a,
				   cublasOperation_t trans_b, int m, int n, int k,
				   const void *alpha, const void *const a[], cudaDataType_t a_type,
				   int lda, const void *const b[], cudaDataType_t b_type, int ldb,
				   const void *beta, void *const c[], cudaDataType_t c_type,
				   int ldc, int count, cublasComputeType_t compute,
				   cublasGemmAlgo_t algorithm);

#endif
