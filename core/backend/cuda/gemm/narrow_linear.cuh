/*
 * narrow_linear - linear maps of many rows to few channels, y [N,O] = x [N,I] W + b, in bfloat16.
 *
 * They do little but move memory: x is read for y and for dW, and dx is written.  Rows of few
 * numbers are not aligned as cuBLAS's fast kernels want them.  With 3072 to 12 channels on one
 * H200, cuBLAS takes 58 microseconds forward and 172 backward, these kernels 39 and 123, and moving
 * the memory alone 24 and 71.
 *
 * Tensor cores multiply fragments (tiles.cuh).  Which channel, row or output a place in a sum
 * stands for is free, if both factors agree: so threads read and write 8 neighbours at a time, and
 * O is filled up to 16 by zeros.  Warps of a block share a sum and are added in their order.
 */
#ifndef CUDA_GEMM_NARROW_LINEAR_CUH
#define CUDA_GEMM_NARROW_LINEAR_CUH

#include "core/backend/cuda/primitives/kernel.cuh"
#include "core/backend/cuda/primitives/fast_divide.cuh"
#include "core/backend/cuda/gemm/linear.cuh"
#include "core/backend/cuda/primitives/mma_tile.cuh"

#define NARROW_LINEAR 16
#define NARROW_LINEAR_WARPS 8
#define NARROW_LINEAR_THREADS (NARROW_LINEAR_WARPS * WARP)
#define NARROW_LINEAR_ROWS 32	 /* of a block, for y and dx */
#define NARROW_LINEAR_STEP 32	 /* channels that a warp takes of them at a time */
#define NARROW_LINEAR_COLUMNS 64 /* of a block, for dW */
#define NARROW_LINEAR_DEPTH 16	 /* rows that a warp takes of them at a time */
#define NARROW_LINEAR_TOGETHER 4 /* blocks of a processor */
#define NARROW_LINEAR_BLOCKS 512 /* all at once on a large GPU */
#define NARROW_LINEAR_LEAST 3072 /* rows; fewer were not tried */

template <typename P> static bool has_few_channels(const struct linear_sizes &s)
{
	return ROUNDS<P> && s.o <= NARROW_LINEAR && s.o % 4 == 0 && !s.transposed &&
	       s.n % NARROW_LINEAR_ROWS == 0 && s.i % NARROW_LINEAR_COLUMNS == 0 &&
	       s.x_pitch % VEC == 0 && s.n >= NARROW_LINEAR_LEAST &&
	       s.n / NARROW_LINEAR_ROWS < MAX_BLOCKS;
}

/* Are the rows of x and dx aligned, too? */
template <typename P>
static bool takes_narrow_linear(const struct linear_sizes &s, input_view<P> x, gradient_view<P> dx)
{
	return has_few_channels<P>(s) && ((uintptr_t)x.at | (uintptr_t)dx.to.at) % 16 == 0;
}

struct alignas(8) eight_bytes {
	uint32_t word[2];
};

static __device__ __forceinline__ struct vec16 read_eight(const bf16 *at)
{
	return *(const struct vec16 *)at;
}

static __device__ __forceinline__ struct eight_bytes read_four(const bf16 *at)
{
	return *(const struct eight_bytes *)at;
}

/* x [rows, o] becomes [16, rows], with zeros. */
template <typename P>
static void transpose_channels(const struct call *c, input_view<P> x, int64_t rows, int64_t o,
			       bf16 *to)
{
	const struct divisor of = divisor_of(rows, NARROW_LINEAR * rows);

	each(c, NARROW_LINEAR * rows, [=] __device__(int64_t i) {
		const int64_t channel = of.quotient(i), row = i - channel * rows;

		to[i] = (bf16)(channel < o ? x[row * o + channel] : 0);
	});
}

/* The sum of what the warps of a block have, in their order. */
template <int ROWS, int COLUMNS>
static __device__ float sum_of_warps(const float (&part)[NARROW_LINEAR_WARPS][ROWS][COLUMNS],
				     int row, int column)
{
	float sum = 0;

#pragma unroll
	for (int w = 0; w < NARROW_LINEAR_WARPS; w++)
		sum += part[w][row][column];
	return sum;
}

/* -------------------------------------------------------------------- forward */

/* A block makes NARROW_LINEAR_ROWS rows of y; its warps share the sum over I.  turned: W [16,I]. */
template <typename P>
static __global__ void __launch_bounds__(NARROW_LINEAR_THREADS, NARROW_LINEAR_TOGETHER)
	narrow_linear_forward_kernel(matrix<bf16> x, const bf16 *transposed, int64_t I, int O,
				     const float *b, output_view<P> y)
{
	__shared__ float part[NARROW_LINEAR_WARPS][NARROW_LINEAR_ROWS][NARROW_LINEAR];
	const int warp = (int)threadIdx.x / WARP, group = fragment_row(0),
		  place = 8 * ((int)threadIdx.x % 4);
	const int64_t first = (int64_t)blockIdx.x * NARROW_LINEAR_ROWS;
	fragments<float, NARROW_LINEAR_ROWS / 16, NARROW_LINEAR / 8> sum = {};

	pdl_wait();
#pragma unroll 1
	for (int64_t i = warp * NARROW_LINEAR_STEP + place; i < I;
	     i += NARROW_LINEAR_WARPS * NARROW_LINEAR_STEP) {
		struct vec16 row[NARROW_LINEAR_ROWS / 8], w[NARROW_LINEAR / 8];

#pragma unroll
		for (int k = 0; k < NARROW_LINEAR_ROWS / 8; k++)
			row[k] = read_eight(x.at + (first + group + 8 * k) * x.pitch + i);
#pragma unroll
		for (int k = 0; k < NARROW_LINEAR / 8; k++)
			w[k] = read_eight(transposed + (group + 8 * k) * I + i);
#pragma unroll
		for (int k = 0; k < 4; k += 2)
#pragma unroll
			for (int m = 0; m < NARROW_LINEAR_ROWS / 16; m++) {
				const struct vec16 &low = row[2 * m], &high = row[2 * m + 1];
				const uint32_t a[4] = { low.word[k], high.word[k], low.word[k + 1],
							high.word[k + 1] };

#pragma unroll
				for (int n = 0; n < NARROW_LINEAR / 8; n++)
					mma(sum[m][n], a, w[n].word[k], w[n].word[k + 1]);
			}
	}
	each_number(sum, [&](float &value, int, int, int, int row, int o) {
		part[warp][row][o] = value;
	});
	__syncthreads();
	for (int at = (int)threadIdx.x; at < NARROW_LINEAR_ROWS * NARROW_LINEAR;
	     at += NARROW_LINEAR_THREADS) {
		const int row = at / NARROW_LINEAR, o = at % NARROW_LINEAR;

		if (o < O)
			y[(first + row) * O + o] = sum_of_warps(part, row, o) + (b ? b[o] : 0);
	}
}

/* ------------------------------------------------------------------ dx = dy W' */

/* Outputs first .. first + 3 of a row of dy [N,O], rounded; 0 from O on. */
template <typename P>
static __device__ struct eight_bytes four_of(const input_view<P> &dy, int64_t row, int first, int O)
{
	if (first >= O)
		return {};
	const auto four = dy[vec_index<4>{ row * O + first }];

	return { { pack_bf16x2(four[0], four[1]), pack_bf16x2(four[2], four[3]) } };
}

/*
 * A block makes NARROW_LINEAR_ROWS rows of some columns, a warp NARROW_LINEAR_STEP of these. Blocks
 * that run together make rows that lie together: memory is slower where all of dx is written at a
 * time.
 */
template <typename P, enum vec_kind KIND>
static __global__ void __launch_bounds__(NARROW_LINEAR_THREADS, NARROW_LINEAR_TOGETHER)
	narrow_linear_dx_kernel(input_view<P> dy, const bf16 *w, int64_t I, int O,
				gradient_view<P> dx, int64_t pitch)
{
	constexpr int ROWS = NARROW_LINEAR_ROWS / 8, COLUMNS = NARROW_LINEAR_STEP / 8;
	const int warp = (int)threadIdx.x / WARP, group = fragment_row(0),
		  place = (int)threadIdx.x % 4;
	const int64_t first = (int64_t)blockIdx.y * NARROW_LINEAR_ROWS + group;
	const int64_t i = ((int64_t)blockIdx.x * NARROW_LINEAR_WARPS + warp) * NARROW_LINEAR_STEP;
	fragments<float, ROWS / 2, COLUMNS> sum = {};
	struct eight_bytes a[ROWS];
	const auto at = [&](int k) {
		return vec_index<8, KIND>{ (first + 8 * k) * pitch + i + 8 * place };
	};

	pdl_wait();
	if (i >= I)
		return;
#pragma unroll
	for (int k = 0; k < ROWS; k++)
		a[k] = four_of(dy, first + 8 * k, 4 * place, O);
	if (dx.add)
#pragma unroll
		for (int k = 0; k < ROWS; k++) {
			const auto before = ((input_view<P>)dx.to)[at(k)];

#pragma unroll
			for (int j = 0; j < 8; j++)
				sum[k / 2][j / 2][2 * (k % 2) + j % 2] = before[j];
		}
#pragma unroll
	for (int n = 0; n < COLUMNS; n++) {
		const int64_t column = i + 8 * (group / 2) + 2 * n + group % 2;
		struct eight_bytes b = {};

		if (4 * place < O)
			b = read_four(w + column * O + 4 * place);
#pragma unroll
		for (int m = 0; m < ROWS / 2; m++) {
			const struct eight_bytes &low = a[2 * m], &high = a[2 * m + 1];

			mma(sum[m][n], { low.word[0], high.word[0], low.word[1], high.word[1] },
			    b.word[0], b.word[1]);
		}
	}
#pragma unroll
	for (int k = 0; k < ROWS; k++) {
		vec<float, 8> y;

#pragma unroll
		for (int j = 0; j < 8; j++)
			y[j] = sum[k / 2][j / 2][2 * (k % 2) + j % 2];
		dx.to.put(at(k), y);
	}
}

/* ------------------------------------------------------------------ dW = x' dy */

/* Blocks that share the sum over rows for the same columns. */
static inline int64_t narrow_linear_parts(const struct linear_sizes &s)
{
	const int64_t wanted = NARROW_LINEAR_BLOCKS / (s.i / NARROW_LINEAR_COLUMNS);
	const int64_t most = s.n / (NARROW_LINEAR_DEPTH * NARROW_LINEAR_WARPS);

	return wanted > most ? most : wanted < 1 ? 1 : wanted;
}

/* The lower numbers of two words, or the upper ones. */
static __device__ __forceinline__ uint32_t two_rows(uint32_t a, uint32_t b, bool upper)
{
	return upper ? a >> 16 | (b & 0xffff0000u) : (a & 0xffffu) | b << 16;
}

/* A block sums over a part of the rows, for some columns of x.  turned: dy [16,N]. */
static __global__ void __launch_bounds__(NARROW_LINEAR_THREADS, NARROW_LINEAR_TOGETHER)
	narrow_linear_dw_kernel(matrix<bf16> x, const bf16 *transposed, int64_t N, int64_t I,
				float *parts)
{
	__shared__ float part[NARROW_LINEAR_WARPS][NARROW_LINEAR][NARROW_LINEAR_COLUMNS];
	const int warp = (int)threadIdx.x / WARP, group = fragment_row(0),
		  place = 4 * ((int)threadIdx.x % 4);
	const int64_t steps = N / NARROW_LINEAR_DEPTH,
		      column = (int64_t)blockIdx.x * NARROW_LINEAR_COLUMNS;
	const int64_t end = steps * (blockIdx.y + 1) / gridDim.y;
	float sum[NARROW_LINEAR_COLUMNS / 8][4] = {};

	pdl_wait();
#pragma unroll 1
	for (int64_t step = steps * blockIdx.y / gridDim.y + warp; step < end;
	     step += NARROW_LINEAR_WARPS) {
		const int64_t row = step * NARROW_LINEAR_DEPTH + place;
		struct vec16 v[4];
		struct eight_bytes d[2];

#pragma unroll
		for (int r = 0; r < 4; r++)
			v[r] = read_eight(x.at + (row + r) * x.pitch + column + 8 * group);
#pragma unroll
		for (int k = 0; k < 2; k++)
			d[k] = read_four(transposed + (group + 8 * k) * N + row);
		const uint32_t a[4] = { d[0].word[0], d[1].word[0], d[0].word[1], d[1].word[1] };

#pragma unroll
		for (int n = 0; n < NARROW_LINEAR_COLUMNS / 8; n++)
			mma(sum[n], a, two_rows(v[0].word[n / 2], v[1].word[n / 2], n % 2),
			    two_rows(v[2].word[n / 2], v[3].word[n / 2], n % 2));
	}
#pragma unroll
	for (int n = 0; n < NARROW_LINEAR_COLUMNS / 8; n++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			part[warp][fragment_row(e)][8 * fragment_column(e) + n] = sum[n][e];
	__syncthreads();
	for (int at = (int)threadIdx.x; at < NARROW_LINEAR * NARROW_LINEAR_COLUMNS;
	     at += NARROW_LINEAR_THREADS) {
		const int o = at / NARROW_LINEAR_COLUMNS, i = at % NARROW_LINEAR_COLUMNS;

		parts[((int64_t)blockIdx.y * NARROW_LINEAR + o) * I + column + i] =
			sum_of_warps(part, o, i);
	}
}

/* ------------------------------------------------------------------- launches */

/* W turned, or dy turned and parts of dW. */
struct narrow_linear_scratch {
	bf16 *transposed;
	float *parts;
};

template <typename P>
static struct narrow_linear_scratch
alloc_narrow_linear(struct scratch *m, const struct linear_sizes &s, enum pass pass)
{
	if (!has_few_channels<P>(s))
		return {};
	if (pass != PASS_BACKWARD)
		return { m->alloc<bf16>(NARROW_LINEAR * s.i), NULL };
	return { m->alloc<bf16>(NARROW_LINEAR * s.n),
		 m->alloc<float>(narrow_linear_parts(s) * NARROW_LINEAR * s.i) };
}

/* Only where products round; takes_narrow_linear() is false elsewhere. */
template <typename P> struct narrow_linear {
	typedef matrix<typename P::factor> factors;

	static void forward(const struct call *, const struct linear_sizes &, factors, factors,
			    const typename P::real *, output_view<P>, struct narrow_linear_scratch)
	{
	}
	static void to_x(const struct call *, const struct linear_sizes &, input_view<P>, factors,
			 gradient_view<P>)
	{
	}
	static void to_w(const struct call *, const struct linear_sizes &, factors, input_view<P>,
			 gradient_view<P>, struct narrow_linear_scratch)
	{
	}
};

template <> struct narrow_linear<bfloat16_products> {
	typedef bfloat16_products P;
	typedef matrix<bf16> factors;

	static void forward(const struct call *c, const struct linear_sizes &s, factors x,
			    factors w, const float *b, output_view<P> y,
			    struct narrow_linear_scratch r)
	{
		transpose_channels<P>(c, { w.at, true }, s.i, s.o, r.transposed);
		launch_pdl(context_of(c)->pdl, narrow_linear_forward_kernel<P>,
			   dim3((unsigned)(s.n / NARROW_LINEAR_ROWS)), NARROW_LINEAR_THREADS, 0,
			   stream_of(c), x, r.transposed, s.i, (int)s.o, b, y);
		note_launch(c);
	}
	static void to_x(const struct call *c, const struct linear_sizes &s, input_view<P> dy,
			 factors w, gradient_view<P> dx)
	{
		const auto kernel = dx.to.bf16_storage ? narrow_linear_dx_kernel<P, VEC_OF_BF16>
						       : narrow_linear_dx_kernel<P, VEC_OF_REAL>;
		const int64_t columns = NARROW_LINEAR_WARPS * NARROW_LINEAR_STEP;
		const dim3 blocks((unsigned)((s.i + columns - 1) / columns),
				  (unsigned)(s.n / NARROW_LINEAR_ROWS));

		launch_pdl(context_of(c)->pdl, kernel, blocks, NARROW_LINEAR_THREADS, 0,
			   stream_of(c), dy, w.at, s.i, (int)s.o, dx, s.x_pitch);
		note_launch(c);
	}
	static void to_w(const struct call *c, const struct linear_sizes &s, factors x,
			 input_view<P> dy, gradient_view<P> dw, struct narrow_linear_scratch r)
	{
		const int64_t n_parts = narrow_linear_parts(s), I = s.i, O = s.o;
		const struct divisor of = divisor_of(I, O * I);
		const float *parts = r.parts;

		transpose_channels<P>(c, dy, s.n, s.o, r.transposed);
		launch_pdl(context_of(c)->pdl, narrow_linear_dw_kernel,
			   dim3((unsigned)(s.i / NARROW_LINEAR_COLUMNS), (unsigned)n_parts),
			   NARROW_LINEAR_THREADS, 0, stream_of(c), x, r.transposed, s.n, s.i,
			   r.parts);
		note_launch(c);
		each(c, O * I, [=] __device__(int64_t at) {
			const int64_t o = of.quotient(at), i = at - o * I;
			float sum = 0;

			for (int64_t k = 0; k < n_parts; k++)
				sum += parts[(k * NARROW_LINEAR + o) * I + i];
			dw.put(i * O + o, sum);
		});
	}
};

#endif
