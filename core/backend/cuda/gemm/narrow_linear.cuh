/*
 * narrow_linear - y [N,O] = x [N,I] W + b for many rows and O <= 16, in bfloat16, with dx and dW.
 *
 * Memory bandwidth bounds it: x is read for y and for dW, dx is written. cuBLAS's fast kernels need
 * aligned rows, which such narrow outputs do not have. For I = 3072, O = 12 on one H200, cuBLAS
 * takes 58 us forward and 172 us backward, these kernels 39 and 123 us, and the memory traffic
 * alone 24 and 71 us.
 *
 * The kernels use mma.sync m16n8k16 (mma_tile.cuh). The order of the summed dimension is free, so
 * it is chosen such that threads load and store 8 neighbouring elements. O is zero-padded to 16.
 * The warps of a block split the sum, and their results are added in warp order.
 */
#ifndef CUDA_GEMM_NARROW_LINEAR_CUH
#define CUDA_GEMM_NARROW_LINEAR_CUH

#include "core/backend/cuda/primitives/kernel.cuh"
#include "core/backend/cuda/primitives/fast_divide.cuh"
#include "core/backend/cuda/gemm/linear.cuh"
#include "core/backend/cuda/primitives/mma_tile.cuh"

#define NARROW_OUTPUTS 16
#define NARROW_WARPS 8
#define NARROW_THREADS (NARROW_WARPS * WARP)
#define NARROW_ROWS 32	     /* rows per block, for y and dx */
#define NARROW_CHANNELS 32   /* channels per warp and step, for y and dx */
#define NARROW_DW_COLUMNS 64 /* columns per block, for dW */
#define NARROW_DW_ROWS 16    /* rows per warp and step, for dW */
#define NARROW_BLOCKS_PER_SM 4
#define NARROW_MIN_ROWS 3072 /* smallest size measured */

template <typename P> static bool is_narrow(const struct linear_sizes &s)
{
	return ROUNDS<P> && s.o <= NARROW_OUTPUTS && s.o % 4 == 0 && !s.transposed &&
	       s.n % NARROW_ROWS == 0 && s.i % NARROW_DW_COLUMNS == 0 && s.x_pitch % VEC == 0 &&
	       s.n >= NARROW_MIN_ROWS && s.n / NARROW_ROWS < MAX_BLOCKS;
}

/* Does the narrow path apply, including the alignment of x and dx? */
template <typename P>
static bool takes_narrow_linear(const struct linear_sizes &s, input_view<P> x, gradient_view<P> dx)
{
	return is_narrow<P>(s) && ((uintptr_t)x.at | (uintptr_t)dx.to.at) % 16 == 0;
}

struct alignas(8) vec8 {
	uint32_t word[2];
};

static __device__ __forceinline__ struct vec16 load_vec16(const bf16 *at)
{
	return *(const struct vec16 *)at;
}

static __device__ __forceinline__ struct vec8 load_vec8(const bf16 *at)
{
	return *(const struct vec8 *)at;
}

/* Transposes x [rows,o] to [16,rows], zero-padded. */
template <typename P>
static void transpose_channels(const struct call *c, input_view<P> x, int64_t rows, int64_t o,
			       bf16 *to)
{
	const struct divisor of = divisor_of(rows, NARROW_OUTPUTS * rows);

	each(c, NARROW_OUTPUTS * rows, [=] __device__(int64_t i) {
		const int64_t channel = of.quotient(i), row = i - channel * rows;

		to[i] = (bf16)(channel < o ? x[row * o + channel] : 0);
	});
}

/* Sum over the warps of a block, in warp order. */
template <int ROWS, int COLUMNS>
static __device__ float reduce_warps(const float (&warp_partials)[NARROW_WARPS][ROWS][COLUMNS],
				     int row, int column)
{
	float sum = 0;

#pragma unroll
	for (int w = 0; w < NARROW_WARPS; w++)
		sum += warp_partials[w][row][column];
	return sum;
}

/* -------------------------------------------------------------------- forward */

/*
 * A block computes NARROW_ROWS rows of y; its warps split the sum over I. transposed: W^T [16,I].
 */
template <typename P>
static __global__ void __launch_bounds__(NARROW_THREADS, NARROW_BLOCKS_PER_SM)
	narrow_linear_forward_kernel(struct replicas replicas,
				     const __grid_constant__ matrix<bf16> given_x,
				     const bf16 *transposed, int64_t I, int O, const float *b,
				     const __grid_constant__ output_view<P> given_y)
{
	replicas.to_own(transposed, b);
	const auto &x = replicas.own(given_x);
	const auto &y = replicas.own(given_y);
	__shared__ float warp_partials[NARROW_WARPS][NARROW_ROWS][NARROW_OUTPUTS];
	const int warp = (int)threadIdx.x / WARP, group_id = fragment_row(0),
		  channel_offset = 8 * ((int)threadIdx.x % 4);
	const int64_t first = (int64_t)blockIdx.x * NARROW_ROWS;
	fragments<float, NARROW_ROWS / 16, NARROW_OUTPUTS / 8> sum = {};

	pdl_wait();
#pragma unroll 1
	for (int64_t i = warp * NARROW_CHANNELS + channel_offset; i < I;
	     i += NARROW_WARPS * NARROW_CHANNELS) {
		struct vec16 row[NARROW_ROWS / 8], w[NARROW_OUTPUTS / 8];

#pragma unroll
		for (int k = 0; k < NARROW_ROWS / 8; k++)
			row[k] = load_vec16(x.at + (first + group_id + 8 * k) * x.pitch + i);
#pragma unroll
		for (int k = 0; k < NARROW_OUTPUTS / 8; k++)
			w[k] = load_vec16(transposed + (group_id + 8 * k) * I + i);
#pragma unroll
		for (int k = 0; k < 4; k += 2)
#pragma unroll
			for (int m = 0; m < NARROW_ROWS / 16; m++) {
				const struct vec16 &low = row[2 * m], &high = row[2 * m + 1];
				const uint32_t a[4] = { low.word[k], high.word[k], low.word[k + 1],
							high.word[k + 1] };

#pragma unroll
				for (int n = 0; n < NARROW_OUTPUTS / 8; n++)
					mma(sum[m][n], a, w[n].word[k], w[n].word[k + 1]);
			}
	}
	each_number(sum, [&](float &value, int, int, int, int row, int o) {
		warp_partials[warp][row][o] = value;
	});
	__syncthreads();
	for (int at = (int)threadIdx.x; at < NARROW_ROWS * NARROW_OUTPUTS; at += NARROW_THREADS) {
		const int row = at / NARROW_OUTPUTS, o = at % NARROW_OUTPUTS;

		if (o < O)
			y[(first + row) * O + o] =
				reduce_warps(warp_partials, row, o) + (b ? b[o] : 0);
	}
}

/* ----------------------------------------------------------------- dx = dy W^T */

/* Loads outputs first .. first + 3 of a row of dy [N,O], rounded; 0 beyond O. */
template <typename P>
static __device__ struct vec8 load_dy4(const input_view<P> &dy, int64_t row, int first, int O)
{
	if (first >= O)
		return {};
	const auto four = dy[vec_index<4>{ row * O + first }];

	return { { pack_bf16x2(four[0], four[1]), pack_bf16x2(four[2], four[3]) } };
}

/*
 * A block computes NARROW_ROWS rows of some columns, a warp NARROW_CHANNELS columns. blockIdx.x
 * runs over columns, so that concurrent blocks write neighbouring rows; writes spread over all of
 * dx are slower.
 */
template <typename P, enum vec_kind KIND>
static __global__ void __launch_bounds__(NARROW_THREADS, NARROW_BLOCKS_PER_SM)
	narrow_linear_dx_kernel(struct replicas replicas,
				const __grid_constant__ input_view<P> given_dy, const bf16 *w,
				int64_t I, int O, const __grid_constant__ gradient_view<P> given_dx,
				int64_t pitch)
{
	replicas.to_own(w);
	const auto &dy = replicas.own(given_dy);
	const auto &dx = replicas.own(given_dx);
	constexpr int ROWS = NARROW_ROWS / 8, COLUMNS = NARROW_CHANNELS / 8;
	const int warp = (int)threadIdx.x / WARP, group_id = fragment_row(0),
		  thread_in_group = (int)threadIdx.x % 4;
	const int64_t first = (int64_t)blockIdx.y * NARROW_ROWS + group_id;
	const int64_t i = ((int64_t)blockIdx.x * NARROW_WARPS + warp) * NARROW_CHANNELS;
	fragments<float, ROWS / 2, COLUMNS> sum = {};
	struct vec8 a[ROWS];
	const auto at = [&](int k) {
		return vec_index<8, KIND>{ (first + 8 * k) * pitch + i + 8 * thread_in_group };
	};

	pdl_wait();
	if (i >= I)
		return;
#pragma unroll
	for (int k = 0; k < ROWS; k++)
		a[k] = load_dy4(dy, first + 8 * k, 4 * thread_in_group, O);
	if (dx.add)
#pragma unroll
		for (int k = 0; k < ROWS; k++) {
			const auto previous = ((input_view<P>)dx.to)[at(k)];

#pragma unroll
			for (int j = 0; j < 8; j++)
				sum[k / 2][j / 2][2 * (k % 2) + j % 2] = previous[j];
		}
#pragma unroll
	for (int n = 0; n < COLUMNS; n++) {
		const int64_t column = i + 8 * (group_id / 2) + 2 * n + group_id % 2;
		struct vec8 b = {};

		if (4 * thread_in_group < O)
			b = load_vec8(w + column * O + 4 * thread_in_group);
#pragma unroll
		for (int m = 0; m < ROWS / 2; m++) {
			const struct vec8 &low = a[2 * m], &high = a[2 * m + 1];

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

/* ----------------------------------------------------------------- dW = x^T dy */

/* Number of blocks that split the sum over rows. */
static inline int64_t narrow_linear_splits(int sms, const struct linear_sizes &s)
{
	const int64_t wanted =
		blocks_to_fill(sms, NARROW_BLOCKS_PER_SM) / (s.i / NARROW_DW_COLUMNS);
	const int64_t max_splits = s.n / (NARROW_DW_ROWS * NARROW_WARPS);

	return wanted > max_splits ? max_splits : wanted < 1 ? 1 : wanted;
}

/* Packs the lower (or upper) halves of two words. */
static __device__ __forceinline__ uint32_t pack_halves(uint32_t a, uint32_t b, bool upper)
{
	return upper ? a >> 16 | (b & 0xffff0000u) : (a & 0xffffu) | b << 16;
}

/* A block sums a range of rows for some columns of x. transposed: dy^T [16,N]. */
static __global__ void __launch_bounds__(NARROW_THREADS, NARROW_BLOCKS_PER_SM)
	narrow_linear_dw_kernel(struct replicas replicas,
				const __grid_constant__ matrix<bf16> given_x,
				const bf16 *transposed, int64_t N, int64_t I, float *partials)
{
	replicas.to_own(transposed, partials);
	const auto &x = replicas.own(given_x);
	__shared__ float warp_partials[NARROW_WARPS][NARROW_OUTPUTS][NARROW_DW_COLUMNS];
	const int warp = (int)threadIdx.x / WARP, group_id = fragment_row(0),
		  row_offset = 4 * ((int)threadIdx.x % 4);
	const int64_t steps = N / NARROW_DW_ROWS, column = (int64_t)blockIdx.x * NARROW_DW_COLUMNS;
	const int64_t end = steps * (blockIdx.y + 1) / gridDim.y;
	float sum[NARROW_DW_COLUMNS / 8][4] = {};

	pdl_wait();
#pragma unroll 1
	for (int64_t step = steps * blockIdx.y / gridDim.y + warp; step < end;
	     step += NARROW_WARPS) {
		const int64_t row = step * NARROW_DW_ROWS + row_offset;
		struct vec16 v[4];
		struct vec8 d[2];

#pragma unroll
		for (int r = 0; r < 4; r++)
			v[r] = load_vec16(x.at + (row + r) * x.pitch + column + 8 * group_id);
#pragma unroll
		for (int k = 0; k < 2; k++)
			d[k] = load_vec8(transposed + (group_id + 8 * k) * N + row);
		const uint32_t a[4] = { d[0].word[0], d[1].word[0], d[0].word[1], d[1].word[1] };

#pragma unroll
		for (int n = 0; n < NARROW_DW_COLUMNS / 8; n++)
			mma(sum[n], a, pack_halves(v[0].word[n / 2], v[1].word[n / 2], n % 2),
			    pack_halves(v[2].word[n / 2], v[3].word[n / 2], n % 2));
	}
#pragma unroll
	for (int n = 0; n < NARROW_DW_COLUMNS / 8; n++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			warp_partials[warp][fragment_row(e)][8 * fragment_column(e) + n] =
				sum[n][e];
	__syncthreads();
	for (int at = (int)threadIdx.x; at < NARROW_OUTPUTS * NARROW_DW_COLUMNS;
	     at += NARROW_THREADS) {
		const int o = at / NARROW_DW_COLUMNS, i = at % NARROW_DW_COLUMNS;

		partials[((int64_t)blockIdx.y * NARROW_OUTPUTS + o) * I + column + i] =
			reduce_warps(warp_partials, o, i);
	}
}

/* ------------------------------------------------------------------- launches */

/* Forward: W^T. Backward: dy^T, and partial sums of dW. */
struct narrow_linear_scratch {
	bf16 *transposed;
	float *partials;
};

template <typename P>
static struct narrow_linear_scratch
alloc_narrow_linear(struct scratch *m, const struct linear_sizes &s, enum pass pass)
{
	if (!is_narrow<P>(s))
		return {};
	if (pass != PASS_BACKWARD)
		return { m->alloc<bf16>(NARROW_OUTPUTS * s.i), NULL };
	return { m->alloc<bf16>(NARROW_OUTPUTS * s.n),
		 m->alloc<float>(narrow_linear_splits(m->sms, s) * NARROW_OUTPUTS * s.i) };
}

/* Only bfloat16 has kernels; takes_narrow_linear() is false for other precisions. */
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
		launch_for(c, narrow_linear_forward_kernel<P>, dim3((unsigned)(s.n / NARROW_ROWS)),
			   NARROW_THREADS, 0, x, r.transposed, s.i, (int)s.o, b, y);
	}
	static void to_x(const struct call *c, const struct linear_sizes &s, input_view<P> dy,
			 factors w, gradient_view<P> dx)
	{
		const auto kernel = dx.to.bf16_storage ? narrow_linear_dx_kernel<P, VEC_OF_BF16>
						       : narrow_linear_dx_kernel<P, VEC_OF_REAL>;
		const int64_t columns = NARROW_WARPS * NARROW_CHANNELS;
		const dim3 blocks((unsigned)((s.i + columns - 1) / columns),
				  (unsigned)(s.n / NARROW_ROWS));

		launch_for(c, kernel, blocks, NARROW_THREADS, 0, dy, w.at, s.i, (int)s.o, dx,
			   s.x_pitch);
	}
	static void to_w(const struct call *c, const struct linear_sizes &s, factors x,
			 input_view<P> dy, gradient_view<P> dw, struct narrow_linear_scratch r)
	{
		const int64_t splits = narrow_linear_splits(context_of(c)->sm_count, s), I = s.i,
			      O = s.o;
		const struct divisor of = divisor_of(I, O * I);
		const float *partials = r.partials;

		transpose_channels<P>(c, dy, s.n, s.o, r.transposed);
		launch_for(c, narrow_linear_dw_kernel,
			   dim3((unsigned)(s.i / NARROW_DW_COLUMNS), (unsigned)splits),
			   NARROW_THREADS, 0, x, r.transposed, s.n, s.i, r.partials);
		each(c, O * I, [=] __device__(int64_t at) {
			const int64_t o = of.quotient(at), i = at - o * I;
			float sum = 0;

			for (int64_t k = 0; k < splits; k++)
				sum += partials[(k * NARROW_OUTPUTS + o) * I + i];
			dw.put(i * O + o, sum);
		});
	}
};

#endif
