#include <cublas_v2.h>
#include <cuda_bf16.h>

#include <vector>

#define VERSION 130000

struct emulated_blas {
	cudaStream_t stream;
};

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
	*handle = new struct emulated_blas();
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
	delete handle;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
	handle->stream = stream;
	return CUBLAS_STATUS_SUCCESS;
}

/* No product needs it. */
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void *memory, size_t)
{
	emulated_set_scratch(memory);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion(cublasHandle_t, int *version)
{
	*version = VERSION;
	return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t status)
{
	switch (status) {
	case CUBLAS_STATUS_SUCCESS: return "success";
	case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed";
	case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality requested is not supported";
	}
	return "unknown status";
}

/* -------------------------------------------------------------------- products */

struct operand {
	bool turned;
	int pitch;
};

struct product {
	int m, n, k;
	struct operand a, b;
	double alpha, beta;
	int c_pitch;
};

/* op(x) [rows, columns], column after column, as R. */
template <typename R, typename F>
static std::vector<R> columns_of(struct operand o, const F *x, int rows, int columns)
{
	std::vector<R> all((size_t)rows * (size_t)columns);

	for (int j = 0; j < columns; j++)
		for (int i = 0; i < rows; i++)
			all[(size_t)j * (size_t)rows + (size_t)i] =
				(R)(o.turned ? x[(int64_t)i * o.pitch + j] :
					       x[(int64_t)j * o.pitch + i]);
	return all;
}

/* Sums are R.  With beta 0 what c holds is not read. */
template <typename R, typename F, typename C>
static void multiply(const struct product &p, const F *a, const F *b, C *c)
{
	const std::vector<R> left = columns_of<R>(p.a, a, p.m, p.k);
	const std::vector<R> right = columns_of<R>(p.b, b, p.k, p.n);
	std::vector<R> sum((size_t)p.m);

	for (int j = 0; j < p.n; j++) {
		C *to = c + (int64_t)j * p.c_pitch;

		std::fill(sum.begin(), sum.end(), (R)0);
		for (int l = 0; l < p.k; l++) {
			const R factor = right[(size_t)j * (size_t)p.k + (size_t)l];
			const R *column = &left[(size_t)l * (size_t)p.m];

			for (int i = 0; i < p.m; i++)
				sum[(size_t)i] += column[i] * factor;
		}
		for (int i = 0; i < p.m; i++)
			to[i] = (C)((R)p.alpha * sum[(size_t)i] +
				    (p.beta != 0 ? (R)p.beta * (R)to[i] : 0));
	}
}

typedef void (*multiplier)(const struct product &p, const void *a, const void *b, void *c);

template <typename R, typename F, typename C>
static void multiply_as(const struct product &p, const void *a, const void *b, void *c)
{
	multiply<R>(p, (const F *)a, (const F *)b, (C *)c);
}

/* NULL: cuBLAS has no such product, or none that we use. */
static multiplier multiplier_of(cudaDataType_t a, cudaDataType_t b, cudaDataType_t c,
				cublasComputeType_t compute)
{
	if (a != b)
		return NULL;
	if (a == CUDA_R_64F && c == CUDA_R_64F && compute == CUBLAS_COMPUTE_64F)
		return multiply_as<double, double, double>;
	if (compute != CUBLAS_COMPUTE_32F)
		return NULL;
	if (a == CUDA_R_32F && c == CUDA_R_32F)
		return multiply_as<float, float, float>;
	if (a == CUDA_R_16BF && c == CUDA_R_32F)
		return multiply_as<float, __nv_bfloat16, float>;
	if (a == CUDA_R_16BF && c == CUDA_R_16BF)
		return multiply_as<float, __nv_bfloat16, __nv_bfloat16>;
	return NULL;
}

static double number(const void *at, cublasComputeType_t compute)
{
	return compute == CUBLAS_COMPUTE_64F ? *(const double *)at : *(const float *)at;
}

static size_t size_of(cudaDataType_t type)
{
	return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

static bool is_valid(const struct product &p, int count)
{
	return p.m >= 0 && p.n >= 0 && p.k >= 0 && count >= 0 &&
	       p.a.pitch >= (p.a.turned ? p.k : p.m) && p.a.pitch > 0 &&
	       p.b.pitch >= (p.b.turned ? p.n : p.k) && p.b.pitch > 0 && p.c_pitch >= p.m;
}

/* `multiply_each(multiply, i)` makes the i-th product. */
template <typename F>
static cublasStatus_t enqueue(cublasHandle_t handle, const struct product &p, int count, multiplier multiply,
			      F multiply_each)
{
	if (!multiply)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (!is_valid(p, count))
		return CUBLAS_STATUS_INVALID_VALUE;
	emulated_enqueue(handle->stream, [=] {
		for (int i = 0; i < count; i++)
			multiply_each(multiply, i);
	});
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t trans_a,
					  cublasOperation_t trans_b, int m, int n, int k,
					  const void *alpha, const void *a, cudaDataType_t a_type,
					  int lda, long long a_stride, const void *b,
					  cudaDataType_t b_type, int ldb, long long b_stride,
					  const void *beta, void *c, cudaDataType_t c_type, int ldc,
					  long long c_stride, int count,
					  cublasComputeType_t compute, cublasGemmAlgo_t)
{
	const struct product p = { m, n, k, { trans_a == CUBLAS_OP_T, lda },
				   { trans_b == CUBLAS_OP_T, ldb }, number(alpha, compute),
				   number(beta, compute), ldc };

	return enqueue(handle, p, count, multiplier_of(a_type, b_type, c_type, compute),
		       [=](multiplier multiply, int64_t i) {
			       multiply(p, (const char *)a + i * a_stride * (int64_t)size_of(a_type),
					(const char *)b + i * b_stride * (int64_t)size_of(b_type),
					(char *)c + i * c_stride * (int64_t)size_of(c_type));
		       });
}

cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t trans_a,
				   cublasOperation_t trans_b, int m, int n, int k,
				   const void *alpha, const void *const a[], cudaDataType_t a_type,
				   int lda, const void *const b[], cudaDataType_t b_type, int ldb,
				   const void *beta, void *const c[], cudaDataType_t c_type,
				   int ldc, int count, cublasComputeType_t compute,
				   cublasGemmAlgo_t)
{
	const struct product p = { m, n, k, { trans_a == CUBLAS_OP_T, lda },
				   { trans_b == CUBLAS_OP_T, ldb }, number(alpha, compute),
				   number(beta, compute), ldc };

	return enqueue(handle, p, count, multiplier_of(a_type, b_type, c_type, compute),
		       [=](multiplier multiply, int64_t i) { multiply(p, a[i], b[i], c[i]); });
}
