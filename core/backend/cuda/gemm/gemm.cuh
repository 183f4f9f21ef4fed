/*
 * gemm - row-major matrix products by cuBLAS, and the rounding of their operands.
 *
 *     C [m,n] = alpha op(A) op(B) + beta C,  beta 0 or 1
 *
 * A and B are P::factor: float, double, or bfloat16 with float accumulation. C has its own type.
 * cuBLAS is column-major, so the call computes C^T = op(B)^T op(A)^T. TF32 is off. With one stream
 * and a fixed workspace, cuBLAS is deterministic for a given shape, GPU and version.
 *
 * The products of replicas are batches of cuBLASLt, whose algorithm does not depend on how many
 * there are (epilogue.cuh).
 */
#ifndef CUDA_GEMM_GEMM_CUH
#define CUDA_GEMM_GEMM_CUH

#include "core/backend/cuda/gemm/epilogue.cuh"
#include "core/backend/cuda/gemm/small_gemm.cuh"

static inline cudaDataType_t data_type(const float *)
{
	return CUDA_R_32F;
}
static inline cudaDataType_t data_type(const double *)
{
	return CUDA_R_64F;
}
static inline cudaDataType_t data_type(const __nv_bfloat16 *)
{
	return CUDA_R_16BF;
}

/* Accumulator type; alpha and beta have it, too. bfloat16 accumulates in float. */
template <typename F> struct accumulator_of {
	typedef float real;
	static constexpr cublasComputeType_t TYPE = CUBLAS_COMPUTE_32F;
};
template <> struct accumulator_of<double> {
	typedef double real;
	static constexpr cublasComputeType_t TYPE = CUBLAS_COMPUTE_64F;
};

static inline cublasOperation_t op_of(bool transposed)
{
	return transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

/*
 * A matrix, or a batch of them `stride` elements apart. can_preload: no kernel of the run writes it
 * (a copy of a parameter), so kernels may read it before pdl_wait().
 */
template <typename F> struct matrix {
	const F *at;
	int64_t pitch;
	int64_t stride;
	bool can_preload;
};

/* The output of a product and its type. */
struct gemm_operand {
	void *at;
	cudaDataType_t type;

	gemm_operand(float *x) : at(x), type(CUDA_R_32F)
	{
	}
	gemm_operand(double *x) : at(x), type(CUDA_R_64F)
	{
	}
	template <typename P>
	gemm_operand(output_view<P> x)
	    : at(x.at), type(x.bf16_storage ? data_type((const typename P::factor *)NULL)
					    : data_type((const typename P::real *)NULL))
	{
	}
};

template <typename F>
static struct gemm_shape shape_of(enum epilogue epilogue, bool trans_a, bool trans_b, int64_t m,
				  int64_t n, int64_t k, matrix<F> a, matrix<F> b,
				  struct gemm_operand out, int64_t pitch, int64_t stride = 0,
				  int64_t count = 1)
{
	return { epilogue, m,	  n,	    k,	      a.pitch,
		 b.pitch,  pitch, trans_a,  trans_b,  data_type(a.at),
		 out.type, count, a.stride, b.stride, stride };
}

/*
 * Uses a custom kernel or cuBLASLt. Returns false, and does nothing, if neither supports the
 * product.
 */
static inline bool custom_or_cublaslt(const struct call *c, const struct gemm_shape &shape,
				      const struct gemm_operands &operands)
{
	return shape.m == 0 || shape.n == 0 || cuda_small_gemm(context_of(c), shape, operands) ||
	       cuda_gemm_with_epilogue(context_of(c), shape, operands);
}

/* One call of cuBLASLt for each product of a batch: a call computes it in all replicas. */
static inline void gemm_of_replicas(const struct call *c, struct gemm_shape shape,
				    struct gemm_operands operands)
{
	const int64_t count = shape.count;
	const auto advance = [](const void *at, int64_t stride, int64_t type) {
		return (char *)(uintptr_t)at + stride * size_of_type((cudaDataType_t)type);
	};

	shape.count = 1;
	for (int64_t i = 0; i < count; i++) {
		if (!cuda_gemm_with_epilogue(context_of(c), shape, operands))
			cuda_note_blas(context_of(c), CUBLAS_STATUS_NOT_SUPPORTED, "a product");
		operands.a = advance(operands.a, shape.a_stride, shape.factor);
		operands.b = advance(operands.b, shape.b_stride, shape.factor);
		operands.out = advance(operands.out, shape.stride, shape.result);
		if (operands.addend)
			operands.addend = operands.out;
	}
}

template <typename F>
static void gemm(const struct call *c, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
		 double alpha, matrix<F> a, matrix<F> b, bool add, struct gemm_operand out,
		 int64_t pitch, int64_t stride = 0, int64_t count = 1)
{
	const typename accumulator_of<F>::real factor = alpha, beta = add;
	const struct gemm_shape shape =
		shape_of(EPILOGUE_NONE, trans_a, trans_b, m, n, k, a, b, out, pitch, stride, count);
	const void *addend = add ? out.at : NULL;
	const struct gemm_operands operands = { a.at,	b.at,	NULL,  NULL,
						addend, out.at, alpha, b.can_preload };

	if (m == 0 || n == 0 || cuda_small_gemm(context_of(c), shape, operands))
		return;
	if (REPLICA_FORM) {
		gemm_of_replicas(c, shape, operands);
		return;
	}
	if (data_type(a.at) == CUDA_R_16BF && alpha == 1 && is_store_bound(m, n, k) &&
	    cuda_gemm_with_epilogue(context_of(c), shape, operands))
		return;
	context_of(c)->issued += cuda_gemm_length;
	cuda_note_blas(context_of(c),
		       cublasGemmStridedBatchedEx(
			       context_of(c)->blas, op_of(trans_b), op_of(trans_a), (int)n, (int)m,
			       (int)k, &factor, b.at, data_type(b.at), (int)b.pitch, b.stride, a.at,
			       data_type(a.at), (int)a.pitch, a.stride, &beta, out.at, out.type,
			       (int)pitch, stride, (int)count, accumulator_of<F>::TYPE,
			       CUBLAS_GEMM_DEFAULT),
		       "a product");
}

/*
 * Batched product with device arrays of pointers; type: of the output.  Every replica has arrays of
 * its own, and so a call of its own.
 */
template <typename F>
static void gemm_batched(const struct call *c, bool trans_a, bool trans_b, int64_t m, int64_t n,
			 int64_t k, double alpha, const F *const *a, int64_t lda, const F *const *b,
			 int64_t ldb, bool add, void *const *out, cudaDataType_t type,
			 int64_t pitch, int64_t count)
{
	const typename accumulator_of<F>::real factor = alpha, beta = add;
	const struct replicas &all = context_of(c)->replicas;

	/* After a failure the kernel that writes the arrays may not have run. */
	if (m == 0 || n == 0 || context_of(c)->failed)
		return;
	for (int r = 0; r < replica_count(all); r++) {
		context_of(c)->issued += cuda_gemm_length;
		cuda_note_blas(context_of(c),
			       cublasGemmBatchedEx(context_of(c)->blas, op_of(trans_b),
						   op_of(trans_a), (int)n, (int)m, (int)k, &factor,
						   (const void *const *)in_replica(all, b, r),
						   data_type((const F *)NULL), (int)ldb,
						   (const void *const *)in_replica(all, a, r),
						   data_type((const F *)NULL), (int)lda, &beta,
						   in_replica(all, out, r), type, (int)pitch,
						   (int)count, accumulator_of<F>::TYPE,
						   CUBLAS_GEMM_DEFAULT),
			       "products");
	}
}

/*
 * A product with an epilogue (epilogue.cuh); bias and pre_activation have the output's type. false:
 * not done.
 */
template <typename F>
static bool gemm_with_epilogue(const struct call *c, enum epilogue epilogue, bool trans_a,
			       bool trans_b, int64_t m, int64_t n, int64_t k, matrix<F> a,
			       matrix<F> b, const void *bias, void *pre_activation,
			       struct gemm_operand out, int64_t pitch)
{
	return custom_or_cublaslt(
		c, shape_of(epilogue, trans_a, trans_b, m, n, k, a, b, out, pitch),
		{ a.at, b.at, bias, pre_activation, NULL, out.at, 1, b.can_preload });
}

/* out = addend + alpha op(A) op(B); addend has the output's type. false: not done. */
template <typename F>
static bool gemm_accumulate(const struct call *c, bool trans_a, bool trans_b, int64_t m, int64_t n,
			    int64_t k, double alpha, matrix<F> a, matrix<F> b, const void *addend,
			    struct gemm_operand out, int64_t pitch)
{
	return custom_or_cublaslt(
		c, shape_of(EPILOGUE_NONE, trans_a, trans_b, m, n, k, a, b, out, pitch),
		{ a.at, b.at, NULL, NULL, addend, out.at, alpha, b.can_preload });
}

/* ------------------------------------------------------------- GEMM operands */

/*
 * Can products read the tensor without a rounded copy? The same then holds for its gradient, unless
 * the op has a full_gradient_out.
 */
template <typename P> static bool is_factor(const struct tensor *t)
{
	return !ROUNDS<P> || is_bf16(t);
}

/* Workspace for a rounded copy of n elements of a tensor: 0 if none is needed. */
template <typename P> static int64_t rounded_size(const struct tensor *t, int64_t n)
{
	return is_factor<P>(t) ? 0 : n;
}

/*
 * x [rows,width] with row pitch `pitch` as an operand: in place, or rounded into `copy`
 * [rows,width].
 */
template <typename P>
static matrix<typename P::factor> rounded(const struct call *c, input_view<P> x, int64_t rows,
					  int64_t width, int64_t pitch, typename P::factor *copy)
{
	const int64_t n = rows * width;
	const bool packed = pitch == width;

	if (!ROUNDS<P> || x.bf16_storage)
		return { (const typename P::factor *)x.at, pitch, 0 };
	/* Rows are aligned if the pitch is a multiple of VEC. */
	each_vec(c, n,
		 packed		    ? n
		 : pitch % VEC == 0 ? width
				    : 1,
		 all_of<P>(x), [=] __device__(auto p) {
			 const int64_t at =
				 packed ? p.first : p.first / width * pitch + p.first % width;

			 store_vec(copy + p.first, x[decltype(p){ at }]);
		 });
	return { copy, width, 0 };
}

/* Bytes of copy 0 of parameter in[input], which is the rounded parameter. */
template <typename P> static size_t rounded_copy(const struct node *n, int input, int which)
{
	return ROUNDS<P> && which == 0
		       ? (size_t)tensor_count(n->in[input]) * sizeof(typename P::factor)
		       : 0;
}

/* Copies of the weight in[1]; 0: products read the original. */
template <typename P>
static size_t weight_copies(const struct node *n, enum pass pass, int input, int which)
{
	(void)pass;
	return input == 1 ? rounded_copy<P>(n, input, which) : 0;
}

/* The weight in[1] as an operand: its copy, or rounded into `copy`. */
template <typename P>
static matrix<typename P::factor> weight(const struct call *c, typename P::factor *copy)
{
	const struct tensor *w = c->node->in[1];
	const int64_t width = tensor_dim(w, -1);

	if (c->copy[1][0])
		return { (const typename P::factor *)c->copy[1][0]->memory, width, 0, true };
	return rounded<P>(c, input<P>(c, 1), tensor_count(w) / width, width, width, copy);
}

/* Workspace that weight() needs: none for a parameter. */
template <typename P> static int64_t weight_scratch(const struct tensor *w)
{
	return w->kind == TENSOR_PARAM ? 0 : rounded_size<P>(w, tensor_count(w));
}

#endif
