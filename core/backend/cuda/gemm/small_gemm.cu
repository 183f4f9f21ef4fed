#include "core/backend/cuda/primitives/formulas.cuh"
#include "core/backend/cuda/gemm/small_gemm.cuh"
#include "core/backend/cuda/primitives/mma_tile.cuh"

/*
 * A block computes a ROWS x 64 tile of the output in registers (mma.sync m16n8k16); each of its
 * four warps computes 16 columns. Tiles of 64 channels (k) of both operands pass through a cp.async
 * pipeline of STAGES stages.
 *
 * Latency bounds so short a kernel. So its code is small, indices have 32 bits, and tiles of b that
 * can be preloaded are issued before pdl_wait().
 */
#define TILE 64 /* of n, and of k per step */
#define STAGES 4
#define THREADS (4 * WARP)
#define VECS (TILE / VEC16<bf16>)/* 16-byte vectors per tile row */
#define WARP_COLUMNS (TILE / 4)

typedef tile<bf16, TILE> smem_tile;
typedef bfloat16_products P;

/* bias, addend, pre_activation and out have the same type. */
struct small_gemm {
	int m, n, k, a_pitch, b_pitch, pitch;
	int64_t a_stride, b_stride, stride;
	const bf16 *a, *b;
	input_view<P> bias, addend; /* not both */
	output_view<P> pre_activation, out;
	bool b_can_preload; /* b may be read before pdl_wait() */
};

/* ---------------------------------------------------------------------- tiles */

/*
 * Issues the copies of a tile at `at`; rows and columns: how many are left there. The rest is
 * zero-filled.
 */
template <int ROWS>
static __device__ __forceinline__ void load_tile(smem_tile to, const bf16 *at, int pitch, int rows,
						 int columns)
{
	const int row = (int)threadIdx.x / VECS, vec = (int)threadIdx.x % VECS;
	const bf16 *from = at + row * pitch + vec * VEC16<bf16>;
	const uint32_t start = to.vec(row, vec);

#pragma unroll
	for (int i = 0; i < ROWS; i += THREADS / VECS) {
		const bool in_bounds = row + i < rows && vec * VEC16<bf16> < columns;

		/* The swizzle has period 8 in rows, so the vector keeps its place. */
		cp_async_vec16(start + (uint32_t)(i * smem_tile::LINE),
			       in_bounds ? from + i * pitch : at, in_bounds);
	}
}

template <int ROWS, bool TRANSPOSED_B> struct stage {
	static constexpr int BYTES = (ROWS + TILE) * smem_tile::LINE;
	smem_tile a, b;

	__device__ stage(uint32_t start, int step)
	    : a{ start + (uint32_t)(step % STAGES * BYTES) }, b{
		      a.at + (uint32_t)(ROWS * smem_tile::LINE)
	      }
	{
	}
	/* Issues the copies of a, b or both from channel `channel` on; nothing beyond k. */
	__device__ __forceinline__ void copy(const struct small_gemm &p, const bf16 *a_rows,
					     bool copy_a, const bf16 *b_rows, bool copy_b,
					     int channel) const
	{
		const int rows = p.m - (int)blockIdx.x * ROWS,
			  columns = p.n - (int)blockIdx.y * TILE;
		const int left = p.k - channel;

		if (left > 0 && copy_a)
			load_tile<ROWS>(a, a_rows + channel, p.a_pitch, rows, left);
		if (left > 0 && copy_b) {
			if (TRANSPOSED_B)
				load_tile<TILE>(b, b_rows + channel, p.b_pitch, columns, left);
			else
				load_tile<TILE>(b, b_rows + channel * p.b_pitch, p.b_pitch, left,
						columns);
		}
		cp_async_commit();
	}
	/* Accumulates the warp's part of a 64-channel step. */
	__device__ __forceinline__ void multiply(float (&acc)[ROWS / 16][2][4]) const
	{
		const int column = (int)threadIdx.x / WARP * WARP_COLUMNS;
		const reader<TILE> from_a = read_rows(a, 0);
		const reader<TILE> from_b = TRANSPOSED_B ? read_columns(b) : read_rows(b, 0);

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
				mma(acc[m][0], left, right[0], right[1]);
				mma(acc[m][1], left, right[2], right[3]);
			}
		}
	}
};

/*
 * Prefetches the tiles of b beyond the first stages to L2; only blocks with blockIdx.x == 0 do so.
 */
template <bool TRANSPOSED_B>
static __device__ __forceinline__ void prefetch_b(const struct small_gemm &p, const bf16 *b)
{
	const int rows = TRANSPOSED_B || blockIdx.x > 0 ? 0 : p.k;

	for (int row = (STAGES - 1) * TILE + (int)threadIdx.x; row < rows; row += THREADS)
		prefetch_l2(b + row * p.b_pitch);
}

/* ------------------------------------------------------------------- epilogue */

/* Calls f(pair of sums, row, column) for the thread's elements that are in bounds. */
template <int ROWS, typename F>
static __device__ __forceinline__ void for_each_pair(const struct small_gemm &p,
						     float (&acc)[ROWS / 16][2][4], F f)
{
	const int row = (int)blockIdx.x * ROWS + fragment_row(0);
	const int column = (int)blockIdx.y * TILE + (int)threadIdx.x / WARP * WARP_COLUMNS +
			   fragment_column(0);

#pragma unroll
	for (int i = 0; i < ROWS; i += 8)
#pragma unroll
		for (int n = 0; n < 2; n++)
			if (row + i < p.m && column + 8 * n < p.n)
				f(&acc[i / 16][n][i % 16 / 8 * 2], row + i, column + 8 * n);
}

/* Accumulators start from the bias or addend, which is loaded while tiles are in flight. */
template <int ROWS, enum vec_kind KIND>
static __device__ __forceinline__ void init_accumulators(const struct small_gemm &p, unsigned z,
							 float (&acc)[ROWS / 16][2][4])
{
	const input_view<P> addend = p.addend + z * p.stride;

	clear(acc);
	if (!p.addend && !p.bias)
		return;
	for_each_pair<ROWS>(p, acc, [&](float *pair, int row, int column) {
		const auto begin = p.bias ? p.bias[vec_index<2, KIND>{ column }]
					  : addend[vec_index<2, KIND>{ row * p.pitch + column }];

		pair[0] = begin[0];
		pair[1] = begin[1];
	});
}

template <int ROWS, enum vec_kind KIND, enum epilogue EPILOGUE>
static __device__ __forceinline__ void store_output(const struct small_gemm &p, output_view<P> out,
						    float (&acc)[ROWS / 16][2][4])
{
	for_each_pair<ROWS>(p, acc, [&](float *pair, int row, int column) {
		const vec_index<2, KIND> at = { row * p.pitch + column };
		vec<float, 2> y = { pair[0], pair[1] };

		if (EPILOGUE == EPILOGUE_GELU) {
			p.pre_activation.put(at, y);
			for (int k = 0; k < 2; k++)
				y[k] *= formulas<P>::gelu_sigmoid(y[k]);
		} else if (EPILOGUE == EPILOGUE_GELU_GRADIENT) {
			const auto pre_activation = input_view<P>(p.pre_activation)[at];

			for (int k = 0; k < 2; k++)
				y[k] *= formulas<P>::gelu_slope(pre_activation[k]);
		}
		out.put(at, y);
	});
}

template <int ROWS, bool TRANSPOSED_B, enum vec_kind KIND, enum epilogue EPILOGUE>
static __global__ void __launch_bounds__(THREADS)
	small_gemm_kernel(struct replicas replicas, const __grid_constant__ struct small_gemm given)
{
	const auto &p = replicas.own(given);
	typedef stage<ROWS, TRANSPOSED_B> stage_of;
	const uint32_t start = smem_address(dynamic_smem());
	const int column = (int)blockIdx.y * TILE;
	const unsigned z = replicas.block_z(); /* number of the product in the batch */
	const bf16 *a = p.a + z * p.a_stride + (int)blockIdx.x * ROWS * p.a_pitch;
	const bf16 *b = p.b + z * p.b_stride + (TRANSPOSED_B ? column * p.b_pitch : column);
	const output_view<P> out = p.out + z * p.stride;
	float acc[ROWS / 16][2][4];

	if (p.b_can_preload)
		prefetch_b<TRANSPOSED_B>(p, b);
#pragma unroll 1
	for (int pass = p.b_can_preload ? 0 : 1; pass < 2; pass++) {
		if (pass == 1)
			pdl_wait();
#pragma unroll 1
		for (int step = 0; step < STAGES - 1; step++)
			stage_of(start, step)
				.copy(p, a, pass == 1, b, pass == (p.b_can_preload ? 0 : 1),
				      step * TILE);
	}
	init_accumulators<ROWS, KIND>(p, z, acc);
#pragma unroll 1
	for (int step = 0; step * TILE < p.k; step++) {
		const int next = step + STAGES - 1;

		cp_async_wait<STAGES - 2>();
		__syncthreads();
		stage_of(start, next).copy(p, a, true, b, true, next * TILE);
		stage_of(start, step).multiply(acc);
	}
	store_output<ROWS, KIND, EPILOGUE>(p, out, acc);
}

/* -------------------------------------------------------------------- launches */

template <int ROWS, bool TRANSPOSED_B, enum vec_kind KIND, enum epilogue EPILOGUE>
static void launch_small_gemm(struct cuda_context *g, const struct small_gemm &p, int64_t count)
{
	const dim3 blocks((unsigned)((p.m + ROWS - 1) / ROWS), (unsigned)((p.n + TILE - 1) / TILE),
			  (unsigned)count);
	const int steps = (p.k + TILE - 1) / TILE, stages = steps < STAGES ? steps : STAGES;

	launch_pdl(g->pdl, small_gemm_kernel<ROWS, TRANSPOSED_B, KIND, EPILOGUE>, blocks, THREADS,
		   stages * stage<ROWS, TRANSPOSED_B>::BYTES, stream_of(g), p);
	g->issued++;
	cuda_note(g, cudaPeekAtLastError(), "a small product");
}

template <int ROWS, bool TRANSPOSED_B>
static void launch_epilogue(struct cuda_context *g, const struct small_gemm &p, int64_t count,
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
#define FEW_RESULTS ((int64_t)1 << 20) /* the emulation uses fewer */
#endif
#define MAX_K 1024

static bool is_small(const struct gemm_shape &s)
{
	return s.m * s.n * s.count <= FEW_RESULTS && s.k <= MAX_K && s.count < 1 << 16 &&
	       s.m * s.a_pitch <= INT32_MAX && s.m * s.pitch <= INT32_MAX &&
	       (s.k + s.n) * s.b_pitch <= INT32_MAX;
}

/* Operands need aligned 16-byte vectors, the output aligned pairs. */
static bool is_aligned(const struct gemm_shape &s, const struct gemm_operands &operands)
{
	const int64_t all =
		s.k | s.n | s.a_pitch | s.b_pitch | s.pitch | s.a_stride | s.b_stride | s.stride;
	const uintptr_t addresses = (uintptr_t)operands.a | (uintptr_t)operands.b |
				    (uintptr_t)operands.bias | (uintptr_t)operands.pre_activation |
				    (uintptr_t)operands.addend | (uintptr_t)operands.out;

	return all % VEC16<bf16> == 0 && addresses % 16 == 0;
}

static bool is_supported(const struct gemm_shape &s, const struct gemm_operands &operands)
{
	return s.factor == CUDA_R_16BF && !s.trans_a && operands.alpha == 1 && is_small(s) &&
	       is_aligned(s, operands) && (s.result == CUDA_R_16BF || !operands.pre_activation);
}

bool cuda_small_gemm(struct cuda_context *g, const struct gemm_shape &s,
		     const struct gemm_operands &operands)
{
	const bool bf16_storage = s.result == CUDA_R_16BF;
	/* Of 32 rows; if they do not fill the GPU, blocks have 16.  Replicas fill it together. */
	const int64_t blocks = (s.m + 31) / 32 * ((s.n + TILE - 1) / TILE) * s.count;
	const bool many = REPLICA_FORM || blocks >= blocks_to_fill(g->sm_count, 1);
	const auto launch =
		s.trans_b ? (many ? launch_epilogue<32, true> : launch_epilogue<16, true>)
			  : (many ? launch_epilogue<32, false> : launch_epilogue<16, false>);

	if (!is_supported(s, operands))
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
		 (const bf16 *)operands.a,
		 (const bf16 *)operands.b,
		 { operands.bias, bf16_storage },
		 { operands.addend, bf16_storage },
		 { operands.pre_activation, bf16_storage },
		 { operands.out, bf16_storage },
		 operands.b_can_preload },
	       s.count, (enum epilogue)s.epilogue);
	return true;
}
