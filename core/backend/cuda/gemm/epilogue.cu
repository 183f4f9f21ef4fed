#include <stdlib.h>
#include <string.h>

#include <cublasLt.h>

#include "core/backend/cuda/gemm/epilogue.cuh"

struct plan {
	struct gemm_shape shape;
	bool exists; /* else cuBLASLt has no such product */
	cublasLtMatmulDesc_t product;
	cublasLtMatrixLayout_t a, b, out; /* column-major: a is the second factor */
	cublasLtMatmulAlgo_t algorithm;
};

/* A handle of cuBLAS is one of cuBLASLt, too. */
static cublasLtHandle_t handle(const struct cuda_context *g)
{
	return (cublasLtHandle_t)g->blas;
}

static int64_t alignment(const void *at)
{
	const uintptr_t lowest = (uintptr_t)at & -(uintptr_t)at;

	return lowest < 16 ? (int64_t)lowest : 16;
}

static int64_t smaller(int64_t x, int64_t y)
{
	return x < y ? x : y;
}

template <typename T>
static cublasStatus_t set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t what,
			  T value)
{
	return cublasLtMatmulDescSetAttribute(product, what, &value, sizeof(value));
}

template <typename T>
static cublasStatus_t prefer(cublasLtMatmulPreference_t preference,
			     cublasLtMatmulPreferenceAttributes_t what, T value)
{
	return cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof(value));
}

/* The first failure of many calls. */
struct outcome {
	cublasStatus_t status;

	void operator()(cublasStatus_t next)
	{
		if (status == CUBLAS_STATUS_SUCCESS)
			status = next;
	}
};

static uint32_t epilogue_of(const struct gemm_shape &s)
{
	switch (s.epilogue) {
	case EPILOGUE_GELU:
		return s.bias_aligned ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
				      : CUBLASLT_EPILOGUE_GELU_AUX;
	case EPILOGUE_GELU_GRADIENT:
		return CUBLASLT_EPILOGUE_DGELU;
	case EPILOGUE_BIAS:
		return CUBLASLT_EPILOGUE_BIAS;
	default:
		return CUBLASLT_EPILOGUE_DEFAULT;
	}
}

static void point(const struct plan *p, const struct gemm_operands &memory, struct outcome &note)
{
	if (memory.bias)
		note(set(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, memory.bias));
	if (memory.before)
		note(set(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, memory.before));
}

static void describe(struct plan *p, const struct gemm_operands &memory, struct outcome &note)
{
	const struct gemm_shape &s = p->shape;
	const cudaDataType_t factor = (cudaDataType_t)s.factor, result = (cudaDataType_t)s.result;
	const cublasOperation_t operation_a = s.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
	const cublasOperation_t operation_b = s.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;

	note(cublasLtMatmulDescCreate(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
	note(set(p->product, CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)operation_a));
	note(set(p->product, CUBLASLT_MATMUL_DESC_TRANSB, (int32_t)operation_b));
	note(set(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(s)));
	if (memory.before)
		note(set(p->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s.pitch));
	point(p, memory, note);
	note(cublasLtMatrixLayoutCreate(&p->a, factor, (uint64_t)(s.trans_b ? s.k : s.n),
					(uint64_t)(s.trans_b ? s.n : s.k), s.b_pitch));
	note(cublasLtMatrixLayoutCreate(&p->b, factor, (uint64_t)(s.trans_a ? s.m : s.k),
					(uint64_t)(s.trans_a ? s.k : s.m), s.a_pitch));
	note(cublasLtMatrixLayoutCreate(&p->out, result, (uint64_t)s.n, (uint64_t)s.m, s.pitch));
}

#define SUGGESTIONS 24

static uint32_t tile_of(const cublasLtMatmulHeuristicResult_t &advice)
{
	uint32_t tile = 0;
	size_t written;

	cublasLtMatmulAlgoConfigGetAttribute(&advice.algo, CUBLASLT_ALGO_CONFIG_TILE_ID, &tile,
					     sizeof(tile), &written);
	return tile;
}

static bool has_gelu(const struct gemm_shape &s)
{
	return s.epilogue == EPILOGUE_GELU || s.epilogue == EPILOGUE_GELU_GRADIENT;
}

/*
 * cuBLASLt's first suggestion, which has large tiles; where much is written, one with smaller
 * tiles, of which a processor holds two blocks: one multiplies while the other writes.  On an H200
 * the products of GPT-2 124M in bfloat16 then take 0 to 23 % less time; in float32 one took 12 %
 * more, so there the first suggestion stays.  A gelu takes time of its own, and gains nothing.
 */
static int preferred(const struct gemm_shape &s, const cublasLtMatmulHeuristicResult_t *advice,
		     int n)
{
	if (s.factor != CUDA_R_16BF || !writes_much(s.m, s.n, s.k) || has_gelu(s))
		return 0;
	for (uint32_t tile : { CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_MATMUL_TILE_128x160 })
		for (int i = 0; i < n; i++)
			if (advice[i].state == CUBLAS_STATUS_SUCCESS && tile_of(advice[i]) == tile)
				return i;
	return 0;
}

/* Parts of a sum never pass through the type of the results. */
static void choose(struct cuda_context *g, struct plan *p, struct outcome &note)
{
	cublasLtMatmulPreference_t preference = NULL;
	cublasLtMatmulHeuristicResult_t advice[SUGGESTIONS] = {};
	int found = 0, best;

	note(cublasLtMatmulPreferenceCreate(&preference));
	note(prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)BLAS_MEMORY));
	note(prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
		    (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
	note(prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
		    (uint32_t)p->shape.b_aligned));
	note(prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		    (uint32_t)p->shape.a_aligned));
	note(prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
		    (uint32_t)p->shape.aligned));
	note(prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
		    (uint32_t)p->shape.aligned));
	if (note.status == CUBLAS_STATUS_SUCCESS)
		note(cublasLtMatmulAlgoGetHeuristic(handle(g), p->product, p->a, p->b, p->out,
						    p->out, preference, SUGGESTIONS, advice,
						    &found));
	best = preferred(p->shape, advice, found);
	p->exists = note.status == CUBLAS_STATUS_SUCCESS && found > 0 &&
		    advice[best].state == CUBLAS_STATUS_SUCCESS;
	p->algorithm = advice[best].algo;
	if (preference)
		cublasLtMatmulPreferenceDestroy(preference);
}

static void forget(struct plan *p)
{
	if (p->product)
		cublasLtMatmulDescDestroy(p->product);
	for (cublasLtMatrixLayout_t layout : { p->a, p->b, p->out })
		if (layout)
			cublasLtMatrixLayoutDestroy(layout);
}

static struct plan *room_for_plan(struct cuda_context *g)
{
	void *list = realloc(g->plans, (size_t)(g->n_plans + 1) * sizeof(*g->plans));

	if (!list) {
		cuda_note(g, cudaErrorMemoryAllocation, "the plan of a product");
		return NULL;
	}
	g->plans = (struct plan *)list;
	return &g->plans[g->n_plans++];
}

static const struct plan *plan_for(struct cuda_context *g, const struct gemm_shape &shape,
				   const struct gemm_operands &memory)
{
	struct outcome note = { CUBLAS_STATUS_SUCCESS };
	struct plan *p;

	for (int i = 0; i < g->n_plans; i++)
		if (memcmp(&g->plans[i].shape, &shape, sizeof(shape)) == 0)
			return &g->plans[i];
	p = room_for_plan(g);
	if (!p)
		return NULL;
	*p = {};
	p->shape = shape;
	describe(p, memory, note);
	choose(g, p, note);
	return p;
}

/* What cuBLASLt asks of `before`. */
static bool fits(const struct gemm_shape &s, const void *before)
{
	return s.result == CUDA_R_16BF && s.pitch % 8 == 0 && alignment(before) == 16;
}

bool cuda_gemm_with_epilogue(struct cuda_context *g, struct gemm_shape shape,
			     struct gemm_operands memory)
{
	struct outcome note = { CUBLAS_STATUS_SUCCESS };
	const void *c = memory.added ? memory.added : memory.out;
	const float beta = memory.added ? 1 : 0;
	const struct plan *p;

	if (shape.factor == CUDA_R_64F || shape.count != 1 ||
	    (memory.before && !fits(shape, memory.before)))
		return false;
	shape.a_aligned = alignment(memory.a);
	shape.b_aligned = alignment(memory.b);
	shape.aligned = smaller(alignment(memory.out), alignment(c));
	shape.bias_aligned = alignment(memory.bias);
	p = plan_for(g, shape, memory);
	if (!p || !p->exists)
		return false;
	point(p, memory, note);
	g->issued += cuda_gemm_length;
	note(cublasLtMatmul(handle(g), p->product, &memory.alpha, memory.b, p->a, memory.a, p->b,
			    &beta, c, p->out, memory.out, p->out, &p->algorithm, g->blas_memory,
			    BLAS_MEMORY, g->stream));
	cuda_note_blas(g, note.status, "a product");
	return true;
}

void cuda_forget_plans(struct cuda_context *g)
{
	for (int i = 0; i < g->n_plans; i++)
		forget(&g->plans[i]);
	free(g->plans);
	g->plans = NULL;
	g->n_plans = 0;
}
