/*
 * some_rows - the product of gemv.cuh for 5 to 64 rows of bfloat16, on tensor cores.
 *
 * A block has some outputs and all rows.  Its warps take turns at pieces of 32 channels, and their
 * sums are added in a fixed order.  A sum over channels has no order of its own, so each lane reads
 * pieces of 16 bytes of W and x straight into the fragments of two steps: with group = lane / 4,
 * pair = lane % 4, it has channels 8 pair + 4 half + 0..3 of outputs `group` and group + 8 of each
 * tile of 16, and of row `group` of each tile of 8.
 */
#ifndef CUDA_GEMM_SKINNY_GEMM_CUH
#define CUDA_GEMM_SKINNY_GEMM_CUH

#include "core/backend/cuda/primitives/ptx.cuh"

#define SKINNY_MAX_ROWS 64
#define SKINNY_WARPS 8 /* of a block */
#define SKINNY_OUTS 16 /* of a tile; a block has one or two tiles */
#define SKINNY_VECS 3  /* of W that a lane has at a time, for each of its outputs */

template <typename P, int TILES> struct skinny_gemm_sums {
	typedef typename P::factor factor;

	static constexpr int OUTS = SKINNY_OUTS * TILES, ROW_TILES = SKINNY_MAX_ROWS / 8;
	static constexpr int LINE = SKINNY_MAX_ROWS + 2; /* of shared memory, for an output */

	int warp, group, pair;
	vec16 w[SKINNY_VECS][TILES][2];
	float sum[TILES][ROW_TILES][4];

	__device__ skinny_gemm_sums()
	    : warp((int)threadIdx.x / WARP), group((int)threadIdx.x % WARP / 4),
	      pair((int)threadIdx.x % 4)
	{
	}
	__device__ int channel(int first, int k) const
	{
		return (first + k * SKINNY_WARPS + warp) * 32 + 8 * pair;
	}
	/* The lane's pieces of W among those from number `first` on. */
	__device__ void read(const gemv_problem<P> &p, const gemv_product<P> &product, int output,
			     int first)
	{
		const int I = (int)p.I, left = (int)product.O - output - group;
		const factor *row = product.w + (int64_t)(output + group) * I;

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
	 * All rows are read at once, and nothing is multiplied before: the compiler would delay
	 * reads, to save registers, also across issue_loads() and a barrier.  Sums begin with a
	 * zero of shared memory, which it cannot know before the barrier.
	 */
	__device__ void add(const gemv_problem<P> &p, int first, const float *zero)
	{
		const int pitch = (int)p.x_pitch;
		const factor *x = (const factor *)p.x.at + group * pitch;
		vec16 b[SKINNY_VECS][ROW_TILES];

#pragma unroll
		for (int k = 0; k < SKINNY_VECS; k++)
#pragma unroll
			for (int tile = 0; tile < ROW_TILES; tile++) {
				const int i = channel(first, k);

				b[k][tile] = {};
				if (i < (int)p.I && 8 * tile + group < p.n)
					b[k][tile] = *(const vec16 *)(x + 8 * tile * pitch + i);
			}
		__syncthreads();
		if (first == 0)
			each([&](int, float &sum) { sum = *zero; });
#pragma unroll
		for (int k = 0; k < SKINNY_VECS; k++)
#pragma unroll
			for (int tile = 0; tile < ROW_TILES; tile++)
				multiply(k, tile, b[k][tile]);
	}
	__device__ void multiply(int k, int tile, const vec16 &b)
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

	/* f(number of the sum, the sum) for all sums of the lane. */
	template <typename F> __device__ void each(F f)
	{
#pragma unroll
		for (int t = 0; t < TILES; t++)
#pragma unroll
			for (int tile = 0; tile < ROW_TILES; tile++)
#pragma unroll
				for (int e = 0; e < 4; e++)
					f((16 * t + group + 8 * (e / 2)) * LINE + 8 * tile +
						  2 * pair + e % 2,
					  sum[t][tile][e]);
	}
};

template <typename P, int TILES>
static __global__ void __launch_bounds__(SKINNY_WARPS *WARP)
	skinny_gemm_kernel(const __grid_constant__ gemv_problem<P> p)
{
	typedef skinny_gemm_sums<P, TILES> sums;
	constexpr int HALF = SKINNY_WARPS / 2;
	__shared__ float shared[HALF][sums::OUTS * sums::LINE], zero;
	int number = 0;
	sums s;

	while (number + 1 < p.n_products && blockIdx.x >= p.product[number + 1].before)
		number++;
	const gemv_product<P> &product = p.product[number];
	const int output = ((int)blockIdx.x - (int)product.before) * sums::OUTS;
	const int out = (int)threadIdx.x % sums::OUTS, o = output + out;

	if (threadIdx.x == 0)
		zero = 0;
	s.read(p, product, output, 0);
	const gemv_end<P> end(p, number, o);

	pdl_wait();
	for (int first = 0; first * 32 < p.I; first += SKINNY_VECS * SKINNY_WARPS) {
		if (first > 0)
			s.read(p, product, output, first);
		s.add(p, first, &zero);
	}
	if (s.warp >= HALF)
		s.each([&](int at, float &sum) { shared[s.warp - HALF][at] = sum; });
	__syncthreads();
	if (s.warp < HALF)
		s.each([&](int at, float &sum) {
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
			total += shared[k][out * sums::LINE + row];
		end.put(p, row, total);
	}
}

#endif
