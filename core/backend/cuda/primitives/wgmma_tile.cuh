/*
 * Products of tiles with wgmma (wgmma.cuh).
 *
 * A warpgroup of 128 threads computes 64 rows of a product; each warp holds 16 of them as
 * fragments. The layout is that of mma_tile.cuh, so kernels choose between the two by the type of
 * the tile.
 *
 * A swizzled_tile has rows of W elements, stored as columns of 64.  In a column a row takes 128
 * bytes, and its vector v is stored at position v ^ (r % 8): the "128B swizzle" of wgmma.  A tile
 * starts at a multiple of 1024 bytes.
 */
#ifndef CUDA_PRIMITIVES_WGMMA_TILE_CUH
#define CUDA_PRIMITIVES_WGMMA_TILE_CUH

#include "core/backend/cuda/primitives/mma_tile.cuh"
#include "core/backend/cuda/primitives/wgmma.cuh"

#define SWIZZLE_ALIGNMENT 1024

template <int W, int ROWS> struct swizzled_tile {
	typedef bf16 element;
	static constexpr int WIDTH = W, LINE = SWIZZLE_ROW_BYTES;
	static constexpr int COLUMN =
		ROWS * SWIZZLE_ROW_BYTES; /* bytes of a column of 64 elements */

	uint32_t at; /* address in shared memory */

	__device__ uint32_t vec(int row, int index) const
	{
		return at + (uint32_t)(index / 8 * COLUMN + row * SWIZZLE_ROW_BYTES +
				       ((index ^ row) % 8) * 16);
	}
	/* Descriptors of elements 16 k to 16 k + 15 of each row, and of rows 16 k to 16 k + 15. */
	__device__ __forceinline__ uint64_t k_major(int first_row, int k) const
	{
		return advance_descriptor(smem_descriptor(at, COLUMN),
					  first_row * SWIZZLE_ROW_BYTES + k / 4 * COLUMN +
						  k % 4 * 32);
	}
	__device__ __forceinline__ uint64_t mn_major(int k) const
	{
		return advance_descriptor(smem_descriptor(at, COLUMN), 16 * k * SWIZZLE_ROW_BYTES);
	}
};

/* The thread's warpgroup, as a value that the compiler knows to be the same in a whole warp. */
static __device__ __forceinline__ int warpgroup(void)
{
	return __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
}

/* x [64, n] = a [64, W] b [n, W]', a from row `first` on; done after wgmma_wait() */
template <int COLUMNS, int W, int ROWS>
static __device__ __forceinline__ void begin_product_nt(float (&x)[1][COLUMNS][4],
							swizzled_tile<W, ROWS> a, int first,
							swizzled_tile<W, 8 * COLUMNS> b)
{
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < W / 16; k++)
		wgmma(x[0], a.k_major(first, k), b.k_major(0, k), k > 0);
	wgmma_commit();
}

/* x [64, W] += p [64, k] b [k, W], with p in bfloat16; done after wgmma_wait() */
template <int COLUMNS, int W>
static __device__ __forceinline__ void begin_product_nn(float (&x)[1][W / 8][4],
							const uint32_t (&p)[COLUMNS / 2][4],
							swizzled_tile<W, 8 * COLUMNS> b)
{
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < COLUMNS / 2; k++)
		wgmma(x[0], p[k], b.mn_major(k));
	wgmma_commit();
}

template <int COLUMNS>
static __device__ __forceinline__ void round_fragments(uint32_t (&left)[COLUMNS / 2][4],
						       const float (&p)[1][COLUMNS][4])
{
#pragma unroll
	for (int k = 0; k < COLUMNS; k++) {
		left[k / 2][k % 2 * 2] = pack_bf16x2(p[0][k][0], p[0][k][1]);
		left[k / 2][k % 2 * 2 + 1] = pack_bf16x2(p[0][k][2], p[0][k][3]);
	}
}

/* The synchronous forms, as in mma_tile.cuh: x = a b' and x += p b. */
template <int COLUMNS, int W, int ROWS>
static __device__ __forceinline__ void product_nt(float (&x)[1][COLUMNS][4],
						  swizzled_tile<W, ROWS> a, int,
						  swizzled_tile<W, 8 * COLUMNS> b)
{
	begin_product_nt(x, a, 64 * warpgroup(), b);
	wgmma_wait<0>(x);
}

template <int COLUMNS, int W>
static __device__ __forceinline__ void product_nn(float (&x)[1][W / 8][4],
						  const float (&p)[1][COLUMNS][4],
						  swizzled_tile<W, 8 * COLUMNS> b)
{
	uint32_t left[COLUMNS / 2][4];

	round_fragments<COLUMNS>(left, p);
	begin_product_nn<COLUMNS>(x, left, b);
	wgmma_wait<0>(x);
}

#endif
