/*
 * flash_forward - parameters, kernel traits and shared-memory layout of flash attention, and its
 * forward kernel.
 *
 *     S = scale QK^T + terms    P = softmax(S)    O = (P * dropout) V    lse = log sum_j exp(S_ij)
 *
 * A block keeps BLOCK_M queries resident and streams tiles of BLOCK_N keys and values through
 * STAGES stages of shared memory with cp.async. Each row keeps an online softmax. S and P never
 * leave registers: the accumulator of S = QK^T has the register layout of the A operand of PV
 * (mma_tile.cuh). With bfloat16, tensor cores and exp2 bound the kernel; with float and double,
 * arithmetic does.
 *
 * Operands are read in place where they are 16-byte aligned, otherwise from copies
 * [B,heads,tokens,dim], rounded and zero-padded to the head dimension of the kernel. All
 * exponentials are exp2: scores and lse carry a factor log2(e).
 *
 * The optional band adds band * cross_ij to S_ij where i - j <= band_window; cross_ij = scale
 * q_j.k_i.
 *
 * (T. Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning",
 * 2023.)
 */
#ifndef CUDA_ATTENTION_FLASH_FORWARD_CUH
#define CUDA_ATTENTION_FLASH_FORWARD_CUH

#include <type_traits>

#include "core/backend/cuda/attention/query_rows.cuh"
#include "core/backend/cuda/primitives/wgmma_tile.cuh"

#define LN_2 0.6931471805599453

/* ------------------------------------------------------------- kernel parameters */

/* Two elements that one load instruction reads. */
template <typename R> struct alignas(2 * sizeof(R)) aligned_pair {
	R x, y;
};

/* Upper bound of BLOCK_M and BLOCK_N over all traits. */
#define MAX_BLOCK_ROWS 128

/* Rows of one head in global memory. */
template <typename F> struct rows {
	const F *at;
	int64_t pitch;
};

template <typename F>
static __device__ rows<F> rows_of(const head_matrix<const F *> &x, int head, int H)
{
	return { x.at + head / H * x.batch_stride + head % H / x.group_size * x.head_stride,
		 x.pitch };
}

/* One operand side of a head: queries or keys. A row is a token. */
template <typename F> struct gmem_operands {
	rows<F> score, value;	    /* score: Q or K; value: dO or V */
	rows<F> cross;		    /* the band: K at the queries' tokens, or Q at the keys' */
	int score_vecs, value_vecs; /* 16-byte vectors per row; the rest of a tile is zero-filled */
	int n;
	int cross_first, cross_n; /* row of cross that matches row 0, and row count */
};

template <typename P> struct flash_params {
	typedef typename P::real real;

	int H, T;
	int first_head, heads; /* range of this launch among the B * H heads */
	int past;	       /* position of the first query */
	int S;		       /* number of keys: past + T */
	head_matrix<const typename P::factor *> q, k, v, d_o, recent;
	int score_vecs, value_vecs; /* 16-byte vectors per row, at most QK_DIM and V_DIM elements */
	int recent_first, recent_n;
	real scale;
	const real *key_bias; /* or NULL */
	struct heads bias_layout;
	const aligned_pair<real> *distance_pairs; /* distance_pairs.cuh, or NULL */
	int distances;				  /* pairs per head */
	int window, sinks;			  /* window 0: none */
	real softcap;				  /* 0: no cap */
	int band_window;
	real constant_band;
	const real *learned_band; /* or NULL */
	struct dropout_mask dropout;
	int padded_T;		      /* T rounded up to whole blocks */
	const real *lse_log2, *delta; /* [B,H,padded_T]; lse_log2 = lse * log2(e); backward only */
	int heads_per_block = 1;      /* heads whose dK one block sums; backward only */
	real *ds; /* dS [heads,padded_T,padded_T], one row per query; NULL: not stored */

	__device__ real band() const
	{
		return learned_band ? *learned_band : constant_band;
	}
	/* Address of dS of query i and key j. */
	__device__ real *ds_at(int head, int i, int j) const
	{
		return ds + ((int64_t)(head - first_head) * padded_T + i) * padded_T + j;
	}
};

/* --------------------------------------------------------------------- kernel traits */

/*
 * Compile-time shape of a kernel. QK_DIM, V_DIM: padded head dimensions. A warp computes M_TILES
 * MMA tiles of 16 rows; a block has BLOCK_M resident rows and streams tiles of BLOCK_N rows. In
 * forward and dQ kernels the resident rows are queries, in the dK/dV kernel they are keys.
 *
 * HAS_BIAS: per-key bias. HAS_TERMS: also distance bias, window, softcap, dropout and scale <= 0.
 * HAS_BAND: also the band.
 * WGMMA: a warpgroup multiplies 64 rows with wgmma, 16 rows per warp; otherwise each warp uses
 * mma.sync. STAGES: pipeline stages of shared memory for the streamed tiles.
 */
template <typename P_, int QK_DIM_, int V_DIM_, int M_TILES_, int WARPS_, int BLOCK_N_,
	  int MIN_BLOCKS_PER_SM_, bool HAS_TERMS_, bool HAS_BAND_, bool WGMMA_ = false,
	  int STAGES_ = 2, bool HAS_BIAS_ = false>
struct kernel_traits {
	typedef P_ P;
	typedef typename P::real real;
	typedef typename P::factor factor;

	static constexpr int QK_DIM = QK_DIM_, V_DIM = V_DIM_, M_TILES = M_TILES_, WARPS = WARPS_,
			     BLOCK_N = BLOCK_N_;
	static constexpr int MIN_BLOCKS_PER_SM = MIN_BLOCKS_PER_SM_, STAGES = STAGES_;
	static constexpr bool HAS_TERMS = HAS_TERMS_ || HAS_BAND_, HAS_BAND = HAS_BAND_,
			      WGMMA = WGMMA_;
	static constexpr bool HAS_BIAS = HAS_BIAS_ || HAS_TERMS;
	static constexpr int THREADS = 32 * WARPS, BLOCK_M = 16 * M_TILES * WARPS,
			     N_TILES = BLOCK_N / 8;

	/* Accumulators: S, the band's cross term, dQ or dK, and O or dV. */
	typedef fragments<real, M_TILES, N_TILES> score_acc;
	typedef fragments<real, M_TILES, HAS_BAND ? N_TILES : 1> cross_acc;
	typedef fragments<real, M_TILES, QK_DIM / 8> qk_acc;
	typedef fragments<real, M_TILES, V_DIM / 8> v_acc;
	typedef real row_scalars[M_TILES][2]; /* one value for each row of the thread */

	/* A tile of N rows and W columns in shared memory. */
	template <int W, int N>
	using smem_tile = std::conditional_t<WGMMA, swizzled_tile<W, N>, tile<factor, W>>;

	/* Rounds up a size so that a swizzled tile may follow. */
	static constexpr int align_smem(int bytes)
	{
		return WGMMA ? (bytes + SWIZZLE_ALIGNMENT - 1) / SWIZZLE_ALIGNMENT *
				       SWIZZLE_ALIGNMENT
			     : bytes;
	}

	/* WGMMA kernels compile to an empty body for GPUs without it. */
	static __device__ __forceinline__ bool is_supported()
	{
		return !WGMMA || HAS_WGMMA;
	}

	/* Rows of one MMA unit: a warp, or a warpgroup with WGMMA. */
	static constexpr int MMA_ROWS = WGMMA ? 64 : 16 * M_TILES;

	static __device__ __forceinline__ int first_mma_row()
	{
		return WGMMA ? warpgroup() * 64 : 16 * M_TILES * (int)(threadIdx.x / 32);
	}
};

template <typename Traits> using params_of = flash_params<typename Traits::P>;
template <typename Traits> using gmem_operands_of = gmem_operands<typename Traits::factor>;

template <typename Traits>
static __device__ gmem_operands_of<Traits> queries_of(const params_of<Traits> &p, int head)
{
	return { rows_of(p.q, head, p.H),
		 rows_of(p.d_o, head, p.H),
		 rows_of(p.k, head, p.H),
		 p.score_vecs,
		 p.value_vecs,
		 p.T,
		 p.past,
		 p.S };
}

template <typename Traits>
static __device__ gmem_operands_of<Traits> keys_of(const params_of<Traits> &p, int head)
{
	return { rows_of(p.k, head, p.H),
		 rows_of(p.v, head, p.H),
		 rows_of(p.recent, head, p.H),
		 p.score_vecs,
		 p.value_vecs,
		 p.S,
		 -p.recent_first,
		 p.recent_n };
}

/* -------------------------------------------------------------------- shared memory */

/* The tiles of one operand side in shared memory. */
template <typename Traits, int N, bool VALUE> struct smem_tiles {
	typedef typename Traits::factor factor;

	typename Traits::template smem_tile<Traits::QK_DIM, N> score, cross;
	typename Traits::template smem_tile<Traits::V_DIM, N> value;

	static constexpr int SCORE = N * Traits::QK_DIM * (int)sizeof(factor),
			     CROSS = Traits::HAS_BAND ? SCORE : 0;
	static constexpr int BYTES =
		SCORE + CROSS + (VALUE ? N * Traits::V_DIM * (int)sizeof(factor) : 0);

	__device__ explicit smem_tiles(uint32_t at)
	{
		score.at = at;
		cross.at = at + SCORE;
		value.at = at + SCORE + CROSS;
	}
	__device__ void copy_score(const gmem_operands<factor> &from, int first) const
	{
		copy_tile<N, Traits::THREADS>(score, from.score.at, from.score.pitch,
					      from.score_vecs, first, from.n);
	}
	/* Issues the copies of N rows from row `first`. */
	__device__ void copy(const gmem_operands<factor> &from, int first, bool in_band) const
	{
		copy_score(from, first);
		if (VALUE)
			copy_tile<N, Traits::THREADS>(value, from.value.at, from.value.pitch,
						      from.value_vecs, first, from.n);
		if (Traits::HAS_BAND && in_band)
			copy_tile<N, Traits::THREADS>(cross, from.cross.at, from.cross.pitch,
						      from.score_vecs, first + from.cross_first,
						      from.cross_n);
	}
};

/* Scalars per streamed token: the bias of a key, or lse and delta of a query. */
#define SCALARS_PER_TOKEN 2

/* Shared memory of a block: resident tiles, then STAGES stages of streamed tiles. */
template <typename Traits, bool RESIDENT_VALUE> struct smem_layout {
	typedef smem_tiles<Traits, Traits::BLOCK_M, RESIDENT_VALUE> resident_tiles;
	typedef smem_tiles<Traits, Traits::BLOCK_N, true> stage_tiles;

	/* The forward pass needs them only for the bias. */
	static constexpr bool HAS_SCALARS = RESIDENT_VALUE || Traits::HAS_BIAS;
	static constexpr int SCALAR_BYTES = HAS_SCALARS ? SCALARS_PER_TOKEN * Traits::BLOCK_N *
								  (int)sizeof(typename Traits::real)
							: 0;
	static constexpr int STAGE_BYTES = Traits::align_smem(stage_tiles::BYTES + SCALAR_BYTES);
	static constexpr int BYTES = resident_tiles::BYTES + Traits::STAGES * STAGE_BYTES;
	static constexpr int FIRST_BYTES = resident_tiles::BYTES + STAGE_BYTES; /* of one step */

	static __device__ uint32_t stage(uint32_t start, int step)
	{
		return start + resident_tiles::BYTES + step % Traits::STAGES * STAGE_BYTES;
	}
	static __device__ const typename Traits::real *scalars(const char *start, int step)
	{
		return (const typename Traits::real *)(start + resident_tiles::BYTES +
						       step % Traits::STAGES * STAGE_BYTES +
						       stage_tiles::BYTES);
	}
};

/* Waits until the cp.async copies of all threads of the block have landed. */
template <typename Traits> static __device__ __forceinline__ void cp_async_wait_block()
{
	cp_async_wait<0>();
	if (Traits::WGMMA)
		fence_proxy_async();
	__syncthreads();
}

/* ---------------------------------------------------------------------- scores */

/*
 * Coefficients of one head's score terms, times log2(e). inverse_scale multiplies the bias if
 * !HAS_TERMS.
 */
template <typename R> struct score_terms {
	R scale, band, inverse_scale;
	int band_window;
	bool has_key_bias;
	/*
	 * Element d is the distance bias of d and d - 1, times log2(e), 0 where there is none. It
	 * may be read MAX_BLOCK_ROWS beyond both ends. NULL: none.
	 */
	const aligned_pair<R> *distance_pairs;
	R softcap, inverse_softcap; /* 0: no cap */
	int window, sinks;	    /* window 0: none */

	/* May the keys from j0 on be hidden from some of the queries up to i? */
	__device__ __forceinline__ bool hides(int i, int j0) const
	{
		return window > 0 && j0 <= i - window;
	}
	__device__ __forceinline__ bool sees(int i, int j) const
	{
		return i - j < window || j < sinks;
	}
};

/*
 * The score of a key outside the window. It is finite: the maximum of a row whose first tiles are
 * hidden must be. Its exponential is 0 once the row has met a key that it sees.
 */
#define HIDDEN_SCORE (-1e30)

template <typename Traits> using score_terms_of = score_terms<typename Traits::real>;

/*
 * Without HAS_TERMS a score stays QK^T + bias / scale. The exponent's fused multiply-add applies
 * the scale (which is positive) at no cost.
 */
template <typename Traits>
static __device__ __forceinline__ typename Traits::real
scale_log2_of(const score_terms_of<Traits> &t)
{
	return Traits::HAS_TERMS ? 1 : t.scale;
}

template <typename P>
static __device__ score_terms<typename P::real> make_score_terms(const flash_params<P> &p, int head)
{
	typedef typename P::real real;
	const real scale = p.scale * (real)M_LOG2E;

	const real softcap = p.softcap * (real)M_LOG2E;

	return { scale,
		 p.band_window >= 0 ? p.band() * scale : 0,
		 1 / p.scale,
		 p.band_window,
		 p.key_bias != NULL,
		 p.distance_pairs
			 ? p.distance_pairs + (int64_t)(head % p.H) * p.distances + MAX_BLOCK_ROWS
			 : NULL,
		 softcap,
		 p.softcap > 0 ? 1 / softcap : 0,
		 p.window,
		 p.sinks };
}

/* exp2 at the precision of P: the hardware approximation suffices for bfloat16. */
template <typename Traits> static __device__ __forceinline__ double softmax_exp2(double x)
{
	return exp2(x);
}

template <typename Traits> static __device__ __forceinline__ float softmax_exp2(float x)
{
	return sizeof(typename Traits::factor) == sizeof(float) ? exp2f(x) : ex2_approx(x);
}

/*
 * s = s * factor + distance bias. d0 is the distance of row 0 and column 0. Rows 8 apart and
 * columns 8 apart in the same direction have the same distance, so a thread loads each pair once.
 */
template <typename Traits, bool QUERY_ROWS>
static __device__ __forceinline__ void add_distance_bias(const score_terms_of<Traits> &t,
							 typename Traits::real factor, int d0,
							 typename Traits::score_acc &s)
{
	constexpr int FIRST = -(2 * Traits::M_TILES - 1);
	const int d = d0 + (QUERY_ROWS ? fragment_row(0) - fragment_column(0)
				       : fragment_column(0) - fragment_row(0) + 1);

#pragma unroll
	for (int k = FIRST; k < Traits::N_TILES; k++) {
		const auto pair = t.distance_pairs[QUERY_ROWS ? d - 8 * k : d + 8 * k];

#pragma unroll
		for (int m = 0; m < Traits::M_TILES; m++)
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const int n = k + 2 * m + half;

				if (n < 0 || n >= Traits::N_TILES)
					continue;
				auto &x = s[m][n][2 * half], &y = s[m][n][2 * half + 1];

				x = x * factor + (QUERY_ROWS ? pair.x : pair.y);
				y = y * factor + (QUERY_ROWS ? pair.y : pair.x);
			}
	}
}

/*
 * Turns QK^T into scores in units of scale_log2_of(). bias(m, e, c) is the key's bias, d0 the
 * distance i - j of row 0 and column 0; QUERY_ROWS: rows are queries, columns keys. `cross` is read
 * inside the band only. Each term has its own loop, so an unused term costs nothing.
 */
template <typename Traits, bool QUERY_ROWS, typename Bias>
static __device__ __forceinline__ void
apply_score_terms(const score_terms_of<Traits> &t, bool in_band,
		  const typename Traits::cross_acc &cross, Bias bias, int d0,
		  typename Traits::score_acc &s)
{
	typedef typename Traits::real real;

	if constexpr (Traits::HAS_TERMS) {
		if (t.has_key_bias)
			each_number(s, [&](real &x, int m, int, int e, int, int c) {
				x = x * t.scale + bias(m, e, c) * (real)M_LOG2E;
			});
		if (t.distance_pairs)
			add_distance_bias<Traits, QUERY_ROWS>(t, t.has_key_bias ? 1 : t.scale, d0,
							      s);
		else if (!t.has_key_bias)
			each_number(s, [&](real &x, int, int, int, int, int) { x *= t.scale; });
	} else if constexpr (Traits::HAS_BIAS) {
		each_number(s, [&](real &x, int m, int, int e, int, int c) {
			x += bias(m, e, c) * t.inverse_scale;
		});
	}
	if constexpr (Traits::HAS_BAND)
		if (in_band)
			each_number(s, [&](real &x, int m, int n, int e, int r, int c) {
				x += d0 + (QUERY_ROWS ? r - c : c - r) <= t.band_window
					     ? t.band * cross[m][n][e]
					     : 0;
			});
	if constexpr (Traits::HAS_TERMS)
		if (t.softcap > 0)
			each_number(s, [&](real &x, int, int, int, int, int) {
				x = formulas<typename Traits::P>::score_cap(x, t.softcap,
									    t.inverse_softcap);
			});
}

/*
 * Dropout decisions for the thread's scores, one bit each. query(r, c) and key(r, c) map a fragment
 * element to its query and key. A rolled loop computes the bits, which keeps the code small.
 */
template <typename Traits> struct dropout_bits {
	uint64_t bits;
	typename Traits::real factor;

	template <typename Query, typename Key>
	__device__ __forceinline__ dropout_bits(const params_of<Traits> &p, int head, Query query,
						Key key)
	    : bits(0), factor((typename Traits::real)p.dropout.factor)
	{
		static_assert(4 * Traits::M_TILES * Traits::N_TILES <= 64, "one bit per score");
#pragma unroll 1
		for (int k = 0; k < Traits::M_TILES * Traits::N_TILES; k++)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const int r = 16 * (k / Traits::N_TILES) + fragment_row(e);
				const int c = 8 * (k % Traits::N_TILES) + fragment_column(e);
				const int64_t row = (int64_t)head * p.T + query(r, c);
				const bool is_kept =
					p.dropout.at((uint64_t)(row * p.T + key(r, c))) != 0;

				bits |= (uint64_t)is_kept << (4 * k + e);
			}
	}
	__device__ __forceinline__ typename Traits::real at(int m, int n, int e) const
	{
		return bits >> (4 * (m * Traits::N_TILES + n) + e) & 1 ? factor : 0;
	}
};

/* Reductions over the four threads (a quad) that hold a row. */
template <typename R> static __device__ __forceinline__ R quad_sum(R x)
{
	x += __shfl_xor_sync(0xffffffffu, x, 1);
	return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <typename R> static __device__ __forceinline__ R quad_max(R x)
{
	x = fmax(x, __shfl_xor_sync(0xffffffffu, x, 1));
	return fmax(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* -------------------------------------------------------------------- epilogue */

/* The rows of a head in an output tensor or buffer. to.at is NULL if the output is not needed. */
template <typename P> struct gmem_output {
	head_matrix<output_view<P>> to;
	int width;
	bool add;	      /* add to the output instead of overwriting it */
	bool is_pair_aligned; /* two columns may use one store */
	bool is_vectorized;   /* bfloat16 rows may use 16-byte stores */

	__device__ output_view<P> rows(int head, int H) const
	{
		return to.at +
		       (head / H * to.batch_stride + head % H / to.group_size * to.head_stride);
	}
};

template <typename P>
static gmem_output<P> gmem_output_of(head_matrix<output_view<P>> to, int64_t width, bool add)
{
	const size_t pair =
		2 * (to.at.bf16_storage ? sizeof(typename P::factor) : sizeof(typename P::real));

	return { to, (int)width, add,
		 width % 2 == 0 && to.pitch % 2 == 0 && (uintptr_t)to.at.at % pair == 0,
		 to.at.bf16_storage && to.pitch % 8 == 0 && (uintptr_t)to.at.at % 16 == 0 };
}

static __device__ __forceinline__ void write_pair(const output_view<double_precision> &to, double x,
						  double y)
{
	*(double2 *)to.at = { x, y };
}

template <typename P>
static __device__ __forceinline__ void write_pair(const output_view<P> &to, float x, float y)
{
	if (ROUNDS<P> && to.bf16_storage)
		*(uint32_t *)to.at = pack_bf16x2(x, y);
	else
		*(float2 *)to.at = { x, y };
}

/* Stores factor * x for one row, two columns per store. */
template <typename P, int COLUMNS>
static __device__ __forceinline__ void store_pairs(const output_view<P> &to,
						   const typename P::real (&x)[COLUMNS][4],
						   int half, typename P::real factor)
{
#pragma unroll
	for (int c = 0; c < COLUMNS; c++)
		write_pair(to + result_column<typename P::factor>(c), x[c][2 * half] * factor,
			   x[c][2 * half + 1] * factor);
}

/*
 * Transposes a 4x4 matrix of words over a quad: word k of thread i becomes word i of thread k.
 */
static __device__ __forceinline__ void transpose_words(uint32_t (&word)[4])
{
#pragma unroll
	for (int step = 1; step < 4; step *= 2)
#pragma unroll
		for (int k = 0; k < 4; k++) {
			uint32_t &low = word[k], &high = word[k | step];
			const bool upper = threadIdx.x & step;

			if (k & step)
				continue;
			const uint32_t received =
				__shfl_xor_sync(0xffffffffu, upper ? low : high, step);

			low = upper ? received : low;
			high = upper ? high : received;
		}
}

/*
 * Stores one bfloat16 row with 16-byte stores. The quad first transposes its words, so all its
 * threads must call this.
 */
template <typename F, int COLUMNS>
static __device__ __forceinline__ void store_vecs(F *to, const float (&x)[COLUMNS][4], int half,
						  float factor, bool in_bounds)
{
#pragma unroll
	for (int c = 0; c < COLUMNS; c += 4) {
		uint32_t word[4];

#pragma unroll
		for (int k = 0; k < 4; k++)
			word[k] = pack_bf16x2(x[c + k][2 * half] * factor,
					      x[c + k][2 * half + 1] * factor);
		transpose_words(word);
		if (in_bounds)
			st_global_vec16(to + 8 * (c + (int)threadIdx.x % 4),
					{ word[0], word[1], word[2], word[3] });
	}
}

/* Stores factor * x to rows first, first + 1, ... of n, or adds it if t.add. */
template <typename P, int ROWS, int COLUMNS>
static __device__ void store_rows(const gmem_output<P> &t, const output_view<P> &rows, int first,
				  int n, const typename P::real (&x)[ROWS][COLUMNS][4],
				  const typename P::real (&factor)[ROWS][2])
{
	typedef typename P::real R;

#pragma unroll
	for (int m = 0; m < ROWS; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int row = first + 16 * m + fragment_row(2 * half);
			const auto to = rows + row * t.to.pitch;

			if constexpr (ROUNDS<P> && COLUMNS % 4 == 0)
				if (t.is_vectorized && !t.add && t.width == 8 * COLUMNS) {
					store_vecs((typename P::factor *)to.at, x[m], half,
						   factor[m][half], row < n);
					continue;
				}
			if (row >= n)
				continue;
			if (t.is_pair_aligned && !t.add && t.width == 8 * COLUMNS) {
				store_pairs(to, x[m], half, factor[m][half]);
				continue;
			}
#pragma unroll
			for (int c = 0; c < COLUMNS; c++) {
				const int column = result_column<typename P::factor>(c);
				const int left = t.width - column;
				const auto at = to + column;
				R y = x[m][c][2 * half] * factor[m][half];
				R z = x[m][c][2 * half + 1] * factor[m][half];

				if (t.add && left > 0)
					y += at[0];
				if (t.add && left > 1)
					z += at[1];
				if (t.is_pair_aligned && left > 0) {
					write_pair(at, y, z);
				} else {
					if (left > 0)
						at[0] = y;
					if (left > 1)
						at[1] = z;
				}
			}
		}
}

template <typename R, int ROWS> static __device__ void fill(R (&x)[ROWS][2], R value)
{
#pragma unroll
	for (int m = 0; m < ROWS; m++)
		x[m][0] = x[m][1] = value;
}

/* --------------------------------------------------------------------- forward */

/*
 * Maps blockIdx.x to a head and a tile of that head; tile 0 has the most work. Within a wave of
 * HEADS_PER_WAVE heads the longest tiles launch first and short ones fill the tail. A wave is
 * limited so that the K and V of its heads stay in L2. The last wave takes the remaining heads.
 */
#define HEADS_PER_WAVE 32

struct tile_order {
	int head, tile;

	__device__ explicit tile_order(int blocks)
	{
		const int heads = (int)gridDim.x / blocks;
		const int last_wave = heads < HEADS_PER_WAVE ? 0 : heads / HEADS_PER_WAVE - 1;
		const int wave = (int)blockIdx.x / (HEADS_PER_WAVE * blocks);
		const int first = (wave < last_wave ? wave : last_wave) * HEADS_PER_WAVE;
		const int n = wave < last_wave ? HEADS_PER_WAVE : heads - first;
		const int position = (int)blockIdx.x - first * blocks;

		head = first + position % n;
		tile = position / n;
	}
};

/*
 * The loop of one query block over the key tiles it sees: those of the sinks, then those from the
 * window's first key to the diagonal.
 */
template <typename Traits> struct query_block_loop {
	int head, first;	 /* first query */
	int position;		 /* position of the first query */
	int begin, end;		 /* range of steps */
	int sink_tiles, skipped; /* tiles before and between */

	/* One block of a head, without a loop. */
	__device__ query_block_loop(const params_of<Traits> &p, int head)
	    : head(head), first(0), position(p.past), begin(0), end(0), sink_tiles(0), skipped(0)
	{
	}
	__device__ explicit query_block_loop(const params_of<Traits> &p)
	{
		const int blocks = (p.T + Traits::BLOCK_M - 1) / Traits::BLOCK_M;
		const int last = p.past + p.T - 1;
		const struct tile_order order(blocks);

		head = p.first_head + order.head;
		first = (blocks - 1 - order.tile) * Traits::BLOCK_M;
		position = p.past + first;
		const int window_tile =
			(int)score_window_start({ p.window, p.sinks }, position) / Traits::BLOCK_N;
		const int tiles = (p.sinks + Traits::BLOCK_N - 1) / Traits::BLOCK_N;

		sink_tiles = tiles < window_tile ? tiles : window_tile;
		skipped = window_tile - sink_tiles;
		begin = 0;
		end = (position + Traits::BLOCK_M - 1 < last ? position + Traits::BLOCK_M - 1
							     : last) /
			      Traits::BLOCK_N +
		      1 - skipped;
	}
	/* First key of the tile of a step. */
	__device__ int first_key(int step) const
	{
		return (step < sink_tiles ? step : step + skipped) * Traits::BLOCK_N;
	}
	/* Does the band of this block reach into the key tile? */
	__device__ bool in_band(const params_of<Traits> &p, int step) const
	{
		return Traits::HAS_BAND && p.band_window >= 0 &&
		       first_key(step) + Traits::BLOCK_N - 1 + p.band_window >= position;
	}
	/* A step at or before the band's first tile. */
	__device__ int band_begin(const params_of<Traits> &p) const
	{
		const int tile =
			position > p.band_window ? (position - p.band_window) / Traits::BLOCK_N : 0;

		return tile > skipped ? tile - skipped : 0;
	}
};

/* Issues the copies of BLOCK_N key biases from key j0; zero-fills where there is none. */
template <typename Traits>
static __device__ void load_bias(const params_of<Traits> &p, int head, int j0, uint32_t to)
{
	/* Any valid address: a zero-filling cp.async reads nothing. */
	const auto *none = (const typename Traits::real *)p.q.at;

	for (int n = threadIdx.x; n < Traits::BLOCK_N; n += Traits::THREADS) {
		const bool in_bounds = p.key_bias && j0 + n < p.S;
		const int64_t at = in_bounds ? p.bias_layout.at(head / p.H, head % p.H, j0 + n) : 0;

		cp_async_element(to + n * (int)sizeof(*none), in_bounds ? p.key_bias + at : none,
				 in_bounds);
	}
}

/* Issues the copies of one tile of K, V and bias. */
template <typename Traits, typename Smem>
static __device__ void load_key_tile(const params_of<Traits> &p,
				     const query_block_loop<Traits> &loop,
				     const gmem_operands_of<Traits> &keys, uint32_t start, int step)
{
	const uint32_t stage = Smem::stage(start, step);
	const typename Smem::stage_tiles to(stage);

	to.copy(keys, loop.first_key(step), loop.in_band(p, step));
	if (Traits::HAS_BIAS)
		load_bias<Traits>(p, loop.head, loop.first_key(step),
				  stage + Smem::stage_tiles::BYTES);
	cp_async_commit();
}

/* Turns s = QK^T of one key tile into scores: adds the terms and applies the causal mask. */
template <typename Traits, typename Smem>
static __device__ void
query_scores(const params_of<Traits> &p, const query_block_loop<Traits> &loop,
	     const score_terms_of<Traits> &t, const typename Smem::resident_tiles &resident,
	     const typename Smem::stage_tiles &keys, const typename Traits::real *bias, int step,
	     typename Traits::score_acc &s, typename Traits::cross_acc &cross)
{
	typedef typename Traits::real real;
	const int row = 16 * Traits::M_TILES * (int)(threadIdx.x / 32);
	const int i0 = loop.position + row, j0 = loop.first_key(step);
	const bool in_band = loop.in_band(p, step);

	clear(cross);
	if constexpr (Traits::HAS_BAND)
		if (in_band)
			product_nt(cross, resident.cross, row, keys.cross);
	apply_score_terms<Traits, true>(
		t, in_band, cross, [=](int, int, int c) { return bias[c]; }, i0 - j0, s);
	if (j0 + Traits::BLOCK_N - 1 > i0) /* the tile crosses the diagonal */
		each_number(s, [&](real &x, int, int, int, int r, int c) {
			x = j0 + c <= i0 + r ? x : -INFINITY;
		});
	if constexpr (Traits::HAS_TERMS)
		if (t.hides(i0 + 16 * Traits::M_TILES - 1, j0))
			each_number(s, [&](real &x, int, int, int, int r, int c) {
				x = t.sees(i0 + r, j0 + c) ? x : (real)HIDDEN_SCORE;
			});
}

/* Applies dropout to the tile of queries i0, i0 + 1, ... and keys j0, j0 + 1, ... */
template <typename Traits>
static __device__ __forceinline__ void apply_dropout(const params_of<Traits> &p, int head, int i0,
						     int j0, typename Traits::score_acc &s)
{
	const dropout_bits<Traits> k(
		p, head, [=](int r, int) { return i0 + r; }, [=](int, int c) { return j0 + c; });

	each_number(s, [&](typename Traits::real &x, int m, int n, int e, int, int) {
		x *= k.at(m, n, e);
	});
}

/*
 * Online softmax state of each row: the running maximum m of S, and the thread's share of
 * sum_j exp(S_ij - m).
 */
template <typename Traits> struct online_softmax {
	typename Traits::row_scalars row_max, row_sum;
};

/* Maximum of the thread's own elements of each row. */
template <typename Traits>
static __device__ __forceinline__ void thread_row_max(const typename Traits::score_acc &s,
						      typename Traits::row_scalars &local_max)
{
#pragma unroll
	for (int m = 0; m < Traits::M_TILES; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			typename Traits::real two[2] = { s[m][0][2 * half], s[m][0][2 * half + 1] };

#pragma unroll
			for (int n = 1; n < Traits::N_TILES; n++)
#pragma unroll
				for (int e = 0; e < 2; e++)
					two[e] = fmax(two[e], s[m][n][2 * half + e]);
			local_max[m][half] = fmax(two[0], two[1]);
		}
}

/* s becomes exp2(scale_log2 * (s - row_max)) and is added to row_sum. */
template <typename Traits>
static __device__ __forceinline__ void exponentiate(typename Traits::real scale_log2,
						    online_softmax<Traits> &softmax,
						    typename Traits::score_acc &s)
{
#pragma unroll
	for (int m = 0; m < Traits::M_TILES; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const typename Traits::real shift = softmax.row_max[m][half] * scale_log2;
			typename Traits::real sum[2] = { 0, 0 };

#pragma unroll
			for (int n = 0; n < Traits::N_TILES; n++)
#pragma unroll
				for (int e = 0; e < 2; e++) {
					typename Traits::real &x = s[m][n][2 * half + e];

					x = softmax_exp2<Traits>(x * scale_log2 - shift);
					sum[e] += x;
				}
			softmax.row_sum[m][half] += sum[0] + sum[1];
		}
}

/*
 * One online softmax step: updates row_max, rescales row_sum and exponentiates s. `rescale` returns
 * the factor exp2(old maximum - new maximum) for the accumulator of O.
 */
template <typename Traits>
static __device__ __forceinline__ void
online_softmax_step(typename Traits::real scale_log2, online_softmax<Traits> &softmax,
		    typename Traits::score_acc &s, typename Traits::row_scalars &rescale)
{
	typename Traits::row_scalars local_max;

	thread_row_max<Traits>(s, local_max);
#pragma unroll
	for (int m = 0; m < Traits::M_TILES; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const typename Traits::real previous = softmax.row_max[m][half];

			softmax.row_max[m][half] = fmax(previous, quad_max(local_max[m][half]));
			rescale[m][half] = softmax_exp2<Traits>(
				(previous - softmax.row_max[m][half]) * scale_log2);
			softmax.row_sum[m][half] *= rescale[m][half];
		}
	exponentiate<Traits>(scale_log2, softmax, s);
}

template <typename Traits>
static __device__ __forceinline__ void rescale_rows(const typename Traits::row_scalars &rescale,
						    typename Traits::v_acc &o)
{
	each_number(o, [&](typename Traits::real &x, int m, int, int e, int, int) {
		x *= rescale[m][e / 2];
	});
}

/* Outputs of the forward pass. */
template <typename P> struct forward_outputs {
	gmem_output<P> o;
	gmem_output<P> rounding_error; /* O - stored O; to.at is NULL if O is not rounded */
	typename P::real *lse;
};

/* Epilogue: writes O / row_sum, its rounding error, and lse. */
template <typename Traits>
static __device__ void
store_output(const params_of<Traits> &p, const query_block_loop<Traits> &loop,
	     typename Traits::real scale_log2, int row, const online_softmax<Traits> &softmax,
	     typename Traits::v_acc &o, const forward_outputs<typename Traits::P> &out)
{
	typedef typename Traits::real real;
	typename Traits::row_scalars factor;

#pragma unroll
	for (int m = 0; m < Traits::M_TILES; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const real sum = quad_sum(softmax.row_sum[m][half]);
			const int i = loop.first + row + 16 * m + fragment_row(2 * half);

			if (i < p.T && threadIdx.x % 4 == 0)
				out.lse[(int64_t)loop.head * p.T + i] =
					softmax.row_max[m][half] * scale_log2 * (real)LN_2 +
					log(sum);
			factor[m][half] = 1 / sum;
		}
	store_rows(out.o, out.o.rows(loop.head, p.H), loop.first + row, p.T, o, factor);
	if (!ROUNDS<typename Traits::P> || !out.rounding_error.to.at)
		return;
	each_number(o, [&](real &x, int m, int, int e, int, int) {
		x *= factor[m][e / 2];
		x -= as_stored(out.o.to.at, x);
	});
	fill(factor, (real)1);
	store_rows(out.rounding_error, out.rounding_error.rows(loop.head, p.H), loop.first + row,
		   p.T, o, factor);
}

template <typename Traits>
static __global__ void __launch_bounds__(Traits::THREADS, Traits::MIN_BLOCKS_PER_SM)
	flash_forward_kernel(struct replicas replicas,
			     const __grid_constant__ params_of<Traits> given_p,
			     const __grid_constant__ forward_outputs<typename Traits::P> given_out)
{
	const auto &p = replicas.own(given_p);
	const auto &out = replicas.own(given_out);
	typedef typename Traits::real real;
	typedef smem_layout<Traits, false> Smem;

	pdl_wait();
	char *shared = dynamic_smem();
	const uint32_t start = smem_address(shared);
	const query_block_loop<Traits> loop(p);
	const score_terms_of<Traits> t = make_score_terms(p, loop.head);
	const gmem_operands_of<Traits> keys = keys_of<Traits>(p, loop.head);
	const typename Smem::resident_tiles resident(start);
	const int row = 16 * Traits::M_TILES * (int)(threadIdx.x / 32);
	typename Traits::score_acc s;
	typename Traits::cross_acc cross;
	typename Traits::v_acc o;
	online_softmax<Traits> softmax;
	typename Traits::row_scalars rescale;

	if (!Traits::is_supported())
		return;
	clear(o);
	fill(softmax.row_max, (real)-INFINITY);
	fill(softmax.row_sum, (real)0);
	resident.copy(queries_of<Traits>(p, loop.head), loop.first, p.band_window >= 0);
	load_key_tile<Traits, Smem>(p, loop, keys, start, loop.begin);
	for (int step = loop.begin; step < loop.end; step++) {
		const typename Smem::stage_tiles stage(Smem::stage(start, step));

		cp_async_wait_block<Traits>();
		if (step + 1 < loop.end)
			load_key_tile<Traits, Smem>(p, loop, keys, start, step + 1);
		if (loop.first_key(step) >
		    loop.position + Traits::first_mma_row() + Traits::MMA_ROWS - 1)
			continue; /* the tile is fully masked for these rows */
		product_nt(s, resident.score, row, stage.score);
		query_scores<Traits, Smem>(p, loop, t, resident, stage, Smem::scalars(shared, step),
					   step, s, cross);
		online_softmax_step<Traits>(scale_log2_of<Traits>(t), softmax, s, rescale);
		rescale_rows<Traits>(rescale, o);
		if (Traits::HAS_TERMS && p.dropout.factor != 0)
			apply_dropout<Traits>(p, loop.head, loop.first + row, loop.first_key(step),
					      s);
		product_nn(o, s, stage.value);
	}
	store_output<Traits>(p, loop, scale_log2_of<Traits>(t), row, softmax, o, out);
}

#endif
