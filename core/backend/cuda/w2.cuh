/*
 * w2 - what the kernels of W2 attention share: the temperature of a head.
 */
#ifndef CUDA_W2_CUH
#define CUDA_W2_CUH

#include "core/backend/cuda/cuda.cuh"

/* 1 / (|tau| + eps) */
template <typename R> static __device__ R inverse_temperature(R tau, R eps)
{
	return 1 / ((tau < 0 ? -tau : tau) + eps);
}

/* d |tau| / d tau; 0 where it has none */
template <typename R> static __device__ R sign(R tau)
{
	return (R)((tau > 0) - (tau < 0));
}

/* finish(head, sum of value(row) over the rows of that head), rows being numbered [token, head]. */
template <typename F, typename G>
static void sum_heads(const struct call *c, int64_t rows, int64_t heads, F value, G finish)
{
	each_row(c, heads, [=] __device__(int64_t head) {
		double sum = 0;

		for (int64_t r = head + threadIdx.x * heads; r < rows; r += BLOCK * heads)
			sum += (double)value(r);
		sum = block_sum(sum);
		if (threadIdx.x == 0)
			finish(head, sum);
	});
}

#endif
