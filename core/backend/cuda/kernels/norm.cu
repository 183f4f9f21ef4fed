/*
 * norm and norm_residual: LayerNorm and RMSNorm, with n = (s - mean) / deviation,
 *
 *     s = x + residual,  y = w n + b
 *     g = w dy,  ds += (g - mean(g) - n mean(g n)) / deviation,  dw = sum dy n,  db = sum dy
 *
 * RMSNorm has no mean, and so lacks mean(g).  Memory bandwidth bounds all passes: a row stays in
 * registers between its uses.
 */
#include "core/backend/cuda/norm/norm_columns.cuh"

/* ------------------------------------------------------------------ forward */

/*
 * A thread's elements of a chunk in the storage type.  They stay packed until all loads are back,
 * which takes fewer registers.
 */
template <typename T, typename S> struct packed_row_slice {
	packed_vec<T, S::N> of[S::K];

	__device__ packed_row_slice(const T *from, struct row_place at) : of{}
	{
#pragma unroll
		for (int k = 0; k < S::K; k++)
			if (k * S::STEP < at.left)
				of[k] = load_packed<S::N>(from + at.first + k * S::STEP);
	}
};

/* s = x + residual */
template <typename P, typename R, typename S, typename X, typename T>
static __device__ void add_as(row_slice<R, S> &s, const packed_row_slice<X, S> &x,
			      const T *residual, struct row_place at)
{
	const packed_row_slice<T, S> more(residual, at);

	each_number<S>([&](int k, int i) { s.of[k][i] = (R)x.of[k][i] + (R)more.of[k][i]; });
}

template <typename P, typename X, typename R, typename S>
static __device__ void add_residual(const norm_call<P> &m, row_slice<R, S> &s, struct row_place at,
				    struct row_place residual_at)
{
	const packed_row_slice<X, S> x((const X *)m.x.at, at);

	if (ROUNDS<P> && m.residual.bf16_storage)
		add_as<P>(s, x, (const typename P::factor *)m.residual.at, residual_at);
	else
		add_as<P>(s, x, (const R *)m.residual.at, residual_at);
}

/*
 * s = x + residual, rounded to its storage type, or s = x.  So the norm normalises what backward
 * will read.
 */
template <typename P, typename R, typename S>
static __device__ void compute_sum(const norm_call<P> &m, row_slice<R, S> &s, int64_t row,
				   int chunk)
{
	const struct row_place at = place_of<S>(row, m.width, chunk);
	const struct row_place residual_at = place_of<S>(row, m.width, chunk, m.residual_pitch);

	if (!m.s) {
		load_stream<P>(s, m.x, at);
		return;
	}
	if constexpr (S::STREAM != VEC_OF_ANY)
		add_residual<P, stream_type<P, S::STREAM>>(m, s, at, residual_at);
	else if (ROUNDS<P> && m.x.bf16_storage)
		add_residual<P, typename P::factor>(m, s, at, residual_at);
	else
		add_residual<P, R>(m, s, at, residual_at);
	each_number<S>(
		[&](int k, int i) { s.of[k][i] = as_stream<P, S::STREAM>(m.s, s.of[k][i]); });
	store_stream<P>(m.s, s, at);
}

/*
 * w and b of a thread's columns.  No kernel of the run writes parameters, so they are loaded before
 * pdl_wait(), if they take few registers; else vector by vector when they are used.
 */
template <typename R, typename S> struct norm_weights {
	static constexpr bool AHEAD = !S::LONG && sizeof(row_slice<R, S>) <= 32;

	const R *w, *b; /* b: or NULL */
	row_slice<R, S> w_ahead, b_ahead;

	template <typename P>
	__device__ explicit norm_weights(const norm_call<P> &m)
	    : w(m.w), b(m.b), w_ahead{}, b_ahead{}
	{
		const struct row_place at = place_of<S>(0, m.width, 0);

		if (AHEAD)
			load_as(w_ahead, w, at);
		if (AHEAD && b)
			load_as(b_ahead, b, at);
	}
	/* Of vector k, which starts at this column. */
	__device__ vec<R, S::N> factor(int k, int64_t column) const
	{
		return AHEAD ? w_ahead.of[k] : load_vec<R, R, S::N, true>(w + column);
	}
	__device__ vec<R, S::N> offset(int k, int64_t column) const
	{
		if (AHEAD || !b)
			return b_ahead.of[k];
		return load_vec<R, R, S::N, true>(b + column);
	}
};

/* y = w (s - mean) / deviation + b of a chunk */
template <typename R, typename S, typename T>
static __device__ void write_y_as(T *y, const norm_weights<R, S> &weights, const row_slice<R, S> &s,
				  R mean, R inverse, struct row_place at, int64_t row_begin)
{
#pragma unroll
	for (int k = 0; k < S::K; k++) {
		const int64_t to = at.first + k * S::STEP, column = to - row_begin;

		if (k * S::STEP >= at.left)
			continue;
		const vec<R, S::N> factor = weights.factor(k, column);
		vec<R, S::N> out = weights.offset(k, column);

#pragma unroll
		for (int i = 0; i < S::N; i++)
			out[i] = factor[i] * ((s.of[k][i] - mean) * inverse) + out[i];
		store_vec<true>(y + to, out);
	}
}

template <typename P, typename R, typename S>
static __device__ void write_y(const norm_call<P> &m, const norm_weights<R, S> &weights,
			       const row_slice<R, S> &s, R mean, R inverse, struct row_place at,
			       int64_t row)
{
	if (ROUNDS<P> && m.y.bf16_storage)
		write_y_as((typename P::factor *)m.y.at, weights, s, mean, inverse, at,
			   row * m.width);
	else
		write_y_as((R *)m.y.at, weights, s, mean, inverse, at, row * m.width);
}

/* Prefetches w and b into L2, by a block.  In decoding they are not there. */
template <typename P> static __device__ void prefetch_weights(const norm_call<P> &m)
{
	constexpr int LINE = 128 / (int)sizeof(typename P::real);

	for (int64_t column = threadIdx.x * LINE; column < m.width; column += BLOCK * LINE) {
		prefetch_l2(m.w + column);
		if (m.b)
			prefetch_l2(m.b + column);
	}
}

/* s = x + residual, y = w (s - mean) / deviation + b */
template <typename P, typename S>
static __global__ void __launch_bounds__(BLOCK, RESIDENT<typename P::real, S>)
	norm_forward_kernel(struct replicas replicas, const __grid_constant__ norm_call<P> given_m)
{
	const auto &m = replicas.own(given_m);
	typedef typename P::real real;
	const int64_t row = (int64_t)blockIdx.x * S::TEAMS + threadIdx.x / S::TEAM;
	const real width = (real)m.width;
	real sum = 0, squares = 0, mean, inverse;
	row_slice<real, S> s;

	if (!norm_weights<real, S>::AHEAD && blockIdx.x == 0)
		prefetch_weights(m);
	const norm_weights<real, S> weights(m);

	pdl_wait();
	if (row >= m.rows)
		return;
	each_chunk<S>(m.width, [&](int chunk) {
		compute_sum(m, s, row, chunk);
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
		write_y(m, weights, s, mean, inverse, at, row);
	});
}

template <typename P, typename S>
static __global__ void __launch_bounds__(BLOCK, RESIDENT<typename P::real, S>)
	norm_recompute_kernel(struct replicas replicas,
			      const __grid_constant__ norm_call<P> given_m)
{
	const auto &m = replicas.own(given_m);
	typedef typename P::real real;
	const int64_t row = (int64_t)blockIdx.x * S::TEAMS + threadIdx.x / S::TEAM;
	const norm_weights<real, S> weights(m);
	row_slice<real, S> s;

	pdl_wait();
	if (row >= m.rows)
		return;
	each_chunk<S>(m.width, [&](int chunk) {
		const struct row_place at = place_of<S>(row, m.width, chunk);

		load_stream<P>(s, m.sum(), at);
		write_y(m, weights, s, m.statistics[2 * row], m.statistics[2 * row + 1], at, row);
	});
}

template <typename P> static bool forward_aligned(const norm_call<P> &m)
{
	return all_aligned(m.width | m.residual_pitch, m.x.at, m.residual.at, m.w, m.b, m.s.at,
			   m.y.at);
}

/*
 * Up to 64 rows of 512 and more elements, as in decoding, have a block each: latency bounds them,
 * not bandwidth.  So the order of a sum depends on the number of rows.
 */
#define BLOCK_ROWS 64
#define BLOCK_ELEMENTS 512

/* The width that selects the row shape. */
template <typename P> static int64_t shape_width(const norm_call<P> &m, bool aligned)
{
	constexpr int64_t LEAST_OF_BLOCK = ROW_VEC * WARP * MAX_VECS<typename P::real> + 1;
	const bool by_blocks = aligned && m.rows <= BLOCK_ROWS && m.width >= BLOCK_ELEMENTS;

	return by_blocks && m.width < LEAST_OF_BLOCK ? LEAST_OF_BLOCK : m.width;
}

template <typename P> static void forward(const struct call *c)
{
	const norm_call<P> m = read_call<P>(c);
	const bool aligned = forward_aligned(m);

	if (m.rows == 0)
		return;
	with_shape<P>(m.rows, shape_width(m, aligned), aligned, all_of<P>(m.x, m.s).kind(),
		      [&](auto shape) {
			      typedef decltype(shape) S;

			      launch_for(c, norm_forward_kernel<P, S>,
					 (unsigned)((m.rows + S::TEAMS - 1) / S::TEAMS), BLOCK, 0,
					 m);
		      });
}

template <typename P> static void recompute(const struct call *c)
{
	const norm_call<P> m = read_call<P>(c);

	if (m.rows == 0)
		return;
	with_shape<P>(
		m.rows, m.width, forward_aligned(m), all_of<P>(m.sum()).kind(), [&](auto shape) {
			typedef decltype(shape) S;

			launch_for(c, norm_recompute_kernel<P, S>,
				   (unsigned)((m.rows + S::TEAMS - 1) / S::TEAMS), BLOCK, 0, m);
		});
}

/* ------------------------------------------------------------------ backward */

/* Backward if only s, not y, reaches a loss. */
template <typename P> static void backward_sum(const struct call *c, const norm_call<P> &m)
{
	const int64_t width = m.width, pitch = m.residual_pitch, n = m.rows * width;
	const int64_t vec_width = pitch == width ? n : pitch % VEC == 0 ? width : 1;
	const auto ds = output_gradient<P>(c, 0);
	const auto dx = input_gradient<P>(c, 0), dresidual = input_gradient<P>(c, 1);
	const auto dw = input_gradient<P>(c, m.weight), db = input_gradient<P>(c, m.weight + 1);

	each_vec(c, n, vec_width, all_of<P>(ds, dx, dresidual), [=] __device__(auto p) {
		const auto d = ds[p];

		if (dx)
			dx.put(p, d);
		if (dresidual && pitch == width)
			dresidual.put(p, d);
		else if (dresidual)
			dresidual.put(decltype(p){ p.first + p.first / width * (pitch - width) },
				      d);
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

/* A thread's partial sums of dw and db. */
template <typename R, typename S> struct weight_sums {
	row_slice<R, S> dw, db;

	__device__ void add(const row_slice<R, S> &n, const row_slice<R, S> &dy)
	{
		each_number<S>([&](int k, int i) {
			dw.of[k][i] += dy.of[k][i] * n.of[k][i];
			db.of[k][i] += dy.of[k][i];
		});
	}
	/*
	 * Loads the columns from at.first on of dw, and of db, which starts `width` elements later.
	 */
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

/* Adds the sums of the teams of a block, in order, in shared memory. */
template <typename R, typename S>
static __device__ void add_teams(weight_sums<R, S> &sums, struct row_place at)
{
	__shared__ struct alignas(16) {
		R sums[2 * S::CHUNK];
	} shared;
	const int team = threadIdx.x / S::TEAM;

	for (int writer = S::TEAMS - 1; writer >= 0; writer--) {
		if (team == writer) {
			weight_sums<R, S> before = {};

			if (writer < S::TEAMS - 1)
				before.load(shared.sums, 2 * S::CHUNK, S::CHUNK, at);
			each_number<S>([&](int k, int i) {
				sums.dw.of[k][i] += before.dw.of[k][i];
				sums.db.of[k][i] += before.db.of[k][i];
			});
			sums.store(shared.sums, 2 * S::CHUNK, S::CHUNK, at);
		}
		__syncthreads();
	}
}

/*
 * Computes ds, and block partial sums of dw and db.  dx may be the memory of dy or ds.  SLICED:
 * residual is a slice, which takes more registers.
 */
template <typename P, typename S, bool SLICED>
static __global__ void __launch_bounds__(BLOCK)
	norm_backward_kernel(struct replicas replicas, const __grid_constant__ norm_call<P> given_m,
			     const __grid_constant__ norm_gradients<P> given_d)
{
	const auto &m = replicas.own(given_m);
	const auto &d = replicas.own(given_d);
	typedef typename P::real real;
	const int64_t first_row = (int64_t)blockIdx.x * S::TEAMS + threadIdx.x / S::TEAM;
	const real width = (real)m.width;
	real *partial = d.partial + blockIdx.x * d.columns;
	weight_sums<real, S> sums = {};

	pdl_wait();
	for (int64_t row = first_row; row < m.rows; row += (int64_t)gridDim.x * S::TEAMS) {
		const real mean = m.statistics[2 * row], inverse = m.statistics[2 * row + 1];
		real plain = 0, weighted = 0;
		row_slice<real, S> n, g;
		/* loads n and g = dy */
		const auto read = [&](struct row_place at) {
			load_stream<P>(n, m.sum(), at);
			load<P>(g, d.dy, at);
			each_number<S>(
				[&](int k, int i) { n.of[k][i] = (n.of[k][i] - mean) * inverse; });
		};
		/* g = w dy */
		const auto weigh = [&](struct row_place column) {
			row_slice<real, S> w;

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
			const struct row_place residual_at =
				SLICED ? place_of<S>(row, m.width, chunk, m.residual_pitch) : at;
			row_slice<real, S> ds = {};

			if (S::LONG) {
				read(at);
				weigh(place_of<S>(0, m.width, chunk));
			}
			if (d.ds)
				load_stream<P>(ds, d.ds, at);
			each_number<S>([&](int k, int i) {
				ds.of[k][i] +=
					(g.of[k][i] - plain - n.of[k][i] * weighted) * inverse;
			});
			put<P>(d.dx, ds, at);
			put<P>(d.dresidual, ds, residual_at);
		});
	}
	if (S::LONG || !d.columns)
		return;
	if constexpr (S::TEAMS > 1)
		add_teams(sums, place_of<S>(0, m.width, 0));
	if (threadIdx.x < S::TEAM)
		sums.store(partial, d.columns, m.width, place_of<S>(0, m.width, 0));
}

template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const norm_call<P> m = read_call<P>(c);
	const gradient_view<P> none = { { NULL, false }, false };
	const auto dw = input_gradient<P>(c, m.weight), db = input_gradient<P>(c, m.weight + 1);
	const int64_t width = m.width, widths = width | m.residual_pitch;
	norm_gradients<P> d;
	int64_t parts = 0;
	bool aligned;

	d.dy = output_gradient<P>(c, m.s ? 1 : 0);
	d.ds = m.s ? output_gradient<P>(c, 0) : none.to;
	d.dx = input_gradient<P>(c, 0);
	d.dresidual = m.s ? input_gradient<P>(c, 1) : none;
	d.partial = (real *)c->work;
	d.columns = db ? 2 * width : dw ? width : 0;
	if (m.s && !d.dy) {
		backward_sum<P>(c, m);
		return;
	}
	aligned = forward_aligned(m) &&
		  all_aligned(width, d.dy.at, d.ds.at, d.dx.to.at, d.dresidual.to.at, d.partial);
	with_shape<P>(m.rows, width, aligned, all_of<P>(m.sum(), d.ds).kind(), [&](auto shape) {
		typedef decltype(shape) S;

		if constexpr (BY_COLUMNS<S>) {
			typedef stream_type<P, S::STREAM> stream;
			typedef column_shape_of<stream> C;

			if (widths % C::N == 0)
				parts = backward_columns<C, stream>(c, m, d);
			else
				parts = backward_columns<plain_columns<stream>, stream>(c, m, d);
		} else {
			parts = norm_parts(context_of(c)->sm_count, m.rows, S::TEAMS,
					   NORM_BLOCKS_PER_SM);
			if (parts)
				launch_for(c,
					   m.residual_pitch == width
						   ? norm_backward_kernel<P, S, false>
						   : norm_backward_kernel<P, S, true>,
					   (unsigned)parts, BLOCK, 0, m, d);
		}
	});
	if (d.columns)
		finish_columns(c, parts, d.columns, (const real *)d.partial,
			       [=] __device__(int64_t column, real sum) {
				       if (column >= width)
					       db.put(column - width, sum);
				       else if (dw)
					       dw.put(column, sum);
			       });
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int sms)
{
	const int64_t width = tensor_dim(n->in[0], -1), rows = tensor_count(n->in[0]) / width;

	return pass == PASS_BACKWARD
		       ? (size_t)(norm_parts(sms, rows, 1, MAX_BLOCKS_PER_SM) * 2 * width) *
				 sizeof(typename P::real)
		       : 0;
}

KERNELS(norm, forward<P>, backward<P>, recompute<P>, NULL, workspace<P>)
KERNELS(norm_residual, forward<P>, backward<P>, recompute<P>, NULL, workspace<P>)
