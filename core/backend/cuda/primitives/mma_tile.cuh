/*
 * Products of tiles in shared memory, with results in registers.
 *
 * A tile has rows of W elements of bfloat16, float or double, as vectors of 16 bytes.  Vector v of
 * row r is stored at position v ^ (r % 8): the swizzle puts one vector of 8 rows into different
 * banks.
 *
 * A warp holds a result as fragments of 16 rows and 8 columns.  Element e of a thread's four is in
 * row lane / 4 + 8 (e / 2), column 2 (lane % 4) + e % 2: the layout of mma.sync m16n8k16 (sm_80 and
 * newer), which multiplies bfloat16 and accumulates in float.  Two adjacent fragments have the
 * layout of a left operand of 16 columns, so a result becomes an operand of the next product
 * without leaving registers.  float and double use the same layout with plain FMAs.
 */
#ifndef CUDA_PRIMITIVES_MMA_TILE_CUH
#define CUDA_PRIMITIVES_MMA_TILE_CUH

#include "core/backend/cuda/primitives/ptx.cuh"

template <typename F> static constexpr int VEC16 = 16 / (int)sizeof(F); /* elements in 16 bytes */

typedef __nv_bfloat16 bf16;

/* ------------------------------------------------------------------ fragments */

/* Row and column, in a fragment, of element e of the thread's four. */
static __device__ __forceinline__ int fragment_row(int e)
{
	return (int)(threadIdx.x % 32) / 4 + 8 * (e / 2);
}

static __device__ __forceinline__ int fragment_column(int e)
{
	return 2 * (int)(threadIdx.x % 4) + e % 2;
}

template <typename R, int ROWS, int COLUMNS> using fragments = R[ROWS][COLUMNS][4];

/*
 * The column of a result of product_nn() that the thread's first element of fragment n belongs to.
 * mma gives a thread two adjacent columns of every fragment.  The plain product gives it vectors of
 * 16 bytes, which span two fragments in float.
 */
template <typename F> static __device__ __forceinline__ int result_column(int n)
{
	constexpr int PER_VEC = sizeof(F) == sizeof(float) ? 2 : 1; /* fragments */

	return n / PER_VEC * PER_VEC * 8 + PER_VEC * fragment_column(0) + n % PER_VEC * 2;
}

/* f(element, m, n, e, row, column) for every element of a result. */
template <typename R, int ROWS, int COLUMNS, typename F>
static __device__ __forceinline__ void each_number(R (&x)[ROWS][COLUMNS][4], F f)
{
#pragma unroll
	for (int m = 0; m < ROWS; m++)
#pragma unroll
		for (int n = 0; n < COLUMNS; n++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				f(x[m][n][e], m, n, e, 16 * m + fragment_row(e),
				  8 * n + fragment_column(e));
}

template <typename R, int ROWS, int COLUMNS>
static __device__ __forceinline__ void clear(R (&x)[ROWS][COLUMNS][4])
{
#pragma unroll
	for (int m = 0; m < ROWS; m++)
#pragma unroll
		for (int n = 0; n < COLUMNS; n++)
#pragma unroll
			for (int e = 0; e < 4; e++)
				x[m][n][e] = 0;
}

/* ---------------------------------------------------------------------- tiles */

template <typename F, int W> struct tile {
	typedef F element;
	static constexpr int WIDTH = W, LINE = W * (int)sizeof(F); /* bytes of a row */

	uint32_t at; /* address in shared memory */

	__device__ uint32_t vec(int row, int index) const
	{
		return at + (uint32_t)(row * W * (int)sizeof(F) + ((index ^ (row & 7)) * 16));
	}
};

/* --------------------------------------------------------------- tensor cores */

/* The addresses at which a thread reads 16 x 16 blocks of a tile with ldmatrix. */
template <int W> struct reader {
	uint32_t at;	  /* its row of the first block */
	uint32_t swizzle; /* its vector, xored with its row, in bytes */

	/* `row` and `vec`: the thread's own in a block; `first`, a multiple of 8: the first row. */
	__device__ reader(tile<bf16, W> t, int first, int row, int vec)
	    : at(t.at + (uint32_t)((first + row) * W * 2)),
	      swizzle((uint32_t)((vec ^ (row & 7)) * 16))
	{
	}
	__device__ uint32_t address(int row, int vec) const
	{
		return at + (uint32_t)(row * W * 2) + ((uint32_t)(vec * 16) ^ swizzle);
	}
};

/* A left operand [rows, k], or with ldmatrix_trans() a right operand [k, columns]. */
template <int W> static __device__ __forceinline__ reader<W> read_rows(tile<bf16, W> t, int first)
{
	const int lane = threadIdx.x % 32;

	return { t, first, lane % 16, lane / 16 };
}

/* A right operand [columns, k]. */
template <int W> static __device__ __forceinline__ reader<W> read_columns(tile<bf16, W> t)
{
	const int lane = threadIdx.x % 32;

	return { t, 0, lane % 8 + lane / 16 * 8, lane / 8 % 2 };
}

/* x [m, n] = a [m, W] b [n, W]', a from row `first` on */
template <int ROWS, int COLUMNS, int W>
static __device__ __forceinline__ void product_nt(float (&x)[ROWS][COLUMNS][4], tile<bf16, W> a,
						  int first, tile<bf16, W> b)
{
	const reader<W> from_a = read_rows(a, first), from_b = read_columns(b);

	clear(x);
#pragma unroll
	for (int k = 0; k < W / 8; k += 2) {
		uint32_t left[ROWS][4], right[4];

#pragma unroll
		for (int m = 0; m < ROWS; m++)
			ldmatrix(left[m], from_a.address(16 * m, k));
#pragma unroll
		for (int n = 0; n < COLUMNS; n += 2) {
			ldmatrix(right, from_b.address(8 * n, k));
#pragma unroll
			for (int m = 0; m < ROWS; m++) {
				mma(x[m][n], left[m], right[0], right[1]);
				mma(x[m][n + 1], left[m], right[2], right[3]);
			}
		}
	}
}

/* x [m, W] += p [m, k] b [k, W], with p rounded to bfloat16 */
template <int ROWS, int COLUMNS, int W>
static __device__ __forceinline__ void
product_nn(float (&x)[ROWS][W / 8][4], const float (&p)[ROWS][COLUMNS][4], tile<bf16, W> b)
{
	const reader<W> from_b = read_rows(b, 0);

#pragma unroll
	for (int k = 0; k < COLUMNS; k += 2) {
		uint32_t left[ROWS][4], right[4];

#pragma unroll
		for (int m = 0; m < ROWS; m++) {
			left[m][0] = pack_bf16x2(p[m][k][0], p[m][k][1]);
			left[m][1] = pack_bf16x2(p[m][k][2], p[m][k][3]);
			left[m][2] = pack_bf16x2(p[m][k + 1][0], p[m][k + 1][1]);
			left[m][3] = pack_bf16x2(p[m][k + 1][2], p[m][k + 1][3]);
		}
#pragma unroll
		for (int n = 0; n < W / 8; n += 2) {
			ldmatrix_trans(right, from_b.address(8 * k, n));
#pragma unroll
			for (int m = 0; m < ROWS; m++) {
				mma(x[m][n], left[m], right[0], right[1]);
				mma(x[m][n + 1], left[m], right[2], right[3]);
			}
		}
	}
}

/* ----------------------------------------------------------- plain arithmetic */

/* x [m, n] = a [m, W] b [n, W]', a from row `first` on */
template <typename R, int ROWS, int COLUMNS, int W>
static __device__ __forceinline__ void product_nt(R (&x)[ROWS][COLUMNS][4], tile<R, W> a, int first,
						  tile<R, W> b)
{
	clear(x);
#pragma unroll 1
	for (int k = 0; k < W / VEC16<R>; k++) {
		R left[ROWS][2][VEC16<R>], right[VEC16<R>];

#pragma unroll
		for (int m = 0; m < ROWS; m++)
#pragma unroll
			for (int half = 0; half < 2; half++)
				ld_shared_vec16(left[m][half],
						a.vec(first + 16 * m + fragment_row(2 * half), k));
#pragma unroll
		for (int n = 0; n < COLUMNS; n++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				ld_shared_vec16(right, b.vec(8 * n + fragment_column(e), k));
#pragma unroll
				for (int m = 0; m < ROWS; m++)
#pragma unroll
					for (int half = 0; half < 2; half++)
#pragma unroll
						for (int i = 0; i < VEC16<R>; i++)
							x[m][n][2 * half + e] +=
								left[m][half][i] * right[i];
			}
	}
}

/*
 * x [m, W] += p [m, k] b [k, W].  The four threads of a row exchange its elements of p by shuffles.
 * A thread reads whole vectors of b, so its columns of x are those of result_column().
 */
template <typename R, int ROWS, int COLUMNS, int W>
static __device__ __forceinline__ void product_nn(R (&x)[ROWS][W / 8][4],
						  const R (&p)[ROWS][COLUMNS][4], tile<R, W> b)
{
	const int lane = (int)(threadIdx.x % 32), quad = lane & ~3;

#pragma unroll
	for (int k = 0; k < 8 * COLUMNS; k++) {
		R left[ROWS][2], right[VEC16<R>];

#pragma unroll
		for (int m = 0; m < ROWS; m++)
#pragma unroll
			for (int half = 0; half < 2; half++)
				left[m][half] =
					__shfl_sync(0xffffffffu, p[m][k / 8][2 * half + k % 2],
						    quad + k % 8 / 2);
#pragma unroll
		for (int vec = 0; vec < W / VEC16<R>; vec += 4) {
			ld_shared_vec16(right, b.vec(k, vec + lane % 4));
#pragma unroll
			for (int m = 0; m < ROWS; m++)
#pragma unroll
				for (int i = 0; i < 2 * VEC16<R>; i++)
					x[m][vec * VEC16<R> / 8 + i / 4][i % 4] +=
						left[m][i % 4 / 2] * right[i / 4 * 2 + i % 2];
		}
	}
}

/* ---------------------------------------------------------- copies into tiles */

/* ALL: every row exists. */
template <int ROWS, int THREADS, bool ALL, typename Tile, typename F = typename Tile::element>
static __device__ __forceinline__ void copy_rows(Tile to, const F *x, int64_t pitch, int first,
						 int n)
{
	constexpr int VECS = Tile::WIDTH / VEC16<F>, ROWS_PER_PASS = THREADS / VECS;
	const int row = (int)threadIdx.x / VECS, index = (int)threadIdx.x % VECS;
	const F *from = x + ((first + row) * pitch + index * VEC16<F>);
	const uint32_t start = to.vec(row, index);

	static_assert(THREADS % VECS == 0 && ROWS % ROWS_PER_PASS == 0,
		      "a thread copies whole vectors");
#pragma unroll
	for (int k = 0; k < ROWS / ROWS_PER_PASS; k++) {
		const int at = first + row + k * ROWS_PER_PASS;
		const bool valid = ALL || (at >= 0 && at < n);

		/* Rows a multiple of 8 apart have the same swizzle. */
		cp_async_vec16(ROWS_PER_PASS % 8 == 0
				       ? start + (uint32_t)(k * ROWS_PER_PASS * Tile::LINE)
				       : to.vec(row + k * ROWS_PER_PASS, index),
			       valid ? from : x, valid);
		from += ROWS_PER_PASS * pitch;
	}
}

/*
 * Starts the copy of rows first .. first + ROWS - 1 of x [n, vecs vectors], whose rows are `pitch`
 * elements apart, with THREADS threads.  Rows outside [0, n) and missing vectors become zeros.
 */
template <int ROWS, int THREADS, typename Tile, typename F = typename Tile::element>
static __device__ __forceinline__ void copy_tile(Tile to, const F *x, int64_t pitch, int vecs,
						 int first, int n)
{
	constexpr int VECS = Tile::WIDTH / VEC16<F>;

	if (first >= 0 && first + ROWS <= n && vecs == VECS)
		copy_rows<ROWS, THREADS, true>(to, x, pitch, first, n);
	else
		copy_rows<ROWS, THREADS, false>(to, x, pitch, first,
						(int)threadIdx.x % VECS < vecs ? n : 0);
}

#endif
