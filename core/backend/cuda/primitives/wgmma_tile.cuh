/*
 * groups - products of tiles by four warps together (wgmma.cuh).
 *
 * A group of 128 threads makes 64 rows of a product, of which each warp holds 16 as fragments of
 * tiles.cuh: the layout is the same, so kernels choose between tiles and panels by their type.
 *
 * A panel has rows of W numbers in columns of 64.  In a column a row takes 128 bytes, and piece p
 * of row r is stored as piece p ^ (r % 8): the layout that wgmma calls "128B swizzle".  A panel
 * starts on 1024 bytes.
 */
#ifndef CUDA_PRIMITIVES_WGMMA_TILE_CUH
#define CUDA_PRIMITIVES_WGMMA_TILE_CUH

#include "core/backend/cuda/primitives/mma_tile.cuh"
#include "core/backend/cuda/primitives/wgmma.cuh"

#define PANEL_ALIGNMENT 1024

template <int W, int ROWS> struct panel {
	typedef bf16 number;
	static constexpr int WIDTH = W, LINE = PANEL_LINE;
	static constexpr int COLUMN = ROWS * PANEL_LINE; /* bytes of a column */

	uint32_t at; /* address in shared memory */

	__device__ uint32_t piece(int row, int number) const
	{
		return at + (uint32_t)(number / 8 * COLUMN + row * PANEL_LINE +
				       ((number ^ row) % 8) * 16);
	}
	/* For tensor cores: 16 numbers of each row from number 16 k on, or rows from 16 k on. */
	__device__ __forceinline__ uint64_t numbers(int first_row, int k) const
	{
		return moved(described(at, COLUMN),
			     first_row * PANEL_LINE + k / 4 * COLUMN + k % 4 * 32);
	}
	__device__ __forceinline__ uint64_t rows(int k) const
	{
		return moved(described(at, COLUMN), 16 * k * PANEL_LINE);
	}
};

/* The thread's group, for the compiler the same in all lanes. */
static __device__ __forceinline__ int group_of_thread(void)
{
	return __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
}

/* x [64, n] = a [64, W] b [n, W]', a from row `first` on; done after group_wait() */
template <int COLUMNS, int W, int ROWS>
static __device__ __forceinline__ void begin_rows(float (&x)[1][COLUMNS][4],
						  struct panel<W, ROWS> a, int first,
						  struct panel<W, 8 * COLUMNS> b)
{
	group_begins();
#pragma unroll
	for (int k = 0; k < W / 16; k++)
		multiply_group(x[0], a.numbers(first, k), b.numbers(0, k), k > 0);
	group_ends();
}

/* x [64, W] += p [64, k] b [k, W], with p rounded; done after group_wait() */
template <int COLUMNS, int W>
static __device__ __forceinline__ void begin_result(float (&x)[1][W / 8][4],
						    const uint32_t (&p)[COLUMNS / 2][4],
						    struct panel<W, 8 * COLUMNS> b)
{
	group_begins();
#pragma unroll
	for (int k = 0; k < COLUMNS / 2; k++)
		multiply_group(x[0], p[k], b.rows(k));
	group_ends();
}

template <int COLUMNS>
static __device__ __forceinline__ void round_result(uint32_t (&left)[COLUMNS / 2][4],
						    const float (&p)[1][COLUMNS][4])
{
#pragma unroll
	for (int k = 0; k < COLUMNS; k++) {
		left[k / 2][k % 2 * 2] = two_rounded(p[0][k][0], p[0][k][1]);
		left[k / 2][k % 2 * 2 + 1] = two_rounded(p[0][k][2], p[0][k][3]);
	}
}

/* As for tiles: x = a b', x += p b.  All is done when they return. */
template <int COLUMNS, int W, int ROWS>
static __device__ __forceinline__ void multiply_rows(float (&x)[1][COLUMNS][4],
						     struct panel<W, ROWS> a, int,
						     struct panel<W, 8 * COLUMNS> b)
{
	begin_rows(x, a, 64 * group_of_thread(), b);
	group_wait<0>(x);
}

template <int COLUMNS, int W>
static __device__ __forceinline__ void multiply_result(float (&x)[1][W / 8][4],
						       const float (&p)[1][COLUMNS][4],
						       struct panel<W, 8 * COLUMNS> b)
{
	uint32_t left[COLUMNS / 2][4];

	round_result<COLUMNS>(left, p);
	begin_result<COLUMNS>(x, left, b);
	group_wait<0>(x);
}

#endif
