/*
 * pieces - sums over the tokens of an example x [T,C], cut into pieces, so that enough threads
 * work.
 *
 * A thread takes one piece of some neighbouring channels.  The order of a sum depends on the shape
 * alone.
 */
#ifndef CUDA_PRIMITIVES_TOKEN_BLOCKS_CUH
#define CUDA_PRIMITIVES_TOKEN_BLOCKS_CUH

#include "core/backend/cuda/primitives/packed_load.cuh"
#include "core/backend/cuda/primitives/fast_divide.cuh"

#define PIECE_TOKENS 32
static constexpr int PIECE_READS = 4; /* tokens that a thread reads at a time */

struct pieces {
	int64_t B, T, C, n; /* n pieces of each example */
	int64_t from_pitch,
		to_pitch; /* how far tokens are apart where they are read, and written */
};

static inline struct pieces pieces_of(int64_t B, int64_t T, int64_t C)
{
	return { B, T, C, (T + PIECE_TOKENS - 1) / PIECE_TOKENS, C, C };
}

/* A number for each piece and channel, [B,n,C]. */
template <typename R> static R *take_pieces(struct space *m, const struct pieces &p)
{
	return m->take<R>(p.B * p.n * p.C);
}

/* What thread i takes, if threads take N channels. */
struct piece {
	int64_t first, last; /* tokens */
	int64_t at;	     /* in [B,n,C] */
	int64_t from, to;    /* its channels of token 0 in [B,T,C]: where it is read, and written */
	int64_t channel;     /* in [B,C] */
};

template <int N> struct piece_places {
	struct pieces p;
	int64_t count;
	struct divisor per_row, per_example;

	__device__ struct piece operator[](int64_t i) const
	{
		const int64_t row = per_row.quotient(i), b = per_example.quotient(row);
		const int64_t channel = (i - row * per_row.d) * N,
			      first = (row - b * p.n) * PIECE_TOKENS;

		return { first,
			 first + PIECE_TOKENS < p.T ? first + PIECE_TOKENS : p.T,
			 row * p.C + channel,
			 b * p.T * p.from_pitch + channel,
			 b * p.T * p.to_pitch + channel,
			 b * p.C + channel };
	}
};

template <int N> static piece_places<N> places_of(const struct pieces &p)
{
	const int64_t count = p.B * p.n * (p.C / N);

	return { p, count, divisor_of(p.C / N, count), divisor_of(p.n, count) };
}

template <typename P, typename T, int N, typename W>
static __global__ void sum_pieces_kernel(struct piece_places<N> places, const T *x, W weight,
					 struct results<P> sums)
{
	typedef typename P::real real;
	const int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;

	previous_done();
	if (i >= places.count)
		return;
	const struct piece piece = places[i];
	struct values<real, N> sum = {
	};

#pragma unroll PIECE_READS
	for (int64_t t = piece.first; t < piece.last; t++) {
		const auto v = read_packed<N>(x + piece.from + t * places.p.from_pitch);
		const real w = weight(t);

#pragma unroll
		for (int k = 0; k < N; k++)
			sum[k] += w * (real)v[k];
	}
	sums.put(span<N>{ piece.at }, sum);
}

/* Of every piece and channel the sum of weight(t) x_t. */
template <typename P, typename W> struct piece_sums {
	const struct call *c;
	struct pieces p;
	struct numbers<P> x;
	W weight;
	typename P::real *sums;

	template <typename T, int N> void run() const
	{
		const struct piece_places<N> places = places_of<N>(p);

		launch_next(context_of(c)->overlaps, sum_pieces_kernel<P, T, N, W>,
			    (unsigned)((places.count + BLOCK - 1) / BLOCK), BLOCK, 0, stream_of(c),
			    places, (const T *)x.at, weight, wide<P>(sums));
		note_launch(c);
	}
};

template <typename R> struct equal_weight {
	__device__ R operator()(int64_t) const
	{
		return 1;
	}
};

/* finish(i, sum of x_t over the tokens) for the channels i in [0, B C); `sums` is take_pieces(). */
template <typename P, typename G>
static void sum_tokens(const struct call *c, const struct pieces &given, struct numbers<P> x,
		       typename P::real *sums, G finish)
{
	typedef typename P::real real;
	const struct pieces p = given;

	with_access(x, p.C, p.from_pitch, piece_sums<P, equal_weight<real>>{ c, p, x, {}, sums });
	each(c, p.B * p.C, [=] __device__(int64_t i) {
		const int64_t first = i / p.C * p.n * p.C + i % p.C;
		real sum = 0;

#pragma unroll 8
		for (int64_t piece = 0; piece < p.n; piece++)
			sum += sums[first + piece * p.C];
		finish(i, sum);
	});
}

#endif
