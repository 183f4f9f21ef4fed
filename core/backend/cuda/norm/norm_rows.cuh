/*
 * A row of a norm in the registers of a warp or a block.
 *
 * A row is read once, kept in registers, and reduced by shuffles, so that memory bandwidth is the
 * only bound.  A row that does not fit passes in chunks and is read again for each use.
 */
#ifndef CUDA_NORM_NORM_ROWS_CUH
#define CUDA_NORM_NORM_ROWS_CUH

#include "core/backend/cuda/primitives/packed_load.cuh"
#include "core/backend/cuda/norm/norm.cuh"

/*
 * TEAM threads, half a warp, a warp or a block, process a row.  Each keeps K vectors of N elements
 * in registers, N * TEAM elements apart: a chunk.  A LONG row has several chunks.  STREAM is the
 * storage type of x, s and their gradients.
 */
template <int N_, int K_, int TEAM_, bool LONG_, vec_kind STREAM_> struct row_shape {
	static constexpr int N = N_, K = K_, TEAM = TEAM_;
	static constexpr bool LONG = LONG_;
	static constexpr enum vec_kind STREAM = STREAM_;
	static constexpr int STEP = N * TEAM, CHUNK = K * STEP, TEAMS = BLOCK / TEAM;
};

#define ROW_VEC 4

template <typename R> static constexpr int MAX_VECS = 32 / (int)sizeof(R);

/*
 * Calls use(shape) with the shape for `rows` rows of `width` elements, if all rows are aligned to
 * 16 bytes.  Two short rows share a warp if no row is left alone, as shuffles need whole warps.
 */
template <typename R, enum vec_kind STREAM, typename F>
static void with_aligned_shape(int64_t rows, int64_t width, F use)
{
	constexpr int MAX = MAX_VECS<R>, FEW = 2, SOME = MAX < 6 ? MAX : 6;

	if (width <= ROW_VEC * WARP / 2 && rows % 2 == 0)
		use(row_shape<ROW_VEC, 1, WARP / 2, false, STREAM>());
	else if (width <= ROW_VEC * WARP * FEW)
		use(row_shape<ROW_VEC, FEW, WARP, false, STREAM>());
	else if (width <= ROW_VEC * WARP * SOME)
		use(row_shape<ROW_VEC, SOME, WARP, false, STREAM>());
	else if (width <= ROW_VEC * WARP * MAX)
		use(row_shape<ROW_VEC, MAX, WARP, false, STREAM>());
	else if (width <= ROW_VEC * BLOCK * FEW)
		use(row_shape<ROW_VEC, FEW, BLOCK, false, STREAM>());
	else
		use(row_shape<ROW_VEC, FEW, BLOCK, true, STREAM>());
}

/* The same, for rows that need not be aligned. */
template <typename P, typename F>
static void with_shape(int64_t rows, int64_t width, bool aligned, enum vec_kind stream, F use)
{
	typedef typename P::real real;
	constexpr int MAX = MAX_VECS<real>;
	const bool known = aligned && stream != VEC_OF_ANY;

	if (!known && width <= WARP * MAX)
		use(row_shape<1, MAX, WARP, false, VEC_OF_ANY>());
	else if (!known)
		use(row_shape<1, MAX, BLOCK, true, VEC_OF_ANY>());
	else if (ROUNDS<P> && stream == VEC_OF_BF16)
		with_aligned_shape<real, ROUNDS<P> ? VEC_OF_BF16 : VEC_OF_REAL>(rows, width, use);
	else
		with_aligned_shape<real, VEC_OF_REAL>(rows, width, use);
}

/* f(first column) for every chunk of a row. */
template <typename S, typename F> static __device__ void each_chunk(int width, F f)
{
	if constexpr (S::LONG)
		for (int chunk = 0; chunk < width; chunk += S::CHUNK)
			f(chunk);
	else
		f(0);
}

/*
 * Are all rows aligned to 16 bytes?  `width` is a row's width, or the bitwise or of several widths
 * and pitches.
 */
template <typename... Pointers> static bool all_aligned(int64_t width, Pointers... pointers)
{
	return width % ROW_VEC == 0 && (((uintptr_t)pointers | ...) % 16) == 0;
}

/* A thread's elements of a chunk. */
template <typename R, typename S> struct row_slice {
	vec<R, S::N> of[S::K];
};

/*
 * A thread's part of a chunk: the index of its first vector in the tensor, and the elements of the
 * row from there on.
 */
struct row_place {
	int64_t first;
	int left;
};

template <typename S>
static __device__ struct row_place place_of(int64_t row, int width, int chunk, int pitch)
{
	const int column = chunk + (int)(threadIdx.x % S::TEAM) * S::N;

	return { row * pitch + column, width - column };
}

template <typename S> static __device__ struct row_place place_of(int64_t row, int width, int chunk)
{
	return place_of<S>(row, width, chunk, width);
}

/* f(k, i) for element i of every vector k. */
template <typename S, typename F> static __device__ void each_number(F f)
{
#pragma unroll
	for (int k = 0; k < S::K; k++)
#pragma unroll
		for (int i = 0; i < S::N; i++)
			f(k, i);
}

/* Loads the thread's elements; those beyond the row are 0. */
template <typename R, typename S, typename T>
static __device__ void load_as(row_slice<R, S> &x, const T *from, struct row_place at)
{
#pragma unroll
	for (int k = 0; k < S::K; k++) {
		x.of[k] = {};
		if (k * S::STEP < at.left)
			x.of[k] = load_vec<T, R, S::N, true>(from + at.first + k * S::STEP);
	}
}

template <typename R, typename S, typename T>
static __device__ void store_as(T *to, const row_slice<R, S> &x, struct row_place at)
{
#pragma unroll
	for (int k = 0; k < S::K; k++)
		if (k * S::STEP < at.left)
			store_vec<true>(to + at.first + k * S::STEP, x.of[k]);
}

/* One branch on the type for all vectors, so that their loads overlap. */
template <typename P, typename R, typename S>
static __device__ void load(row_slice<R, S> &x, input_view<P> from, struct row_place at)
{
	if (ROUNDS<P> && from.bf16_storage)
		load_as(x, (const typename P::factor *)from.at, at);
	else
		load_as(x, (const R *)from.at, at);
}

/* The storage type of the residual stream, if STREAM is known. */
template <typename P, enum vec_kind STREAM>
using stream_type = std::conditional_t<STREAM == VEC_OF_BF16, typename P::factor, typename P::real>;

/* The value that a later read of `to` returns after x was stored. */
template <typename P, enum vec_kind STREAM>
static __device__ typename P::real as_stream(output_view<P> to, typename P::real x)
{
	return STREAM == VEC_OF_ANY ? as_stored(to, x)
				    : (typename P::real)(stream_type<P, STREAM>)x;
}

template <typename P, typename R, typename S>
static __device__ void load_stream(row_slice<R, S> &x, input_view<P> from, struct row_place at)
{
	if constexpr (S::STREAM == VEC_OF_ANY)
		load<P>(x, from, at);
	else
		load_as(x, (const stream_type<P, S::STREAM> *)from.at, at);
}

template <typename P, typename R, typename S>
static __device__ void store(output_view<P> to, const row_slice<R, S> &x, struct row_place at)
{
	if (ROUNDS<P> && to.bf16_storage)
		store_as((typename P::factor *)to.at, x, at);
	else
		store_as((R *)to.at, x, at);
}

template <typename P, typename R, typename S>
static __device__ void store_stream(output_view<P> to, const row_slice<R, S> &x,
				    struct row_place at)
{
	if constexpr (S::STREAM == VEC_OF_ANY)
		store<P>(to, x, at);
	else
		store_as((stream_type<P, S::STREAM> *)to.at, x, at);
}

template <typename P, typename R, typename S>
static __device__ void put(gradient_view<P> to, const row_slice<R, S> &x, struct row_place at)
{
	if (to && to.add) {
		row_slice<R, S> sum;

		load<P>(sum, to.to, at);
		each_number<S>([&](int k, int i) { sum.of[k][i] += x.of[k][i]; });
		store<P>(to.to, sum, at);
	} else if (to) {
		store<P>(to.to, x, at);
	}
}

/* Blocks per SM that the registers of row_slice allow.  More blocks keep more loads in flight. */
template <typename R, typename S>
static constexpr int RESIDENT = sizeof(row_slice<R, S>) <= 96 ? 4 : 3;

template <typename S, typename R> static __device__ R team_sum(R value)
{
	if constexpr (S::TEAM <= WARP)
		return warp_sum<S::TEAM>(value);
	else
		return block_sum(value);
}

/* ------------------------------------------------------------------ gradients */

template <typename P> struct norm_gradients {
	input_view<P> dy, ds; /* ds: gradient that reaches s directly */
	gradient_view<P> dx, dresidual;
	/* [parts, columns]: partial sums of dw, then of db; columns 0: neither is needed */
	typename P::real *partial;
	int64_t columns;
};

/*
 * Blocks of the backward pass, each with partial sums of dw and db.  Their number depends only on
 * the shape and the GPU, which runs so many at a time; replicas fill it together.
 */
#define NORM_BLOCKS_PER_SM 4
#define MAX_BLOCKS_PER_SM (2 * NORM_BLOCKS_PER_SM) /* for small blocks */
#define REPLICA_SMS 8				   /* multiprocessors for one of many replicas */

static int64_t norm_parts(int sms, int64_t rows, int64_t teams, int per_sm)
{
	const int64_t max = (rows + teams - 1) / teams;
	const int64_t resident = (int64_t)per_sm * (REPLICA_FORM ? REPLICA_SMS : sms);

	return max < resident ? max : resident;
}

#endif
