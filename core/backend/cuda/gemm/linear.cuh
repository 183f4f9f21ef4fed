/* linear - shared by the ops with a linear map y [N,O] = x [N,I] W. */
#ifndef CUDA_GEMM_LINEAR_CUH
#define CUDA_GEMM_LINEAR_CUH

#include "core/backend/cuda/gemm/gemm.cuh"
#include "core/ops/linear_sizes.h"

/* dW = alpha x^T dy in W's layout; add: added to dW. */
template <typename F>
static void linear_to_weight(const struct call *c, const struct linear_sizes &s, double alpha,
			     matrix<F> x, matrix<F> dy, bool add, struct gemm_operand dw)
{
	if (s.transposed)
		gemm(c, true, false, s.o, s.i, s.n, alpha, dy, x, add, dw, s.w_pitch);
	else
		gemm(c, true, false, s.i, s.o, s.n, alpha, x, dy, add, dw, s.w_pitch);
}

#endif
