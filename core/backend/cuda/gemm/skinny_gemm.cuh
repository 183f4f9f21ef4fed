/*
 * skinny_gemm - the product of gemv.cuh for 5 to 64 rows of bfloat16, on tensor cores.
 *
 * A block computes 16 or 32 outputs of all rows; memory bandwidth bounds it. Warp w of 8 sums over
 * channel groups w, w + 8, ... of 32 channels, and the warps' sums are added in a fixed order.
 *
 * The order of the channels within a product is free. So each lane loads 16-byte vectors of W and x
 * directly into the fragments of two mma.sync m16n8k16. With PTX's groupID = lane / 4 and
 * threadID_in_group t = lane % 4, a lane has channels 8 t + 4 half + 0..3 of outputs groupID and
 * groupID + 8 of each 16-output tile, and of row groupID of each 8-row tile.
 */
#ifndef CUDA_GEMM_SKINNY_GEMM_CUH
#define CUDA_GEMM_SKINNY_GEMM_CUH

#include "core/backend/cuda/primitives/ptx.cuh"

#define SKINNY_MAX_ROWS 64
#define SKINNY_WARPS 8 /* per block */
#define SKINNY_OUTS 16 /* per tile; a block has one or two tiles */
#define SKINNY_VECS 3  /* vectors of W per lane and step, for each of its outputs */

template <typename P, int TILES> struct skinny_gemm_sums {
	typedef typename P::factor factor;

	static constexpr int OUTS = SKINNY_OUTS * TILES, ROW_TILES = SKINNY_MAX_ROWS / 8;
	static constexpr int SMEM_PITCH = SKINNY_MAX_ROWS + 2; /* per output, padded */

	int warp, group_id, thread_in_group;
	vec16 w[SKINNY_VECS][TILES][2];
	float sum[TILES][ROW_TILES][4];

	__device__ skinny_gemm_sums()
	    : warp((int)threadIdx.x / WARP), group_id((int)threadIdx.x % WARP / 4),
	      thread_in_group((int)threadIdx.x % 4)
	{
	}
	__device__ int channel(int first, int k) const
	{
		return (first + k * SKINNY_WARPS + warp) * 32 + 8 * thread_in_group;
	}
	/* Loads the lane's vectors of W; first: index of the first group of 32 channels. */
	__device__ void read(const gemv_params<P> &p, const gemv_product<P> &product, int output,
			     int first)
	{
		const int I = (int)p.I, left = (int)product.O - output - group_id;
		const factor *row = product.w + (int64_t)(output + group_id) * I;

#pragma unroll
		for (int k = 0; k < SKINNY_VECS; k++)
#pragma unroll
			for (int n = 0; n < 2 * TILES; n++) {
				const int i = channel(first, k);

				w[k][n / 2][n % 2] = {};
				if (i < I && 8 * n < left)
					w[k][n / 2][n % 2] = *(const vec16 *)(row + 8 * n * I + i);
			}
	}
	/*
	 * Loads all rows of x before the first mma. The compiler would otherwise sink the loads
	 * below the mma to save registers, even across a barrier. Accumulators therefore start from
	 * a zero in shared memory, whose value is unknown to the compiler before the barrier.
	 */
	__device__ void add(const gemv_params<P> &p, int first, const float *zero)
	{
		const int pitch = (int)p.x_pitch;
		const factor *x = (const factor *)p.x.at + group_id * pitch;
		vec16 b[SKINNY_VECS][ROW_TILES];

#pragma unroll
		for (int k = 0; k < SKINNY_VECS; k++)
#pragma unroll
			for (int tile = 0; tile < ROW_TILES; tile++) {
				const int i = channel(first, k);

				b[k][tile] = {};
				if (i < (int)p.I && 8 * tile + group_id < p.n)
					b[k][tile] = *(const vec16 *)(x + 8 * tile * pitch + i);
			}
		__syncthreads();
		if (first == 0)
			for_each_sum([&](int, float &sum) { sum = *zero; });
#pragma unroll
		for (int k = 0; k < SKINNY_VECS; k++)
#pragma unroll
			for (int tile = 0; tile < ROW_TILES; tile++)
				mma_step(k, tile, b[k][tile]);
	}
	__device__ void mma_step(int k, int tile, const vec16 &b)
	{
#pragma unroll
		for (int half = 0; half < 2; half++)
#pragma unroll
			for (int t = 0; t < TILES; t++) {
				const uint32_t *low = w[k][t][0].word + 2 * half;
				const uint32_t *high = w[k][t][1].word + 2 * half;
				const uint32_t a[4] = { low[0], high[0], low[1], high[1] };

				mma(sum[t][tile], a, b.word[2 * half], b.word[2 * half + 1]);
			}
	}

	/* Calls f(index, sum) for all accumulators of the lane. */
	template <typename F> __device__ void for_each_sum(F f)
	{
#pragma unroll
		for (int t = 0; t < TILES; t++)
#pragma unroll
			for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					f((16 * t + group_id + 8 * (e / 2)) * SMEM_PITCH +
						  8 * tile + 2 * thread_in_group + e % 2,
					  sum[t][tile][e]);
	}
};

template <typename P, int TILES>
static __global__ void __launch_bounds__(SKINNY_WARPS *WARP)
	skinny_gemm_kernel(struct replicas replicas, const __grid_constant__ gemv_params<P> given)
{
	const auto &p = replicas.own_copy(given);
	typedef skinny_gemm_sums<P, TILES> sums;
	constexpr int HALF = SKINNY_WARPS / 2;
	__shared__ float shared[HALF][sums::OUTS * sums::SMEM_PITCH], zero;
	int product_index = 0;
	sums s;

	while (product_index + 1 < p.n_products &&
	       blockIdx.x >= p.product[product_index + 1].first_group)
		product_index++;
	const gemv_product<P> &product = p.product[product_index];
	const int output = ((int)blockIdx.x - (int)product.first_group) * sums::OUTS;
	const int out = (int)threadIdx.x % sums::OUTS, o = output + out;

	if (threadIdx.x == 0)
		zero = 0;
	s.read(p, product, output, 0);
	const gemv_epilogue<P> epilogue(p, product_index, o);

	pdl_wait();
	for (int first = 0; first * 32 < p.I; first += SKINNY_VECS * SKINNY_WARPS) {
		if (first > 0)
			s.read(p, product, output, first);
		s.add(p, first, &zero);
	}
	if (s.warp >= HALF)
		s.for_each_sum([&](int at, float &sum) { shared[s.warp - HALF][at] = sum; });
	__syncthreads();
	if (s.warp < HALF)
		s.for_each_sum([&](int at, float &sum) {
			sum += shared[s.warp][at];
			shared[s.warp][at] = sum;
		});
	__syncthreads();
	if (o >= product.O)
		return;
	for (int row = (int)threadIdx.x / sums::OUTS; row < p.n;
	     row += SKINNY_WARPS * WARP / sums::OUTS) {
		float total = 0;

#pragma unroll
		for (int k = 0; k < HALF; k++)
			total += shared[k][out * sums::SMEM_PITCH + row];
		epilogue.put(p, row, total);
	}
}

#endif
