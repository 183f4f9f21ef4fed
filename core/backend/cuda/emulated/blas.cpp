/*
 * cuBLAS and cuBLASLt of the emulated GPU: plain loops over columns.
 * Each sum adds in order, in float or double, and rounds once at the end.
 */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>

#include <math.h>

#include <vector>

#define VERSION 130000

struct emulated_blas {
	cudaStream_t stream;
};

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
	if (emulated_call("alloc", NULL) != cudaSuccess)
		return CUBLAS_STATUS_ALLOC_FAILED;
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

/* The workspace is not used; its contents are not compared. */
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
	case CUBLAS_STATUS_SUCCESS:
		return "success";
	case CUBLAS_STATUS_ALLOC_FAILED:
		return "the resource allocation failed";
	case CUBLAS_STATUS_EXECUTION_FAILED:
		return "the GPU program failed to execute";
	case CUBLAS_STATUS_INVALID_VALUE:
		return "an unsupported value or parameter was passed";
	case CUBLAS_STATUS_NOT_SUPPORTED:
		return "the functionality requested is not supported";
	}
	return "unknown status";
}

/* -------------------------------------------------------------------- products */

struct operand {
	bool transposed;
	int pitch;
};

struct product {
	int m, n, k;
	struct operand a, b;
	double alpha, beta;
	int c_pitch;
	struct epilogue {
		const void *bias; /* [m], in the type of c; NULL: none */
		void *aux;	  /* [m,n], as c; NULL: none */
		int64_t aux_pitch;
		bool gelu, gelu_gradient; /* c = gelu(aux), or c = product * gelu'(aux) */
	} epilogue;
	const void *added; /* matrix to add, as c; NULL: c itself */
};

/* x/2 (1 + tanh(u)) = x s with s = 1 / (1 + exp(-2u)), u = ROOT (x + CUBIC x^3). */
#define ROOT 0.7978845608028654 /* sqrt(2/pi) */
#define CUBIC 0.044715

static double gelu(double x)
{
	return x / (1 + exp(-2 * ROOT * (x + CUBIC * x * x * x)));
}

static double gelu_gradient(double x)
{
	const double s = 1 / (1 + exp(-2 * ROOT * (x + CUBIC * x * x * x)));

	return s + s * (1 - s) * 2 * ROOT * x * (1 + 3 * CUBIC * x * x);
}

/* Applies the epilogue to x, row i of column j, before it is rounded. */
template <typename R, typename C>
static R apply_epilogue(const struct product::epilogue &e, int64_t i, int64_t j, R x)
{
	C *aux = e.aux ? (C *)e.aux + j * e.aux_pitch + i : NULL;

	if (e.bias)
		x += (R)((const C *)e.bias)[i];
	if (e.gelu) {
		*aux = (C)x;
		return (R)gelu((double)x);
	}
	return e.gelu_gradient ? x * (R)gelu_gradient((double)(R)*aux) : x;
}

/* op(x) [rows, columns] as R, column-major. */
template <typename R, typename F>
static std::vector<R> columns_of(struct operand o, const F *x, int rows, int columns)
{
	std::vector<R> all((size_t)rows * (size_t)columns);

	for (int j = 0; j < columns; j++)
		for (int i = 0; i < rows; i++)
			all[(size_t)j * (size_t)rows + (size_t)i] =
				(R)(o.transposed ? x[(int64_t)i * o.pitch + j]
						 : x[(int64_t)j * o.pitch + i]);
	return all;
}

/* Sums in R.  With beta 0, c is not read. */
template <typename R, typename F, typename C>
static void multiply(const struct product &p, const F *a, const F *b, C *c)
{
	const std::vector<R> left = columns_of<R>(p.a, a, p.m, p.k);
	const std::vector<R> right = columns_of<R>(p.b, b, p.k, p.n);
	std::vector<R> sum((size_t)p.m);

	for (int j = 0; j < p.n; j++) {
		C *to = c + (int64_t)j * p.c_pitch;
		const C *added = p.added ? (const C *)p.added + (int64_t)j * p.c_pitch : to;

		std::fill(sum.begin(), sum.end(), (R)0);
		for (int l = 0; l < p.k; l++) {
			const R factor = right[(size_t)j * (size_t)p.k + (size_t)l];
			const R *column = &left[(size_t)l * (size_t)p.m];

			for (int i = 0; i < p.m; i++)
				sum[(size_t)i] += column[i] * factor;
		}
		for (int i = 0; i < p.m; i++)
			to[i] = (C)apply_epilogue<R, C>(
				p.epilogue, i, j,
				(R)p.alpha * sum[(size_t)i] +
					(p.beta != 0 ? (R)p.beta * (R)added[i] : 0));
	}
}

typedef void (*multiplier)(const struct product &p, const void *a, const void *b, void *c);

template <typename R, typename F, typename C>
static void multiply_as(const struct product &p, const void *a, const void *b, void *c)
{
	multiply<R>(p, (const F *)a, (const F *)b, (C *)c);
}

/* NULL: cuBLAS does not support these types, or the backend does not use them. */
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

static double scalar_at(const void *at, cublasComputeType_t compute)
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
	       p.a.pitch >= (p.a.transposed ? p.k : p.m) && p.a.pitch > 0 &&
	       p.b.pitch >= (p.b.transposed ? p.n : p.k) && p.b.pitch > 0 && p.c_pitch >= p.m;
}

/* multiply_each(multiply, i) computes product i. */
template <typename F>
static cublasStatus_t enqueue(cudaStream_t stream, const struct product &p, int count,
			      multiplier multiply, F multiply_each)
{
	if (!multiply)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	if (!is_valid(p, count))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (emulated_call("launch", stream) != cudaSuccess)
		return CUBLAS_STATUS_EXECUTION_FAILED;
	emulated_enqueue(stream, [=] {
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
	const struct product p = { m,
				   n,
				   k,
				   { trans_a == CUBLAS_OP_T, lda },
				   { trans_b == CUBLAS_OP_T, ldb },
				   scalar_at(alpha, compute),
				   scalar_at(beta, compute),
				   ldc,
				   {},
				   NULL };

	return enqueue(handle->stream, p, count, multiplier_of(a_type, b_type, c_type, compute),
		       [=](multiplier multiply, int64_t i) {
			       multiply(p,
					(const char *)a + i * a_stride * (int64_t)size_of(a_type),
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
	const struct product p = { m,
				   n,
				   k,
				   { trans_a == CUBLAS_OP_T, lda },
				   { trans_b == CUBLAS_OP_T, ldb },
				   scalar_at(alpha, compute),
				   scalar_at(beta, compute),
				   ldc,
				   {},
				   NULL };

	return enqueue(handle->stream, p, count, multiplier_of(a_type, b_type, c_type, compute),
		       [=](multiplier multiply, int64_t i) { multiply(p, a[i], b[i], c[i]); });
}

/* ------------------------------------------------------------ products with an epilogue */

struct emulated_lt_product {
	cublasComputeType_t compute;
	bool transposed[2];
	uint32_t epilogue;
	const void *bias;
	int64_t bias_stride; /* elements from one product of a batch to the next */
	void *aux;
	int64_t aux_pitch;
};

struct emulated_lt_layout {
	cudaDataType_t type;
	uint64_t rows, columns;
	int64_t pitch;
	int32_t count;
	int64_t stride; /* elements from one matrix of a batch to the next */
};

struct emulated_lt_preference {
	uint32_t aligned[4];
};

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *product, cublasComputeType_t compute,
					cudaDataType_t)
{
	*product =
		new emulated_lt_product{ compute, {}, CUBLASLT_EPILOGUE_DEFAULT, NULL, 0, NULL, 0 };
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product)
{
	delete product;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
					      cublasLtMatmulDescAttributes_t what,
					      const void *value, size_t bytes)
{
	if (bytes !=
	    (what >= CUBLASLT_MATMUL_DESC_BIAS_POINTER ? sizeof(int64_t) : sizeof(int32_t)))
		return CUBLAS_STATUS_INVALID_VALUE;
	switch (what) {
	case CUBLASLT_MATMUL_DESC_TRANSA:
	case CUBLASLT_MATMUL_DESC_TRANSB:
		product->transposed[what - CUBLASLT_MATMUL_DESC_TRANSA] =
			*(const int32_t *)value == CUBLAS_OP_T;
		break;
	case CUBLASLT_MATMUL_DESC_EPILOGUE:
		product->epilogue = *(const uint32_t *)value;
		break;
	case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
		product->bias = *(const void *const *)value;
		break;
	case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
		product->bias_stride = *(const int64_t *)value;
		break;
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
		product->aux = *(void *const *)value;
		break;
	case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
		product->aux_pitch = *(const int64_t *)value;
		break;
	}
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
					  uint64_t rows, uint64_t columns, int64_t pitch)
{
	*layout = new emulated_lt_layout{ type, rows, columns, pitch, 1, 0 };
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
						cublasLtMatrixLayoutAttribute_t what,
						const void *value, size_t bytes)
{
	const bool count = what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;

	if (bytes != (count ? sizeof(int32_t) : sizeof(int64_t)))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (count)
		layout->count = *(const int32_t *)value;
	else
		layout->stride = *(const int64_t *)value;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
	delete layout;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
	*preference = new emulated_lt_preference{ { 256, 256, 256, 256 } };
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
	delete preference;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
						    cublasLtMatmulPreferenceAttributes_t what,
						    const void *value, size_t bytes)
{
	if (bytes != (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? sizeof(uint64_t)
								       : sizeof(uint32_t)))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (what >= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
		preference->aligned[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES] =
			*(const uint32_t *)value;
	return CUBLAS_STATUS_SUCCESS;
}

static bool fits(cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
		 cublasLtMatrixLayout_t d)
{
	const uint64_t m = product->transposed[0] ? a->columns : a->rows;
	const uint64_t k = product->transposed[0] ? a->rows : a->columns;

	return m == d->rows && k == (product->transposed[1] ? b->columns : b->rows) &&
	       (product->transposed[1] ? b->rows : b->columns) == d->columns;
}

static bool has_aux(cublasLtMatmulDesc_t product)
{
	return product->epilogue &
	       128; /* the bit that all epilogues with an auxiliary matrix share */
}

/*
 * The rules of cuBLASLt for the auxiliary matrix; the backend uses it only with results in
 * bfloat16.
 */
static bool aux_fits(cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t d)
{
	return !has_aux(product) ||
	       (d->type == CUDA_R_16BF && product->aux && (uintptr_t)product->aux % 16 == 0 &&
		product->aux_pitch % 8 == 0 && product->aux_pitch >= (int64_t)d->rows);
}

static struct product::epilogue epilogue_of(cublasLtMatmulDesc_t product)
{
	const bool biased = product->epilogue & CUBLASLT_EPILOGUE_BIAS, aux = has_aux(product);
	const bool gradient = product->epilogue == CUBLASLT_EPILOGUE_DGELU;

	return { biased ? product->bias : NULL, aux ? product->aux : NULL, product->aux_pitch,
		 aux && !gradient, gradient };
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
					      cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
					      cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
					      cublasLtMatmulPreference_t preference, int requested,
					      cublasLtMatmulHeuristicResult_t *results, int *found)
{
	*found = 0;
	if (requested < 1 || !fits(product, a, b, d))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (!multiplier_of(a->type, b->type, d->type, product->compute) || !aux_fits(product, d))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	memcpy(results->algo.aligned, preference->aligned, sizeof(results->algo.aligned));
	results->workspaceSize = 0;
	results->state = CUBLAS_STATUS_SUCCESS;
	*found = 1;
	return CUBLAS_STATUS_SUCCESS;
}

/* The only algorithm has no tiles. */
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *,
						    cublasLtMatmulAlgoConfigAttributes_t,
						    void *value, size_t bytes, size_t *written)
{
	if (bytes != sizeof(uint32_t))
		return CUBLAS_STATUS_INVALID_VALUE;
	*(uint32_t *)value = CUBLASLT_MATMUL_TILE_UNDEFINED;
	*written = bytes;
	return CUBLAS_STATUS_SUCCESS;
}

/* cuBLASLt also supports different layouts; the backend does not use them. */
static bool same_layout(cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
{
	return c->type == d->type && c->rows == d->rows && c->columns == d->columns &&
	       c->pitch == d->pitch;
}

static int64_t byte_stride(cublasLtMatrixLayout_t x)
{
	return x->stride * (int64_t)size_of(x->type);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void *alpha,
			      const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
			      cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
			      cublasLtMatrixLayout_t c_layout, void *d,
			      cublasLtMatrixLayout_t d_layout,
			      const cublasLtMatmulAlgo_t *algorithm, void *, size_t,
			      cudaStream_t stream)
{
	const void *const at[] = { a, b, c, d };
	const struct product p = {
		(int)d_layout->rows,
		(int)d_layout->columns,
		(int)(product->transposed[0] ? a_layout->rows : a_layout->columns),
		{ product->transposed[0], (int)a_layout->pitch },
		{ product->transposed[1], (int)b_layout->pitch },
		scalar_at(alpha, product->compute),
		scalar_at(beta, product->compute),
		(int)d_layout->pitch,
		epilogue_of(product),
		c,
	};

	const int64_t steps[] = { byte_stride(a_layout), byte_stride(b_layout),
				  byte_stride(d_layout),
				  product->bias_stride * (int64_t)size_of(d_layout->type) };

	if (a_layout->count != d_layout->count || b_layout->count != d_layout->count ||
	    (d_layout->count > 1 && has_aux(product)))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (!same_layout(c_layout, d_layout) || !fits(product, a_layout, b_layout, d_layout) ||
	    !aux_fits(product, d_layout))
		return CUBLAS_STATUS_INVALID_VALUE;
	for (int i = 0; i < 4; i++)
		if ((uintptr_t)at[i] % algorithm->aligned[i] != 0)
			return CUBLAS_STATUS_INVALID_VALUE;
	return enqueue(
		stream, p, d_layout->count,
		multiplier_of(a_layout->type, b_layout->type, d_layout->type, product->compute),
		[=](multiplier multiply, int64_t i) {
			struct product own = p;

			own.added = (const char *)c + i * steps[2];
			if (p.epilogue.bias)
				own.epilogue.bias = (const char *)p.epilogue.bias + i * steps[3];
			multiply(own, (const char *)a + i * steps[0],
				 (const char *)b + i * steps[1], (char *)d + i * steps[2]);
		});
}
