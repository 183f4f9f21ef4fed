#include "core/backend/cuda/access.cuh"
#include "core/backend/cuda/norm.cuh"

/* ------------------------------------------------------------------ shapes of rows */

/*
 * TEAM threads, a warp or a block, take a row.  Each keeps K spans of N numbers of it in registers,
 * which are N TEAM numbers apart.  A row is at most such a chunk, or it is LONG: then it passes chunk by
 * chunk, and is read again where it is used again.  STREAM: how x, s and their gradients are kept.
 */
template <int N_, int K_, int TEAM_, bool LONG_, enum span_kind STREAM_> struct row_shape {
	static constexpr int N = N_, K = K_, TEAM = TEAM_;
	static constexpr bool LONG = LONG_;
	static constexpr enum span_kind STREAM = STREAM_;
	static constexpr int STEP = N * TEAM, CHUNK = K * STEP, TEAMS = BLOCK / TEAM;
};

#define ROW_SPAN 4

template <typename R> static constexpr int MOST_SPANS = 32 / (int)sizeof(R);

/* use(shape) for rows of this width, all of which begin where accesses of 16 bytes may. */
template <typename R, enum span_kind STREAM, typename F>
static void with_aligned_shape(int64_t width, F use)
{
	constexpr int MOST = MOST_SPANS<R>, FEW = 2, SOME = MOST < 6 ? MOST : 6;

	if (width <= ROW_SPAN * WARP * FEW)
		use(row_shape<ROW_SPAN, FEW, WARP, false, STREAM>());
	else if (width <= ROW_SPAN * WARP * SOME)
		use(row_shape<ROW_SPAN, SOME, WARP, false, STREAM>());
	else if (width <= ROW_SPAN * WARP * MOST)
		use(row_shape<ROW_SPAN, MOST, WARP, false, STREAM>());
	else if (width <= ROW_SPAN * BLOCK * FEW)
		use(row_shape<ROW_SPAN, FEW, BLOCK, false, STREAM>());
	else
		use(row_shape<ROW_SPAN, FEW, BLOCK, true, STREAM>());
}

/* `aligned`: all rows begin there. */
template <typename P, typename F>
static void with_shape(int64_t width, bool aligned, enum span_kind stream, F use)
{
	typedef typename P::real real;
	constexpr int MOST = MOST_SPANS<real>;
	const bool known = aligned && stream != SPAN_OF_ANY;

	if (!known && width <= WARP * MOST)
		use(row_shape<1, MOST, WARP, false, SPAN_OF_ANY>());
	else if (!known)
		use(row_shape<1, MOST, BLOCK, true, SPAN_OF_ANY>());
	else if (ROUNDS<P> && stream == SPAN_OF_NARROW)
		with_aligned_shape<real, ROUNDS<P> ? SPAN_OF_NARROW : SPAN_OF_WIDE>(width, use);
	else
		with_aligned_shape<real, SPAN_OF_WIDE>(width, use);
}

/* f(first column) for each chunk of a row. */
template <typename S, typename F> static __device__ void each_chunk(int width, F f)
{
	if constexpr (S::LONG)
		for (int chunk = 0; chunk < width; chunk += S::CHUNK)
			f(chunk);
	else
		f(0);
}

template <typename... Pointers> static bool all_aligned(int64_t width, Pointers... pointers)
{
	return width % ROW_SPAN == 0 && (((uintptr_t)pointers | ...) % 16) == 0;
}

/* What a thread keeps of a chunk. */
template <typename R, typename S> struct piece {
	struct values<R, S::N> of[S::K];
};

/* Where a thread's first span begins in the tensor, and how many numbers of the row follow from there. */
struct row_place {
	int64_t first;
	int left;
};

template <typename S>
static __device__ struct row_place place_of(int64_t row, int width, int chunk)
{
	const int column = chunk + (int)(threadIdx.x % S::TEAM) * S::N;

	return { row * width + column, width - column };
}

/* f(k, i) for number i of each span k. */
template <typename S, typename F> static __device__ void each_number(F f)
{
#pragma unroll
	for (int k = 0; k < S::K; k++)
#pragma unroll
		for (int i = 0; i < S::N; i++)
			f(k, i);
}

/* Zeros beyond the row. */
template <typename R, typename S, typename T>
static __device__ void load_as(struct piece<R, S> &x, const T *from, struct row_place at)
{
#pragma unroll
	for (int k = 0; k < S::K; k++) {
		x.of[k] = {};
		if (k * S::STEP < at.left)
			x.of[k] = load_span<T, R, S::N, true>(from + at.first + k * S::STEP);
	}
}

template <typename R, typename S, typename T>
static __device__ void store_as(T *to, const struct piece<R, S> &x, struct row_place at)
{
#pragma unroll
	for (int k = 0; k < S::K; k++)
		if (k * S::STEP < at.left)
			store_span<true>(to + at.first + k * S::STEP, x.of[k]);
}

/* One branch for all spans: their accesses are under way together. */
template <typename P, typename R, typename S>
static __device__ void load(struct piece<R, S> &x, struct numbers<P> from, struct row_place at)
{
	if (ROUNDS<P> && from.narrow)
		load_as(x, (const typename P::factor *)from.at, at);
	else
		load_as(x, (const R *)from.at, at);
}

/* What the stream is kept as, where that is known. */
template <typename P, enum span_kind STREAM>
using stream_type =
	std::conditional_t<STREAM == SPAN_OF_NARROW, typename P::factor, typename P::real>;

/* What is read where x is written. */
template <typename P, enum span_kind STREAM>
static __device__ typename P::real as_stream(struct results<P> to, typename P::real x)
{
	return STREAM == SPAN_OF_ANY ? as_kept(to, x) : (typename P::real)(stream_type<P, STREAM>)x;
}

template <typename P, typename R, typename S>
static __device__ void load_stream(struct piece<R, S> &x, struct numbers<P> from,
				   struct row_place at)
{
	if constexpr (S::STREAM == SPAN_OF_ANY)
		load<P>(x, from, at);
	else
		load_as(x, (const stream_type<P, S::STREAM> *)from.at, at);
}

template <typename P, typename R, typename S>
static __device__ void store(struct results<P> to, const struct piece<R, S> &x, struct row_place at)
{
	if (ROUNDS<P> && to.narrow)
		store_as((typename P::factor *)to.at, x, at);
	else
		store_as((R *)to.at, x, at);
}

template <typename P, typename R, typename S>
static __device__ void store_stream(struct results<P> to, const struct piece<R, S> &x,
				    struct row_place at)
{
	if constexpr (S::STREAM == SPAN_OF_ANY)
		store<P>(to, x, at);
	else
		store_as((stream_type<P, S::STREAM> *)to.at, x, at);
}

template <typename P, typename R, typename S>
static __device__ void put(struct gradient<P> to, const struct piece<R, S> &x, struct row_place at)
{
	if (to && to.add) {
		struct piece<R, S> sum;

		load<P>(sum, to.to, at);
		each_number<S>([&](int k, int i) { sum.of[k][i] += x.of[k][i]; });
		store<P>(to.to, sum, at);
	} else if (to) {
		store<P>(to.to, x, at);
	}
}

/* Blocks of a multiprocessor that pieces in registers leave room for: more of them keep memory busier. */
template <typename R, typename S> static constexpr int RESIDENT = sizeof(struct piece<R, S>) <= 96 ? 4 : 3;

template <typename S, typename R> static __device__ R team_sum(R value)
{
	if constexpr (S::TEAM == WARP)
		return warp_sum(value);
	else
		return block_sum(value);
}

/* ------------------------------------------------------------------ forward */

/* A piece as it is kept.  It stays packed until all of it is here: that takes fewer registers. */
template <typename T, typename S> struct packed_piece {
	struct packed<T, S::N> of[S::K];

	__device__ packed_piece(const T *from, struct row_place at) : of{}
	{
#pragma unroll
		for (int k = 0; k < S::K; k++)
			if (k * S::STEP < at.left)
				of[k] = read_packed<S::N>(from + at.first + k * S::STEP);
	}
};

/* s = x + residual */
template <typename P, typename R, typename S, typename X, typename T>
static __device__ void add_as(struct piece<R, S> &s, const struct packed_piece<X, S> &x,
			      const T *residual, struct row_place at)
{
	const struct packed_piece<T, S> more(residual, at);

	each_number<S>([&](int k, int i) { s.of[k][i] = (R)x.of[k][i] + (R)more.of[k][i]; });
}

template <typename P, typename X, typename R, typename S>
static __device__ void add_residual(const struct norm_call<P> &m, struct piece<R, S> &s,
				    struct row_place at)
{
	const struct packed_piece<X, S> x((const X *)m.x.at, at);

	if (ROUNDS<P> && m.residual.narrow)
		add_as<P>(s, x, (const typename P::factor *)m.residual.at, at);
	else
		add_as<P>(s, x, (const R *)m.residual.at, at);
}

/* s = x + residual, as it is kept, or x: what is normalised is what the backward pass will read. */
template <typename P, typename R, typename S>
static __device__ void make_sum(const struct norm_call<P> &m, struct piece<R, S> &s,
				struct row_place at)
{
	if (!m.s) {
		load_stream<P>(s, m.x, at);
		return;
	}
	if constexpr (S::STREAM != SPAN_OF_ANY)
		add_residual<P, stream_type<P, S::STREAM>>(m, s, at);
	else if (ROUNDS<P> && m.x.narrow)
		add_residual<P, typename P::factor>(m, s, at);
	else
		add_residual<P, R>(m, s, at);
	each_number<S>([&](int k, int i) { s.of[k][i] = as_stream<P, S::STREAM>(m.s, s.of[k][i]); });
	store_stream<P>(m.s, s, at);
}

/* y = w (s - mean) / deviation + b of a chunk, span by span: w and b, which are near, take few registers. */
template <typename R, typename S, typename T>
static __device__ void write_y_as(T *y, const R *w, const R *b, const struct piece<R, S> &s, R mean,
				  R inverse, struct row_place at, int64_t row_begin)
{
#pragma unroll
	for (int k = 0; k < S::K; k++) {
		const int64_t to = at.first + k * S::STEP, column = to - row_begin;
		struct values<R, S::N> factor, out = {};

		if (k * S::STEP >= at.left)
			continue;
		factor = load_span<R, R, S::N, true>(w + column);
		if (b)
			out = load_span<R, R, S::N, true>(b + column);
#pragma unroll
		for (int i = 0; i < S::N; i++)
			out[i] = factor[i] * ((s.of[k][i] - mean) * inverse) + out[i];
		store_span<true>(y + to, out);
	}
}

template <typename P, typename R, typename S>
static __device__ void write_y(const struct norm_call<P> &m, const struct piece<R, S> &s, R mean,
			       R inverse, struct row_place at, int64_t row)
{
	if (ROUNDS<P> && m.y.narrow)
		write_y_as((typename P::factor *)m.y.at, m.w, m.b, s, mean, inverse, at, row * m.width);
	else
		write_y_as((R *)m.y.at, m.w, m.b, s, mean, inverse, at, row * m.width);
}

/* s = x + residual, y = w (s - mean) / deviation + b */
template <typename P, typename S>
static __global__ void __launch_bounds__(BLOCK, RESIDENT<typename P::real, S>)
	forward_kernel(struct norm_call<P> m)
{
	typedef typename P::real real;
	const int64_t row = (int64_t)blockIdx.x * S::TEAMS + threadIdx.x / S::TEAM;
	const real width = (real)m.width;
	real sum = 0, squares = 0, mean, inverse;
	struct piece<real, S> s;

	previous_done();
	if (row >= m.rows)
		return;
	each_chunk<S>(m.width, [&](int chunk) {
		const struct row_place at = place_of<S>(row, m.width, chunk);

		make_sum(m, s, at);
		each_number<S>([&](int k, int i) { sum += s.of[k][i]; });
	});
	mean = m.kind == NORM_LAYER ? team_sum<S>(sum) / width : 0;
	each_chunk<S>(m.width, [&](int chunk) {
		const struct row_place at = place_of<S>(row, m.width, chunk);

		if (S::LONG)
			load_stream<P>(s, m.sum(), at);
		each_number<S>([&](int k, int i) {
			if (k * S::STEP < at.left)
				squares += (s.of[k][i] - mean) * (s.of[k][i] - mean);
		});
	});
	inverse = 1 / sqrt(team_sum<S>(squares) / width + m.eps);
	if (threadIdx.x % S::TEAM == 0) {
		m.statistics[2 * row] = mean;
		m.statistics[2 * row + 1] = inverse;
	}
	each_chunk<S>(m.width, [&](int chunk) {
		const struct row_place at = place_of<S>(row, m.width, chunk);

		if (S::LONG)
			load_stream<P>(s, m.sum(), at);
		write_y(m, s, mean, inverse, at, row);
	});
}

template <typename P, typename S>
static __global__ void __launch_bounds__(BLOCK, RESIDENT<typename P::real, S>)
	remake_kernel(struct norm_call<P> m)
{
	typedef typename P::real real;
	const int64_t row = (int64_t)blockIdx.x * S::TEAMS + threadIdx.x / S::TEAM;
	struct piece<real, S> s;

	previous_done();
	if (row >= m.rows)
		return;
	each_chunk<S>(m.width, [&](int chunk) {
		const struct row_place at = place_of<S>(row, m.width, chunk);

		load_stream<P>(s, m.sum(), at);
		write_y(m, s, m.statistics[2 * row], m.statistics[2 * row + 1], at, row);
	});
}

template <typename P> static bool forward_aligned(const struct norm_call<P> &m)
{
	return all_aligned(m.width, m.x.at, m.residual.at, m.w, m.b, m.s.at, m.y.at);
}

template <typename P> static void forward(const struct call *c)
{
	const struct norm_call<P> m = read_call<P>(c);

	if (m.rows == 0)
		return;
	with_shape<P>(m.width, forward_aligned(m), all_of<P>(m.x, m.s).kind(), [&](auto shape) {
		typedef decltype(shape) S;

		launch_next(context_of(c)->overlaps, forward_kernel<P, S>,
			    (unsigned)((m.rows + S::TEAMS - 1) / S::TEAMS), BLOCK, 0, stream_of(c), m);
	});
	note_launch(c);
}

template <typename P> static void remake(const struct call *c)
{
	const struct norm_call<P> m = read_call<P>(c);

	if (m.rows == 0)
		return;
	with_shape<P>(m.width, forward_aligned(m), all_of<P>(m.sum()).kind(), [&](auto shape) {
		typedef decltype(shape) S;

		launch_next(context_of(c)->overlaps, remake_kernel<P, S>,
			    (unsigned)((m.rows + S::TEAMS - 1) / S::TEAMS), BLOCK, 0, stream_of(c), m);
	});
	note_launch(c);
}

/* ------------------------------------------------------------------ backward */

/* Only the sum is on the way to a loss. */
template <typename P> static void backward_sum(const struct call *c, int64_t n, int64_t width, int w)
{
	const auto ds = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0), dresidual = input_gradient<P>(c, 1);
	const auto dw = input_gradient<P>(c, w), db = input_gradient<P>(c, w + 1);

	each_span(c, n, n, all_of<P>(ds, dx, dresidual), [=] __device__(auto p) {
		const auto d = ds[p];

		if (dx)
			dx.put(p, d);
		if (dresidual)
			dresidual.put(p, d);
	});
	if (!dw && !db)
		return;
	each(c, width, [=] __device__(int64_t i) {
		if (dw)
			dw.put(i, 0);
		if (db)
			db.put(i, 0);
	});
}

template <typename P> struct norm_gradients {
	struct numbers<P> dy, ds; /* ds: what arrives at the sum itself */
	struct gradient<P> dx, dresidual;
	/* [parts, columns]: dw of the rows of a part, then their db; 0 columns: neither is wanted */
	typename P::real *partial;
	int64_t columns;
};

/*
 * Blocks that share the rows, each with its part of dw and db: a function of the shape alone.  A large GPU
 * runs so many at a time; more would wait for these.
 */
#define NORM_PARTS 528
#define MOST_PARTS (2 * NORM_PARTS) /* of small blocks */

static int64_t norm_parts(int64_t rows, int64_t teams, int64_t parts)
{
	const int64_t most = (rows + teams - 1) / teams;

	return most < parts ? most : parts;
}

/* Of n = (s - mean) / deviation: what rows give to dw and db. */
template <typename R, typename S> struct weight_sums {
	struct piece<R, S> dw, db;

	__device__ void add(const struct piece<R, S> &n, const struct piece<R, S> &dy)
	{
		each_number<S>([&](int k, int i) {
			dw.of[k][i] += dy.of[k][i] * n.of[k][i];
			db.of[k][i] += dy.of[k][i];
		});
	}
	/* Columns from at.first on of dw, and of db, which begins `width` later. */
	__device__ void load(const R *from, int64_t columns, int64_t width, struct row_place at)
	{
		load_as(dw, from, at);
		if (columns > width)
			load_as(db, from + width, at);
	}
	__device__ void store(R *to, int64_t columns, int64_t width, struct row_place at) const
	{
		store_as(to, dw, at);
		if (columns > width)
			store_as(to + width, db, at);
	}
};

/* The sums of the teams of a block, added in order. */
template <typename R, typename S>
static __device__ void add_teams(struct weight_sums<R, S> &sums, struct row_place at)
{
	__shared__ struct alignas(16) {
		R number[2 * S::CHUNK];
	} kept;
	const int team = threadIdx.x / S::TEAM;

	for (int turn = S::TEAMS - 1; turn >= 0; turn--) {
		if (team == turn) {
			struct weight_sums<R, S> before = {};

			if (turn < S::TEAMS - 1)
				before.load(kept.number, 2 * S::CHUNK, S::CHUNK, at);
			each_number<S>([&](int k, int i) {
				sums.dw.of[k][i] += before.dw.of[k][i];
				sums.db.of[k][i] += before.db.of[k][i];
			});
			sums.store(kept.number, 2 * S::CHUNK, S::CHUNK, at);
		}
		__syncthreads();
	}
}

/*
 * y = w n + b: dw = sum dy n, db = sum dy over the rows.  With g = w dy:
 * d = (g - mean(g) - n mean(g n)) / deviation + ds, where RMSNorm, which subtracts no mean, lacks
 * mean(g).  d may be the memory of dy or ds.
 */
template <typename P, typename S>
static __global__ void __launch_bounds__(BLOCK)
	backward_kernel(struct norm_call<P> m, struct norm_gradients<P> d)
{
	typedef typename P::real real;
	const int64_t first_row = (int64_t)blockIdx.x * S::TEAMS + threadIdx.x / S::TEAM;
	const real width = (real)m.width;
	real *partial = d.partial + blockIdx.x * d.columns;
	struct weight_sums<real, S> sums = {};

	previous_done();
	for (int64_t row = first_row; row < m.rows; row += (int64_t)gridDim.x * S::TEAMS) {
		const real mean = m.statistics[2 * row], inverse = m.statistics[2 * row + 1];
		real plain = 0, weighted = 0;
		struct piece<real, S> n, g;
		const auto read = [&](struct row_place at) { /* n and dy */
			load_stream<P>(n, m.sum(), at);
			load<P>(g, d.dy, at);
			each_number<S>([&](int k, int i) {
				n.of[k][i] = (n.of[k][i] - mean) * inverse;
			});
		};
		const auto weigh = [&](struct row_place column) { /* g = w dy */
			struct piece<real, S> w;

			load_as(w, m.w, column);
			each_number<S>([&](int k, int i) { g.of[k][i] *= w.of[k][i]; });
		};

		each_chunk<S>(m.width, [&](int chunk) {
			const struct row_place at = place_of<S>(row, m.width, chunk);
			const struct row_place column = place_of<S>(0, m.width, chunk);

			read(at);
			if (S::LONG && d.columns && row == first_row)
				sums = {};
			else if (S::LONG && d.columns)
				sums.load(partial, d.columns, m.width, column);
			sums.add(n, g);
			if (S::LONG && d.columns)
				sums.store(partial, d.columns, m.width, column);
			weigh(column);
			each_number<S>([&](int k, int i) {
				plain += g.of[k][i];
				weighted += g.of[k][i] * n.of[k][i];
			});
		});
		plain = m.kind == NORM_LAYER ? team_sum<S>(plain) / width : 0;
		weighted = team_sum<S>(weighted) / width;
		each_chunk<S>(m.width, [&](int chunk) {
			const struct row_place at = place_of<S>(row, m.width, chunk);
			struct piece<real, S> ds = {};

			if (S::LONG) {
				read(at);
				weigh(place_of<S>(0, m.width, chunk));
			}
			if (d.ds)
				load_stream<P>(ds, d.ds, at);
			each_number<S>([&](int k, int i) {
				ds.of[k][i] += (g.of[k][i] - plain - n.of[k][i] * weighted) * inverse;
			});
			put<P>(d.dx, ds, at);
			put<P>(d.dresidual, ds, at);
		});
	}
	if (S::LONG || !d.columns)
		return;
	if constexpr (S::TEAM == WARP)
		add_teams(sums, place_of<S>(0, m.width, 0));
	if (threadIdx.x < S::TEAM)
		sums.store(partial, d.columns, m.width, place_of<S>(0, m.width, 0));
}

/* ----------------------------------------------------------- backward, by columns */

/*
 * Rows of some hundreds of numbers: a thread takes N columns of all rows of its block, and keeps w, dw
 * and db of these in few registers.  The numbers of ROWS rows are under way at a time; AHEAD: while it
 * computes with those before.  BLOCKS of the most threads fit into a multiprocessor, of all PARTS.
 */
template <int N_, int ROWS_, int BLOCKS_, int PARTS_, bool AHEAD_> struct column_shape {
	static constexpr int N = N_, ROWS = ROWS_, BLOCKS = BLOCKS_, PARTS = PARTS_;
	static constexpr int MOST_THREADS = ROW_SPAN * WARP * MOST_SPANS<float> / N;
	static constexpr bool AHEAD = AHEAD_;
};

/* As they are kept: the first n rows, which lie `width` apart, and zeros. */
template <typename T, typename C> struct packed_rows {
	struct packed<T, C::N> of[C::ROWS];

	__device__ void load(const T *from, int64_t width, int n)
	{
#pragma unroll
		for (int r = 0; r < C::ROWS; r++) {
			of[r] = {};
			if (r < n)
				of[r] = read_packed<C::N>(from + r * width);
		}
	}
};

template <typename R, typename C> struct column_rows {
	struct values<R, C::N> of[C::ROWS];

	template <typename T> __device__ void unpack(const struct packed_rows<T, C> &kept)
	{
#pragma unroll
		for (int r = 0; r < C::ROWS; r++)
#pragma unroll
			for (int i = 0; i < C::N; i++)
				of[r][i] = (R)kept.of[r][i];
	}
	template <typename T> __device__ void store(T *to, int64_t width, int n) const
	{
#pragma unroll
		for (int r = 0; r < C::ROWS; r++)
			if (r < n)
				store_span<true>(to + r * width, of[r]);
	}
	/* Adds where the gradient is added to. */
	template <typename T> __device__ void put(T *to, bool add, int64_t width, int n) const
	{
		struct packed_rows<T, C> kept;
		struct column_rows sum;

		if (!add) {
			store(to, width, n);
			return;
		}
		kept.load(to, width, n);
		sum.unpack(kept);
#pragma unroll
		for (int r = 0; r < C::ROWS; r++)
#pragma unroll
			for (int i = 0; i < C::N; i++)
				sum.of[r][i] += of[r][i];
		sum.store(to, width, n);
	}
	template <typename P>
	__device__ void put(struct gradient<P> to, int64_t at, int64_t width, int n) const
	{
		if (ROUNDS<P> && to && to.to.narrow)
			put((typename P::factor *)to.to.at + at, to.add, width, n);
		else if (to)
			put((R *)to.to.at + at, to.add, width, n);
	}
};

/* Of all threads of the block, in a fixed order.  A call must not have the `room` of the one before. */
template <int N, int WARPS, typename R>
static __device__ void add_warps(struct values<R, N> &sum, R (&room)[WARPS][N])
{
	const int warps = (int)blockDim.x / WARP;

#pragma unroll
	for (int k = 0; k < N; k++)
		sum[k] = warp_sum(sum[k]);
	if (threadIdx.x % WARP == 0)
#pragma unroll
		for (int k = 0; k < N; k++)
			room[threadIdx.x / WARP][k] = sum[k];
	__syncthreads();
	sum = {};
	for (int warp = 0; warp < warps; warp++)
#pragma unroll
		for (int k = 0; k < N; k++)
			sum[k] += room[warp][k];
}

/* What a thread reads of ROWS rows.  X: how the stream is kept; Y: dy. */
template <typename P, typename X, typename Y, typename C> struct rows_read {
	typedef typename P::real real;

	struct packed_rows<X, C> s, ds;
	struct packed_rows<Y, C> dy;
	real mean[C::ROWS], inverse[C::ROWS];

	/* `rows` of them, from number `row` on. */
	__device__ void load(const struct norm_call<P> &m, const struct norm_gradients<P> &d, int64_t row,
			     int rows, int column)
	{
		const int own = column < m.width ? rows : 0;
		const int64_t at = row * m.width + column;

		s.load((const X *)m.sum().at + at, m.width, own);
		if (d.ds)
			ds.load((const X *)d.ds.at + at, m.width, own);
		dy.load((const Y *)d.dy.at + at, m.width, own);
#pragma unroll
		for (int r = 0; r < C::ROWS; r++) {
			mean[r] = r < rows ? m.statistics[2 * (row + r)] : 0;
			inverse[r] = r < rows ? m.statistics[2 * (row + r) + 1] : 0;
		}
	}
};

/* As backward_kernel(). */
template <typename P, typename X, typename Y, typename C>
static __global__ void __launch_bounds__(C::MOST_THREADS, C::BLOCKS)
	backward_columns_kernel(struct norm_call<P> m, struct norm_gradients<P> d)
{
	typedef typename P::real real;
	constexpr int N = C::N, ROWS = C::ROWS;
	__shared__ struct alignas(16) {
		real of[C::MOST_THREADS / WARP][2 * ROWS];
	} room[2];
	const int column = (int)threadIdx.x * N;
	const bool inside = column < m.width;
	const int64_t first = m.rows * blockIdx.x / gridDim.x;
	const int64_t last = m.rows * (blockIdx.x + 1) / gridDim.x;
	const auto rows_at = [&](int64_t row) { return last - row < ROWS ? (int)(last - row) : ROWS; };
	struct values<real, N> w = {}, dw = {}, db = {};
	struct rows_read<P, X, Y, C> next = {};
	int half = 0;

	previous_done();
	if (inside)
		w = load_span<real, real, N, true>(m.w + column);
	if (C::AHEAD)
		next.load(m, d, first, rows_at(first), column);
	for (int64_t row = first; row < last; row += ROWS) {
		const int own = inside ? rows_at(row) : 0;
		struct rows_read<P, X, Y, C> now = next;
		struct column_rows<real, C> n, g, ds;
		struct values<real, 2 * ROWS> means = {}; /* of g, then of g n */

		if (!C::AHEAD)
			now.load(m, d, row, rows_at(row), column);
		else if (row + ROWS < last)
			next.load(m, d, row + ROWS, rows_at(row + ROWS), column);
		n.unpack(now.s);
		g.unpack(now.dy);
		ds.unpack(now.ds);
#pragma unroll
		for (int r = 0; r < ROWS; r++) {
#pragma unroll
			for (int i = 0; i < N; i++) {
				n.of[r][i] = (n.of[r][i] - now.mean[r]) * now.inverse[r];
				dw[i] += g.of[r][i] * n.of[r][i];
				db[i] += g.of[r][i];
				g.of[r][i] *= w[i];
				means[r] += g.of[r][i];
				means[ROWS + r] += g.of[r][i] * n.of[r][i];
			}
		}
		add_warps(means, room[half].of);
		half = !half;
#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			const real plain = m.kind == NORM_LAYER ? means[r] / (real)m.width : 0;
			const real weighted = means[ROWS + r] / (real)m.width;

#pragma unroll
			for (int i = 0; i < N; i++)
				ds.of[r][i] +=
					(g.of[r][i] - plain - n.of[r][i] * weighted) * now.inverse[r];
		}
		ds.put(d.dx, row * m.width + column, m.width, own);
		ds.put(d.dresidual, row * m.width + column, m.width, own);
	}
	if (!d.columns || !inside)
		return;
	store_span<true>(d.partial + blockIdx.x * d.columns + column, dw);
	if (d.columns > m.width)
		store_span<true>(d.partial + blockIdx.x * d.columns + m.width + column, db);
}

/* Does backward take rows of this shape by columns? */
template <typename S> static constexpr bool BY_COLUMNS = S::N > 1 && S::K > 2 && S::TEAM == WARP;

template <typename X>
using plain_columns = column_shape<ROW_SPAN, 2, (sizeof(X) > 4 ? 1 : 3), NORM_PARTS, false>;

/* Where it is narrow, few bytes are under way: a thread asks for the next row before it needs it. */
template <typename X>
using column_shape_of = std::conditional_t<(sizeof(X) < 4), column_shape<8, 1, 6, MOST_PARTS, true>,
					   plain_columns<X>>;

/* Returns the number of parts. */
template <typename C, typename X, typename Y, typename P>
static int64_t launch_columns_of(const struct call *c, const struct norm_call<P> &m,
				 const struct norm_gradients<P> &d)
{
	const int64_t threads = (m.width + C::N * WARP - 1) / (C::N * WARP) * WARP;
	const int64_t parts = norm_parts(m.rows, C::ROWS, C::PARTS);

	if (parts)
		launch_next(context_of(c)->overlaps, backward_columns_kernel<P, X, Y, C>,
			    (unsigned)parts, (int)threads, 0, stream_of(c), m, d);
	return parts;
}

template <typename C, typename X, typename P>
static int64_t backward_columns(const struct call *c, const struct norm_call<P> &m,
				const struct norm_gradients<P> &d)
{
	if (ROUNDS<P> && d.dy.narrow)
		return launch_columns_of<C, X, typename P::factor>(c, m, d);
	return launch_columns_of<C, X, typename P::real>(c, m, d);
}

template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const struct norm_call<P> m = read_call<P>(c);
	const struct gradient<P> none = { { NULL, false }, false };
	const auto dw = input_gradient<P>(c, m.weight), db = input_gradient<P>(c, m.weight + 1);
	const int64_t width = m.width;
	struct norm_gradients<P> d;
	int64_t parts = 0;
	bool aligned;

	d.dy = output_gradient<P>(c, m.s ? 1 : 0);
	d.ds = m.s ? output_gradient<P>(c, 0) : none.to;
	d.dx = input_gradient<P>(c, 0);
	d.dresidual = m.s ? input_gradient<P>(c, 1) : none;
	d.partial = (real *)c->work;
	d.columns = db ? 2 * width : dw ? width : 0;
	if (m.s && !d.dy) {
		backward_sum<P>(c, m.rows * width, width, m.weight);
		return;
	}
	aligned = forward_aligned(m) &&
		  all_aligned(width, d.dy.at, d.ds.at, d.dx.to.at, d.dresidual.to.at, d.partial);
	with_shape<P>(width, aligned, all_of<P>(m.sum(), d.ds).kind(), [&](auto shape) {
		typedef decltype(shape) S;

		if constexpr (BY_COLUMNS<S>) {
			typedef stream_type<P, S::STREAM> stream;
			typedef column_shape_of<stream> C;

			parts = width % C::N == 0 ? backward_columns<C, stream>(c, m, d)
						  : backward_columns<plain_columns<stream>, stream>(c, m, d);
		} else {
			parts = norm_parts(m.rows, S::TEAMS, NORM_PARTS);
			if (parts)
				launch_next(context_of(c)->overlaps, backward_kernel<P, S>,
					    (unsigned)parts, BLOCK, 0, stream_of(c), m, d);
		}
	});
	note_launch(c);
	if (d.columns)
		finish_columns(c, parts, d.columns, (const real *)d.partial,
			       [=] __device__(int64_t column, real sum) {
				       if (column >= width)
					       db.put(column - width, sum);
				       else if (dw)
					       dw.put(column, sum);
			       });
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	const int64_t width = tensor_dim(n->in[0], -1), rows = tensor_count(n->in[0]) / width;

	(void)threads;
	return pass == PASS_BACKWARD
		       ? (size_t)(norm_parts(rows, 1, MOST_PARTS) * 2 * width) * sizeof(typename P::real)
		       : 0;
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, remake<P>, NULL, workspace<P> };
}
KERNELS(norm, set)
KERNELS(norm_residual, set)
