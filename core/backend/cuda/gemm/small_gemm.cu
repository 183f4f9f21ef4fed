#include "core/backend/cuda/primitives/formulas.cuh"
#include "core/backend/cuda/gemm/small_gemm.cuh"
#include "core/backend/cuda/primitives/mma_tile.cuh"

/*
 * A block has ROWS x 64 results, in registers; each of its four warps has 16 of the columns. Panels
 * of 64 channels of both factors are copied ahead into shared memory, where a stage has one of
 * each.
 *
 * So short a kernel spends its time on the way to its first instructions and numbers.  So its code
 * is small, places are numbers of 32 bits, and what is ready of b comes before the kernel before
 * has ended.
 */
#define PANEL 64
#define STAGES 4
#define THREADS (4 * WARP)
#define VECS (PANEL / VEC16<bf16>)/* of a row of a panel */
#define WARP_COLUMNS (PANEL / 4)

typedef tile<bf16, PANEL> panel;
typedef bfloat16_products P;

/* `out` and those like it are all wide or all narrow. */
struct small_gemm {
	int m, n, k, a_pitch, b_pitch, pitch;
	int64_t a_stride, b_stride, stride;
	const bf16 *a, *b;
	input_view<P> bias, added; /* not both */
	output_view<P> before, out;
	bool b_ready; /* before the kernel before has ended */
};

/* --------------------------------------------------------------------- panels */

/* The panel whose first number is *at.  So many rows and columns are left from there on; then
 * zeros. */
template <int ROWS>
static __device__ __forceinline__ void copy_panel(panel to, const bf16 *at, int pitch, int rows,
						  int columns)
{
	const int row = (int)threadIdx.x / VECS, vec = (int)threadIdx.x % VECS;
	const bf16 *from = at + row * pitch + vec * VEC16<bf16>;
	const uint32_t start = to.vec(row, vec);

#pragma unroll
	for (int i = 0; i < ROWS; i += THREADS / VECS) {
		const bool wanted = row + i < rows && vec * VEC16<bf16> < columns;

		/* Rows that are a multiple of 8 apart keep a piece in the same place. */
		cp_async_vec16(start + (uint32_t)(i * panel::LINE), wanted ? from + i * pitch : at,
			       wanted);
	}
}

template <int ROWS, bool TRANSPOSED_B> struct stage {
	static constexpr int BYTES = (ROWS + PANEL) * panel::LINE;
	panel a, b;

	__device__ stage(uint32_t start, int number)
	    : a{ start + (uint32_t)(number % STAGES * BYTES) }, b{ a.at +
								   (uint32_t)(ROWS * panel::LINE) }
	{
	}
	/* Panels of a, b or both, from this channel on; nothing after the last one. */
	__device__ __forceinline__ void copy(const struct small_gemm &p, const bf16 *of_a,
					     bool with_a, const bf16 *of_b, bool with_b,
					     int channel) const
	{
		const int rows = p.m - (int)blockIdx.x * ROWS,
			  columns = p.n - (int)blockIdx.y * PANEL;
		const int left = p.k - channel;

		if (left > 0 && with_a)
			copy_panel<ROWS>(a, of_a + channel, p.a_pitch, rows, left);
		if (left > 0 && with_b) {
			if (TRANSPOSED_B)
				copy_panel<PANEL>(b, of_b + channel, p.b_pitch, columns, left);
			else
				copy_panel<PANEL>(b, of_b + channel * p.b_pitch, p.b_pitch, left,
						  columns);
		}
		cp_async_commit();
	}
	/* The warp's results. */
	__device__ __forceinline__ void multiply(float (&sum)[ROWS / 16][2][4]) const
	{
		const int column = (int)threadIdx.x / WARP * WARP_COLUMNS;
		const reader<PANEL> from_a = read_rows(a, 0);
		const reader<PANEL> from_b = TRANSPOSED_B ? read_columns(b) : read_rows(b, 0);

#pragma unroll
		for (int k = 0; k < VECS; k += 2) {
			uint32_t left[4], right[4];

			if (TRANSPOSED_B)
				ldmatrix(right, from_b.address(column, k));
			else
				ldmatrix_trans(right, from_b.address(8 * k, column / 8));
#pragma unroll
			for (int m = 0; m < ROWS / 16; m++) {
				ldmatrix(left, from_a.address(16 * m, k));
				mma(sum[m][0], left, right[0], right[1]);
				mma(sum[m][1], left, right[2], right[3]);
			}
		}
	}
};

/* The panels of b behind those that are copied first; one of the blocks that read them does it. */
template <bool TRANSPOSED_B>
static __device__ __forceinline__ void prefetch_rest(const struct small_gemm &p, const bf16 *b)
{
	const int rows = TRANSPOSED_B || blockIdx.x > 0 ? 0 : p.k;

	for (int row = (STAGES - 1) * PANEL + (int)threadIdx.x; row < rows; row += THREADS)
		prefetch_l2(b + row * p.b_pitch);
}

/* -------------------------------------------------------------------- results */

/* f(two neighbouring sums, row, column) for all of the thread's that are results. */
template <int ROWS, typename F>
static __device__ __forceinline__ void each_two(const struct small_gemm &p,
						float (&sum)[ROWS / 16][2][4], F f)
{
	const int row = (int)blockIdx.x * ROWS + fragment_row(0);
	const int column = (int)blockIdx.y * PANEL + (int)threadIdx.x / WARP * WARP_COLUMNS +
			   fragment_column(0);

#pragma unroll
	for (int i = 0; i < ROWS; i += 8)
#pragma unroll
		for (int n = 0; n < 2; n++)
			if (row + i < p.m && column + 8 * n < p.n)
				f(&sum[i / 16][n][i % 16 / 8 * 2], row + i, column + 8 * n);
}

/* Sums begin with what they are added to: it is read while panels are under way. */
template <int ROWS, enum vec_kind KIND>
static __device__ __forceinline__ void begin_sums(const struct small_gemm &p,
						  float (&sum)[ROWS / 16][2][4])
{
	const input_view<P> added = p.added + blockIdx.z * p.stride;

	clear(sum);
	if (!p.added && !p.bias)
		return;
	each_two<ROWS>(p, sum, [&](float *two, int row, int column) {
		const auto begin = p.bias ? p.bias[vec_index<2, KIND>{ column }]
					  : added[vec_index<2, KIND>{ row * p.pitch + column }];

		two[0] = begin[0];
		two[1] = begin[1];
	});
}

template <int ROWS, enum vec_kind KIND, enum epilogue EPILOGUE>
static __device__ __forceinline__ void put_sums(const struct small_gemm &p, output_view<P> out,
						float (&sum)[ROWS / 16][2][4])
{
	each_two<ROWS>(p, sum, [&](float *two, int row, int column) {
		const vec_index<2, KIND> at = { row * p.pitch + column };
		vec<float, 2> y = { two[0], two[1] };

		if (EPILOGUE == EPILOGUE_GELU) {
			p.before.put(at, y);
			for (int k = 0; k < 2; k++)
				y[k] *= formulas<P>::gelu_sigmoid(y[k]);
		} else if (EPILOGUE == EPILOGUE_GELU_GRADIENT) {
			const auto before = input_view<P>(p.before)[at];

			for (int k = 0; k < 2; k++)
				y[k] *= formulas<P>::gelu_slope(before[k]);
		}
		out.put(at, y);
	});
}

template <int ROWS, bool TRANSPOSED_B, enum vec_kind KIND, enum epilogue EPILOGUE>
static __global__ void __launch_bounds__(THREADS)
	small_gemm_kernel(const __grid_constant__ struct small_gemm p)
{
	typedef stage<ROWS, TRANSPOSED_B> stage_of;
	const uint32_t start = smem_address(dynamic_smem());
	const int column = (int)blockIdx.y * PANEL;
	const bf16 *a = p.a + blockIdx.z * p.a_stride + (int)blockIdx.x * ROWS * p.a_pitch;
	const bf16 *b =
		p.b + blockIdx.z * p.b_stride + (TRANSPOSED_B ? column * p.b_pitch : column);
	const output_view<P> out = p.out + blockIdx.z * p.stride;
	float sum[ROWS / 16][2][4];

	if (p.b_ready)
		prefetch_rest<TRANSPOSED_B>(p, b);
#pragma unroll 1
	for (int pass = p.b_ready ? 0 : 1; pass < 2; pass++) {
		if (pass == 1)
			pdl_wait();
#pragma unroll 1
		for (int number = 0; number < STAGES - 1; number++)
			stage_of(start, number)
				.copy(p, a, pass == 1, b, pass == (p.b_ready ? 0 : 1),
				      number * PANEL);
	}
	begin_sums<ROWS, KIND>(p, sum);
#pragma unroll 1
	for (int number = 0; number * PANEL < p.k; number++) {
		const int next = number + STAGES - 1;

		cp_async_wait<STAGES - 2>();
		__syncthreads();
		stage_of(start, next).copy(p, a, true, b, true, next * PANEL);
		stage_of(start, number).multiply(sum);
	}
	put_sums<ROWS, KIND, EPILOGUE>(p, out, sum);
}

/* -------------------------------------------------------------------- launches */

template <int ROWS, bool TRANSPOSED_B, enum vec_kind KIND, enum epilogue EPILOGUE>
static void launch_small_gemm(struct cuda_context *g, const struct small_gemm &p, int64_t count)
{
	const dim3 blocks((unsigned)((p.m + ROWS - 1) / ROWS),
			  (unsigned)((p.n + PANEL - 1) / PANEL), (unsigned)count);

	launch_pdl(g->pdl, small_gemm_kernel<ROWS, TRANSPOSED_B, KIND, EPILOGUE>, blocks, THREADS,
		   STAGES * stage<ROWS, TRANSPOSED_B>::BYTES, g->stream, p);
	g->issued++;
	cuda_note(g, cudaPeekAtLastError(), "a small product");
}

template <int ROWS, bool TRANSPOSED_B>
static void launch_with(struct cuda_context *g, const struct small_gemm &p, int64_t count,
			enum epilogue epilogue)
{
	if (epilogue == EPILOGUE_GELU)
		launch_small_gemm<ROWS, TRANSPOSED_B, VEC_OF_BF16, EPILOGUE_GELU>(g, p, count);
	else if (epilogue == EPILOGUE_GELU_GRADIENT)
		launch_small_gemm<ROWS, TRANSPOSED_B, VEC_OF_BF16, EPILOGUE_GELU_GRADIENT>(g, p,
											   count);
	else if (p.out.bf16_storage)
		launch_small_gemm<ROWS, TRANSPOSED_B, VEC_OF_BF16, EPILOGUE_NONE>(g, p, count);
	else
		launch_small_gemm<ROWS, TRANSPOSED_B, VEC_OF_REAL, EPILOGUE_NONE>(g, p, count);
}

#ifndef FEW_RESULTS
#define FEW_RESULTS ((int64_t)1 << 20) /* fewer where they are emulated */
#endif
#define SHORT_SUM 1024

static bool is_small(const struct gemm_shape &s)
{
	return s.m * s.n * s.count <= FEW_RESULTS && s.k <= SHORT_SUM && s.count < 1 << 16 &&
	       s.m * s.a_pitch <= INT32_MAX && s.m * s.pitch <= INT32_MAX &&
	       (s.k + s.n) * s.b_pitch <= INT32_MAX;
}

/* Pieces of 16 bytes of both factors, and two neighbours of the result, are moved at once. */
static bool is_aligned(const struct gemm_shape &s, const struct gemm_operands &memory)
{
	const int64_t all =
		s.k | s.n | s.a_pitch | s.b_pitch | s.pitch | s.a_stride | s.b_stride | s.stride;
	const uintptr_t addresses = (uintptr_t)memory.a | (uintptr_t)memory.b |
				    (uintptr_t)memory.bias | (uintptr_t)memory.before |
				    (uintptr_t)memory.added | (uintptr_t)memory.out;

	return all % VEC16<bf16> == 0 && addresses % 16 == 0;
}

static bool is_taken(const struct gemm_shape &s, const struct gemm_operands &memory)
{
	return s.factor == CUDA_R_16BF && !s.trans_a && memory.alpha == 1 && is_small(s) &&
	       is_aligned(s, memory) && (s.result == CUDA_R_16BF || !memory.before);
}

/* With fewer blocks of 32 rows than this, a large GPU would have nothing to do. */
#define ENOUGH_BLOCKS 128

bool cuda_small_gemm(struct cuda_context *g, const struct gemm_shape &s,
		     const struct gemm_operands &memory)
{
	const bool bf16_storage = s.result == CUDA_R_16BF;
	const bool many = (s.m + 31) / 32 * ((s.n + PANEL - 1) / PANEL) * s.count >= ENOUGH_BLOCKS;
	const auto launch = s.trans_b ? (many ? launch_with<32, true> : launch_with<16, true>)
				      : (many ? launch_with<32, false> : launch_with<16, false>);

	if (!is_taken(s, memory))
		return false;
	launch(g,
	       { (int)s.m,
		 (int)s.n,
		 (int)s.k,
		 (int)s.a_pitch,
		 (int)s.b_pitch,
		 (int)s.pitch,
		 s.a_stride,
		 s.b_stride,
		 s.stride,
		 (const bf16 *)memory.a,
		 (const bf16 *)memory.b,
		 { memory.bias, bf16_storage },
		 { memory.added, bf16_storage },
		 { memory.before, bf16_storage },
		 { memory.out, bf16_storage },
		 memory.b_ready },
	       s.count, (enum epilogue)s.epilogue);
	return true;
}
