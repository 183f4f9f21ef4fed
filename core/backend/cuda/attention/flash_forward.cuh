/*
 * fused_attention - attention in one kernel per result: scores stay on the chip.
 * kernels/attention.cu has the formulas; names of inputs and gradients are the same.
 *
 *     forward    a block of queries, over the keys they see: o and lse by a running softmax
 *     d_queries  the same walk: dQ
 *     d_keys     a block of keys, over the queries that see them: dK, dV, dkey_bias
 *
 * Scores are made again in each, so no block adds to what another one writes: sums have one
 * order, and there are no atomics.  Where products are not rounded they take longer than memory:
 * then d_keys comes first and stores dS of as many heads as a buffer holds, and
 *
 *     given_d_queries  reads it in the walk of d_queries: dQ by one product instead of three
 *
 * The band has two more results,
 *
 *     dk_i += scale sum_j dC_ij q_j    the walk of d_queries, over the keys in the band
 *     dq_j += scale sum_i dC_ij k_i    the walk of d_keys, over the queries in the band
 *
 * The tokens whose block a kernel owns are rows of its products, those it walks over are columns.
 * A result of one product is a factor of the next one in registers (tiles.cuh).
 *
 * Factors are read where they are, or from copies [B,heads,tokens,width], which are rounded if they
 * are not kept as products read them, and filled up with zeros to a width that a kernel is made
 * for. Exponentials are powers of two: scores and lse are multiplied by log2(e) on the way.
 *
 * (T. Dao, "FlashAttention-2", 2023.)
 */
#ifndef CUDA_ATTENTION_FLASH_FORWARD_CUH
#define CUDA_ATTENTION_FLASH_FORWARD_CUH

#include <type_traits>

#include "core/backend/cuda/attention/query_rows.cuh"
#include "core/backend/cuda/primitives/wgmma_tile.cuh"

#define LN_2 0.6931471805599453

/* ------------------------------------------------------------- what kernels read */

/* Rows of a head in memory. */
template <typename F> struct rows {
	const F *at;
	int64_t pitch;
};

template <typename F>
static __device__ rows<F> rows_of(const head_matrix<const F *> &x, int head, int H)
{
	return { x.at + head / H * x.example + head % H / x.sharing * x.head, x.pitch };
}

/* One side of the products of a head: queries or keys.  Rows are tokens. */
template <typename F> struct side {
	rows<F> score, value;	    /* q and dO, or k and v */
	rows<F> cross;		    /* for the band: k of the queries' tokens, or q of the keys' */
	int score_vecs, value_vecs; /* of a row; the rest of a tile is 0 */
	int n;
	int cross_first, cross_n; /* row of cross that belongs to row 0, and how many there are */
};

template <typename P> struct problem {
	typedef typename P::real real;

	int H, T;
	int first_head, heads; /* that a launch is for, of all examples' */
	int past;	       /* position of the first query */
	int S;		       /* keys that are there: past + T */
	head_matrix<const typename P::factor *> q, k, v, d_o, recent;
	int score_vecs, value_vecs; /* of their rows: up to the widths of a shape */
	int recent_first, recent_n;
	real scale;
	const real *key_bias; /* or NULL */
	struct heads bias_layout;
	bool alibi;
	int band_window;
	real constant_band;
	const real *learned_band; /* or NULL */
	struct dropout_mask mask;
	int padded;		  /* queries, in whole blocks */
	const real *lse2, *delta; /* [B,H,padded], lse in powers of two; backward */
	int together = 1; /* heads that share keys and whose dK one block sums up; backward */
	real *ds;	  /* [heads,padded,padded], a row for each query, or NULL: not stored */

	__device__ real band() const
	{
		return learned_band ? *learned_band : constant_band;
	}
	/* dS of query i and key j */
	__device__ real *d_scores_at(int head, int i, int j) const
	{
		return ds + ((int64_t)(head - first_head) * padded + i) * padded + j;
	}
};

/* ---------------------------------------------------------------------- shapes */

/*
 * Widths of scores and values, fragments of 16 rows per warp, warps, columns of a step, and how
 * many blocks share a multiprocessor.  BIASED: keys may have a bias; MORE: and there may be alibi
 * or dropout; BANDED: and the reciprocal term.  WGMMA: four warps multiply together, rows of 16
 * each. STAGES: of shared memory, for what a block walks over.
 */
template <typename P_, int KW_, int DW_, int ROWS_, int WARPS_, int STEP_, int BLOCKS_, bool MORE_,
	  bool BANDED_, bool WGMMA_ = false, int STAGES_ = 2, bool BIASED_ = false>
struct shape {
	typedef P_ P;
	typedef typename P::real real;
	typedef typename P::factor factor;

	static constexpr int KW = KW_, DW = DW_, ROWS = ROWS_, WARPS = WARPS_, STEP = STEP_;
	static constexpr int BLOCKS = BLOCKS_, STAGES = STAGES_;
	static constexpr bool MORE = MORE_ || BANDED_, BANDED = BANDED_, WGMMA = WGMMA_;
	static constexpr bool BIASED = BIASED_ || MORE;
	static constexpr int THREADS = 32 * WARPS, OWN = 16 * ROWS * WARPS, COLUMNS = STEP / 8;

	/* Results in registers: scores, the cross term, sums of score factors and of values. */
	typedef fragments<real, ROWS, COLUMNS> scores;
	typedef fragments<real, ROWS, BANDED ? COLUMNS : 1> crosses;
	typedef fragments<real, ROWS, KW / 8> score_sums;
	typedef fragments<real, ROWS, DW / 8> value_sums;
	typedef real row_numbers[ROWS][2]; /* of the thread's rows */

	/* W numbers of N rows in shared memory. */
	template <int W, int N>
	using stored = std::conditional_t<WGMMA, swizzled_tile<W, N>, tile<factor, W>>;

	/* Bytes of shared memory, so that what follows may be stored, too. */
	static constexpr int aligned(int bytes)
	{
		return WGMMA ? (bytes + SWIZZLE_ALIGNMENT - 1) / SWIZZLE_ALIGNMENT *
				       SWIZZLE_ALIGNMENT
			     : bytes;
	}

	/* Kernels of other GPUs stay empty. */
	static __device__ __forceinline__ bool runs()
	{
		return !WGMMA || HAS_WGMMA;
	}

	/* What is multiplied together: the rows of a warp, or of a group of warps. */
	static constexpr int TOGETHER = WGMMA ? 64 : 16 * ROWS;

	static __device__ __forceinline__ int first_together()
	{
		return WGMMA ? warpgroup() * 64 : 16 * ROWS * (int)(threadIdx.x / 32);
	}
};

template <typename X> using problem_of = problem<typename X::P>;
template <typename X> using side_of = side<typename X::factor>;

template <typename X> static __device__ side_of<X> queries_of(const problem_of<X> &p, int head)
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

template <typename X> static __device__ side_of<X> keys_of(const problem_of<X> &p, int head)
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

/* --------------------------------------------------------------- shared memory */

/* The tiles of one side in shared memory. */
template <typename X, int N, bool VALUE> struct tiles {
	typedef typename X::factor factor;

	typename X::template stored<X::KW, N> score, cross;
	typename X::template stored<X::DW, N> value;

	static constexpr int SCORE = N * X::KW * (int)sizeof(factor), CROSS = X::BANDED ? SCORE : 0;
	static constexpr int BYTES = SCORE + CROSS + (VALUE ? N * X::DW * (int)sizeof(factor) : 0);

	__device__ explicit tiles(uint32_t at)
	{
		score.at = at;
		cross.at = at + SCORE;
		value.at = at + SCORE + CROSS;
	}
	__device__ void copy_score(const side<factor> &from, int first) const
	{
		copy_tile<N, X::THREADS>(score, from.score.at, from.score.pitch, from.score_vecs,
					 first, from.n);
	}
	/* Begin to copy N rows from row `first` on. */
	__device__ void copy(const side<factor> &from, int first, bool in_band) const
	{
		copy_score(from, first);
		if (VALUE)
			copy_tile<N, X::THREADS>(value, from.value.at, from.value.pitch,
						 from.value_vecs, first, from.n);
		if (X::BANDED && in_band)
			copy_tile<N, X::THREADS>(cross, from.cross.at, from.cross.pitch,
						 from.score_vecs, first + from.cross_first,
						 from.cross_n);
	}
};

/* Two numbers of each column: the bias of a key, or lse and delta of a query. */
#define COLUMN_NUMBERS 2

/* Shared memory: what the block owns, then the stages of what it walks over. */
template <typename X, bool OWN_VALUE> struct memory {
	typedef tiles<X, X::OWN, OWN_VALUE> own_tiles;
	typedef tiles<X, X::STEP, true> step_tiles;

	/* Forward has none but the bias. */
	static constexpr bool HAS_NUMBERS = OWN_VALUE || X::BIASED;
	static constexpr int NUMBERS =
		HAS_NUMBERS ? COLUMN_NUMBERS * X::STEP * (int)sizeof(typename X::real) : 0;
	static constexpr int STAGE = X::aligned(step_tiles::BYTES + NUMBERS);
	static constexpr int BYTES = own_tiles::BYTES + X::STAGES * STAGE;

	static __device__ uint32_t stage(uint32_t start, int step)
	{
		return start + own_tiles::BYTES + step % X::STAGES * STAGE;
	}
	static __device__ const typename X::real *numbers(const char *start, int step)
	{
		return (const typename X::real *)(start + own_tiles::BYTES +
						  step % X::STAGES * STAGE + step_tiles::BYTES);
	}
};

/* Until all threads' copies are there. */
template <typename X> static __device__ __forceinline__ void cp_async_arrive()
{
	cp_async_wait<0>();
	if (X::WGMMA)
		fence_proxy_async();
	__syncthreads();
}

/* ---------------------------------------------------------------------- scores */

/* The terms of one head, in powers of two; and what a bias is multiplied by where a score is the
 * bare product. */
template <typename R> struct terms {
	R scale, slope, band, per_scale;
	int window;
};

template <typename X> using terms_with = terms<typename X::real>;

/*
 * Without other terms a score stays the bare product, with the bias, until its power is taken:
 * there the scale, which is then positive, costs nothing.
 */
template <typename X>
static __device__ __forceinline__ typename X::real unit_of(const terms_with<X> &t)
{
	return X::MORE ? 1 : t.scale;
}

template <typename P>
static __device__ terms<typename P::real> terms_of(const problem<P> &p, int head)
{
	typedef typename P::real real;
	const real scale = p.scale * (real)M_LOG2E;

	return { scale, p.alibi ? (real)(alibi_slope(head % p.H, p.H) * M_LOG2E) : 0,
		 p.band_window >= 0 ? p.band() * scale : 0, 1 / p.scale, p.band_window };
}

/* 2 to the power x.  bfloat16 asks for less. */
template <typename X> static __device__ __forceinline__ double power_of_two(double x)
{
	return exp2(x);
}

template <typename X> static __device__ __forceinline__ float power_of_two(float x)
{
	return sizeof(typename X::factor) == sizeof(float) ? exp2f(x) : ex2_approx(x);
}

/*
 * Products become scores, in units of unit_of().  bias(m, e, c) is the bias of the key,
 * distance(r, c) that of the query from it; `cross` is read inside the band only.  There is a
 * loop for each term: what a head does not have costs nothing.
 */
template <typename X, typename Bias, typename Distance>
static __device__ __forceinline__ void finish_scores(const terms_with<X> &t, bool in_band,
						     const typename X::crosses &cross, Bias bias,
						     Distance distance, typename X::scores &s)
{
	typedef typename X::real real;

	if constexpr (X::MORE) {
		each_number(s, [&](real &x, int m, int, int e, int, int c) {
			x = x * t.scale + bias(m, e, c) * (real)M_LOG2E;
		});
		if (t.slope != 0)
			each_number(s, [&](real &x, int, int, int, int r, int c) {
				x -= t.slope * (real)distance(r, c);
			});
	} else if constexpr (X::BIASED) {
		each_number(s, [&](real &x, int m, int, int e, int, int c) {
			x += bias(m, e, c) * t.per_scale;
		});
	}
	if constexpr (X::BANDED)
		if (in_band)
			each_number(s, [&](real &x, int m, int n, int e, int r, int c) {
				x += distance(r, c) <= t.window ? t.band * cross[m][n][e] : 0;
			});
}

/*
 * What dropout makes of the thread's probabilities: 0, or more.  query(r, c) and key(r, c) say
 * whose they are.  A bit for each number is found in a loop, so that kernels stay short.
 */
template <typename X> struct kept {
	uint64_t bits;
	typename X::real factor;

	template <typename Query, typename Key>
	__device__ __forceinline__ kept(const problem_of<X> &p, int head, Query query, Key key)
	    : bits(0), factor((typename X::real)p.mask.factor)
	{
		static_assert(4 * X::ROWS * X::COLUMNS <= 64, "a bit for each number");
#pragma unroll 1
		for (int k = 0; k < X::ROWS * X::COLUMNS; k++)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const int r = 16 * (k / X::COLUMNS) + fragment_row(e);
				const int c = 8 * (k % X::COLUMNS) + fragment_column(e);
				const int64_t row = (int64_t)head * p.T + query(r, c);
				const bool stays =
					p.mask.at((uint64_t)(row * p.T + key(r, c))) != 0;

				bits |= (uint64_t)stays << (4 * k + e);
			}
	}
	__device__ __forceinline__ typename X::real at(int m, int n, int e) const
	{
		return bits >> (4 * (m * X::COLUMNS + n) + e) & 1 ? factor : 0;
	}
};

/* The sum over the four threads that hold a row, and the largest. */
template <typename R> static __device__ __forceinline__ R row_sum(R x)
{
	x += __shfl_xor_sync(0xffffffffu, x, 1);
	return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <typename R> static __device__ __forceinline__ R row_largest(R x)
{
	x = fmax(x, __shfl_xor_sync(0xffffffffu, x, 1));
	return fmax(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* --------------------------------------------------------------------- results */

/* Rows of a head in a tensor or buffer; without memory they are not wanted. */
template <typename P> struct target {
	head_matrix<output_view<P>> to;
	int width;
	bool add, in_pairs,
		is_vectorized; /* two neighbours may be written at once; 16 bytes of bfloat16 may */

	__device__ output_view<P> rows(int head, int H) const
	{
		return to.at + (head / H * to.example + head % H / to.sharing * to.head);
	}
};

template <typename P>
static target<P> target_of(head_matrix<output_view<P>> to, int64_t width, bool add)
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

/* The numbers of a row, in pairs: = factor x */
template <typename P, int COLUMNS>
static __device__ __forceinline__ void put_pairs(const output_view<P> &to,
						 const typename P::real (&x)[COLUMNS][4], int half,
						 typename P::real factor)
{
#pragma unroll
	for (int c = 0; c < COLUMNS; c++)
		write_pair(to + result_column<typename P::factor>(c), x[c][2 * half] * factor,
			   x[c][2 * half + 1] * factor);
}

/* Of four threads, each with four words: word k of thread i becomes word i of thread k. */
static __device__ __forceinline__ void transpose_words(uint32_t (&word)[4])
{
#pragma unroll
	for (int step = 1; step < 4; step *= 2)
#pragma unroll
		for (int k = 0; k < 4; k++) {
			uint32_t &near = word[k], &far = word[k | step];
			const bool upper = threadIdx.x & step;

			if (k & step)
				continue;
			const uint32_t given =
				__shfl_xor_sync(0xffffffffu, upper ? near : far, step);

			near = upper ? given : near;
			far = upper ? far : given;
		}
}

/* The numbers of a row in bfloat16, 16 bytes at once: its four threads exchange theirs.  All
 * threads call it. */
template <typename F, int COLUMNS>
static __device__ __forceinline__ void put_vecs(F *to, const float (&x)[COLUMNS][4], int half,
						float factor, bool wanted)
{
#pragma unroll
	for (int c = 0; c < COLUMNS; c += 4) {
		uint32_t word[4];

#pragma unroll
		for (int k = 0; k < 4; k++)
			word[k] = pack_bf16x2(x[c + k][2 * half] * factor,
					      x[c + k][2 * half + 1] * factor);
		transpose_words(word);
		if (wanted)
			st_global_vec16(to + 8 * (c + (int)threadIdx.x % 4),
					{ word[0], word[1], word[2], word[3] });
	}
}

/* Rows first .. of the head, of which there are n: = factor x, or += factor x. */
template <typename P, int ROWS, int COLUMNS>
static __device__ void put_rows(const target<P> &t, const output_view<P> &rows, int first, int n,
				const typename P::real (&x)[ROWS][COLUMNS][4],
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
					put_vecs((typename P::factor *)to.at, x[m], half,
						 factor[m][half], row < n);
					continue;
				}
			if (row >= n)
				continue;
			if (t.in_pairs && !t.add && t.width == 8 * COLUMNS) {
				put_pairs(to, x[m], half, factor[m][half]);
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
				if (t.in_pairs && left > 0) {
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
 * Which block of which head is this one's, of `blocks` for each head, the longest numbered first.
 * Blocks begin in this order, so the longest of some heads come first and short ones end the
 * kernel; of some, not of all, so that the L2 cache holds what they walk over.  The last turn has
 * the rest, too.
 */
#define HEADS_PER_WAVE 32

struct tile_order {
	int head, number;

	__device__ explicit tile_order(int blocks)
	{
		const int heads = (int)gridDim.x / blocks;
		const int last = heads < HEADS_PER_WAVE ? 0 : heads / HEADS_PER_WAVE - 1;
		const int mine = (int)blockIdx.x / (HEADS_PER_WAVE * blocks);
		const int first = (mine < last ? mine : last) * HEADS_PER_WAVE;
		const int n = mine < last ? HEADS_PER_WAVE : heads - first;
		const int at = (int)blockIdx.x - first * blocks;

		head = first + at % n;
		number = at / n;
	}
};

/* The walk of a block of queries over keys: which block, and which steps. */
template <typename X> struct query_walk {
	int head, first; /* query */
	int position;	 /* of the first query */
	int begin, end;	 /* steps */

	__device__ explicit query_walk(const problem_of<X> &p)
	{
		const int blocks = (p.T + X::OWN - 1) / X::OWN;
		const int last = p.past + p.T - 1;
		const struct tile_order tile_order(blocks);

		head = p.first_head + tile_order.head;
		first = (blocks - 1 - tile_order.number) * X::OWN;
		position = p.past + first;
		begin = 0;
		end = (position + X::OWN - 1 < last ? position + X::OWN - 1 : last) / X::STEP + 1;
	}
	/* Is a key of this step in the band of the block? */
	__device__ bool in_band(const problem_of<X> &p, int step) const
	{
		return X::BANDED && p.band_window >= 0 &&
		       (step + 1) * X::STEP - 1 + p.band_window >= position;
	}
	__device__ int band_begin(const problem_of<X> &p) const
	{
		return position > p.band_window ? (position - p.band_window) / X::STEP : 0;
	}
};

/* Begin to copy the bias of STEP keys of a head from key j0 on; without one it is 0. */
template <typename X>
static __device__ void copy_bias(const problem_of<X> &p, int head, int j0, uint32_t to)
{
	const auto *none = (const typename X::real *)p.q.at; /* an address that may be named */

	for (int n = threadIdx.x; n < X::STEP; n += X::THREADS) {
		const bool wanted = p.key_bias && j0 + n < p.S;
		const int64_t at = wanted ? p.bias_layout.at(head / p.H, head % p.H, j0 + n) : 0;

		cp_async_element(to + n * (int)sizeof(*none), wanted ? p.key_bias + at : none,
				 wanted);
	}
}

/* Begin to copy the keys of a step, and their bias. */
template <typename X, typename M>
static __device__ void copy_keys(const problem_of<X> &p, const query_walk<X> &w,
				 const side_of<X> &keys, uint32_t start, int step)
{
	const uint32_t stage = M::stage(start, step);
	const typename M::step_tiles to(stage);

	to.copy(keys, step * X::STEP, w.in_band(p, step));
	if (X::BIASED)
		copy_bias<X>(p, w.head, step * X::STEP, stage + M::step_tiles::BYTES);
	cp_async_commit();
}

/* Products s of the warp's queries with the keys of a step become scores. */
template <typename X, typename M>
static __device__ void query_scores(const problem_of<X> &p, const query_walk<X> &w,
				    const terms_with<X> &t, const typename M::own_tiles &own,
				    const typename M::step_tiles &keys,
				    const typename X::real *bias, int step, typename X::scores &s,
				    typename X::crosses &cross)
{
	typedef typename X::real real;
	const int row = 16 * X::ROWS * (int)(threadIdx.x / 32);
	const int i0 = w.position + row, j0 = step * X::STEP;
	const bool in_band = w.in_band(p, step);

	clear(cross);
	if constexpr (X::BANDED)
		if (in_band)
			product_nt(cross, own.cross, row, keys.cross);
	finish_scores<X>(
		t, in_band, cross, [=](int, int, int c) { return bias[c]; },
		[=](int r, int c) { return i0 + r - j0 - c; }, s);
	if (j0 + X::STEP - 1 > i0) /* some keys come after some queries */
		each_number(s, [&](real &x, int, int, int, int r, int c) {
			x = j0 + c <= i0 + r ? x : -INFINITY;
		});
}

/* Dropout of the numbers of queries i0 .. as rows and keys j0 .. as columns. */
template <typename X>
static __device__ __forceinline__ void drop(const problem_of<X> &p, int head, int i0, int j0,
					    typename X::scores &s)
{
	const kept<X> k(
		p, head, [=](int r, int) { return i0 + r; }, [=](int, int c) { return j0 + c; });

	each_number(
		s, [&](typename X::real &x, int m, int n, int e, int, int) { x *= k.at(m, n, e); });
}

/* The largest score and the sum of the powers of each of the thread's rows so far. */
template <typename X> struct running {
	typename X::row_numbers largest, sum;
};

/* The largest of the numbers that the thread has of each row. */
template <typename X>
static __device__ __forceinline__ void largest_of_thread(const typename X::scores &s,
							 typename X::row_numbers &most)
{
#pragma unroll
	for (int m = 0; m < X::ROWS; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			typename X::real two[2] = { s[m][0][2 * half], s[m][0][2 * half + 1] };

#pragma unroll
			for (int n = 1; n < X::COLUMNS; n++)
#pragma unroll
				for (int e = 0; e < 2; e++)
					two[e] = fmax(two[e], s[m][n][2 * half + e]);
			most[m][half] = fmax(two[0], two[1]);
		}
}

/* Scores become powers relative to r.largest, and are added to r.sum. */
template <typename X>
static __device__ __forceinline__ void add_powers(typename X::real unit, running<X> &r,
						  typename X::scores &s)
{
#pragma unroll
	for (int m = 0; m < X::ROWS; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const typename X::real shift = r.largest[m][half] * unit;
			typename X::real sum[2] = { 0, 0 };

#pragma unroll
			for (int n = 0; n < X::COLUMNS; n++)
#pragma unroll
				for (int e = 0; e < 2; e++) {
					typename X::real &x = s[m][n][2 * half + e];

					x = power_of_two<X>(x * unit - shift);
					sum[e] += x;
				}
			r.sum[m][half] += sum[0] + sum[1];
		}
}

/* The same relative to the new largest; sums before it are to be shrunk so much. */
template <typename X>
static __device__ __forceinline__ void take_powers(typename X::real unit, running<X> &r,
						   typename X::scores &s,
						   typename X::row_numbers &shrink)
{
	typename X::row_numbers most;

	largest_of_thread<X>(s, most);
#pragma unroll
	for (int m = 0; m < X::ROWS; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const typename X::real before = r.largest[m][half];

			r.largest[m][half] = fmax(before, row_largest(most[m][half]));
			shrink[m][half] = power_of_two<X>((before - r.largest[m][half]) * unit);
			r.sum[m][half] *= shrink[m][half];
		}
	add_powers<X>(unit, r, s);
}

template <typename X>
static __device__ __forceinline__ void shrink_rows(const typename X::row_numbers &shrink,
						   typename X::value_sums &o)
{
	each_number(o, [&](typename X::real &x, int m, int, int e, int, int) {
		x *= shrink[m][e / 2];
	});
}

/* What the forward pass writes. */
template <typename P> struct attention_results {
	target<P> o, lost; /* lost.to.at: NULL where o is not rounded */
	typename P::real *lse;
};

/* Into memory: o / sum, and the log-sum-exp. */
template <typename X>
static __device__ void put_forward(const problem_of<X> &p, const query_walk<X> &w,
				   typename X::real unit, int row, const running<X> &r,
				   typename X::value_sums &o,
				   const attention_results<typename X::P> &out)
{
	typedef typename X::real real;
	typename X::row_numbers factor;

#pragma unroll
	for (int m = 0; m < X::ROWS; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const real sum = row_sum(r.sum[m][half]);
			const int i = w.first + row + 16 * m + fragment_row(2 * half);

			if (i < p.T && threadIdx.x % 4 == 0)
				out.lse[(int64_t)w.head * p.T + i] =
					r.largest[m][half] * unit * (real)LN_2 + log(sum);
			factor[m][half] = 1 / sum;
		}
	put_rows(out.o, out.o.rows(w.head, p.H), w.first + row, p.T, o, factor);
	if (!ROUNDS<typename X::P> || !out.lost.to.at)
		return;
	each_number(o, [&](real &x, int m, int, int e, int, int) {
		x *= factor[m][e / 2];
		x -= as_stored(out.o.to.at, x);
	});
	fill(factor, (real)1);
	put_rows(out.lost, out.lost.rows(w.head, p.H), w.first + row, p.T, o, factor);
}

template <typename X>
static __global__ void __launch_bounds__(X::THREADS, X::BLOCKS)
	flash_forward_kernel(const __grid_constant__ problem_of<X> p,
			     const __grid_constant__ attention_results<typename X::P> out)
{
	typedef typename X::real real;
	typedef memory<X, false> M;

	pdl_wait();
	char *shared = dynamic_smem();
	const uint32_t start = smem_address(shared);
	const query_walk<X> w(p);
	const terms_with<X> t = terms_of(p, w.head);
	const side_of<X> keys = keys_of<X>(p, w.head);
	const typename M::own_tiles own(start);
	const int row = 16 * X::ROWS * (int)(threadIdx.x / 32);
	typename X::scores s;
	typename X::crosses cross;
	typename X::value_sums o;
	running<X> r;
	typename X::row_numbers shrink;

	if (!X::runs())
		return;
	clear(o);
	fill(r.largest, (real)-INFINITY);
	fill(r.sum, (real)0);
	own.copy(queries_of<X>(p, w.head), w.first, p.band_window >= 0);
	copy_keys<X, M>(p, w, keys, start, w.begin);
	for (int step = w.begin; step < w.end; step++) {
		const typename M::step_tiles at(M::stage(start, step));

		cp_async_arrive<X>();
		if (step + 1 < w.end)
			copy_keys<X, M>(p, w, keys, start, step + 1);
		if (step * X::STEP > w.position + X::first_together() + X::TOGETHER - 1)
			continue; /* none of these queries sees these keys */
		product_nt(s, own.score, row, at.score);
		query_scores<X, M>(p, w, t, own, at, M::numbers(shared, step), step, s, cross);
		take_powers<X>(unit_of<X>(t), r, s, shrink);
		shrink_rows<X>(shrink, o);
		if (X::MORE && p.mask.factor != 0)
			drop<X>(p, w.head, w.first + row, step * X::STEP, s);
		product_nn(o, s, at.value);
	}
	put_forward<X>(p, w, unit_of<X>(t), row, r, o, out);
}

#endif
