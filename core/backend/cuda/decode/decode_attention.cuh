/*
 * decode_attention - attention of one query per example to the keys of a cache.
 * kernels/attention.cu has the formulas.
 *
 * Reading keys and values once takes the time.  So a block serves all heads that share a key and a
 * value, and the keys of an example are shared out among blocks: part number p takes chunks p,
 * p + parts, .. of the keys.  How many parts there are depends on shapes alone.  How many tokens
 * are in the cache is read on the device: a captured launch serves any number, and a part without
 * keys leaves at once.
 *
 * A team of lanes takes one key at a time, each lane a few channels of it.  A warp serves ROWS
 * heads; other heads of a block belong to other warps (tiles), which find the same keys in the
 * cache of the multiprocessor.  Warps with the same heads (slices) and the teams of a warp take
 * different keys.  Each team keeps a running softmax.  Teams and slices are joined in a fixed
 * order, and so are parts, by the block that arrives last.  Where a block has one head, its teams
 * take parts as they took keys, and go on as after keys: with code of its own, which few blocks
 * run, joining took four times as long.
 *
 * Many heads that share keys in bfloat16 go to tensor cores (decode_tensor.cuh).  There a kernel of
 * its own joins the parts, since they are large.
 */
#ifndef CUDA_DECODE_DECODE_ATTENTION_CUH
#define CUDA_DECODE_DECODE_ATTENTION_CUH

#include "core/backend/cuda/attention/attention.cuh"
#include "core/backend/cuda/primitives/ptx.cuh"

/* ---------------------------------------------------------------------- shapes */

/*
 * T: type of keys and values in memory.  Teams of LANES lanes; a lane has KC channels of a key and
 * VC of a value, in pieces of VEC16 neighbours.  ROWS heads of a warp, KEYS keys of a team at a
 * time; read from memory, or by way of STAGES stages (decode_stages.cuh).
 */
template <typename P_, typename T_, int VEC16_, int LANES_, int KC_, int VC_, int ROWS_, int KEYS_,
	  int STAGES_ = 0>
struct decode_shape {
	typedef P_ P;
	typedef T_ T;
	typedef typename P::real real;

	static constexpr int VEC16 = VEC16_, LANES = LANES_, KC = KC_, VC = VC_, ROWS = ROWS_;
	static constexpr int KEYS = KEYS_, TEAMS = WARP / LANES;
	static constexpr int KEY = LANES * KC, VALUE = LANES * VC; /* widths that fit */
	static constexpr bool ANY = VEC16 == 1; /* any layout and type, and the band */
	static constexpr bool TENSOR = false;
	static constexpr int WARP_KEYS = KEYS * TEAMS; /* of a chunk */
	static constexpr int STAGES = STAGES_, STAGE = WARP_KEYS * (KEY + VALUE) * (int)sizeof(T);
	static constexpr int WARPS = ANY ? 4 : 8; /* of a block, at most */
	/*
	 * Blocks of so many warps that a multiprocessor has at a time: for heads of their own,
	 * three, or six of four warps; fewer where stages leave no room.
	 */
	static constexpr int RESIDENT = sizeof(T) == 2 && KC == 8 && ROWS == 1 ? 3 : 1;

	static __device__ int channel(int lane, int e)
	{
		return (e / VEC16 * LANES + lane) * VEC16 + e % VEC16;
	}
	/* Where a stage has piece n of the lanes' keys number u, and values. */
	static __device__ int key_vec(int u, int n)
	{
		return (u * (KC / VEC16) + n) * WARP * 16;
	}
	static __device__ int value_vec(int u, int n)
	{
		return (KEYS * (KC / VEC16) + u * (VC / VEC16) + n) * WARP * 16;
	}
};

#define DECODE_MAX_SPLITS 64
#define DECODE_MAX_SLICES 4
#define DECODE_MANY_UNITS 128 /* more or less one for each multiprocessor */

/* The chunks of a part: where the first one begins, where the keys end, and how far apart chunks
 * are. */
struct decode_keys {
	int begin, end, step;
};

/* Warps of a block: tiles of heads, times slices of keys. */
template <typename X> struct decode_layout {
	int units;   /* blocks for the heads of an example */
	int sharing; /* heads that share a key and a value */
	int tiles, slices;
	int chunk, parts; /* keys of a block at a time; blocks for all keys */

	__host__ __device__ int rows() const
	{
		return tiles * X::ROWS;
	}
	/* A row: VALUE sums, the largest score, and the sum of exponentials; whole pieces for
	 * decode_take_parts(). */
	__host__ __device__ int64_t row_size() const
	{
		return X::VALUE + (X::ROWS == 1 ? 16 / (int)sizeof(typename X::real) : 2);
	}
	/* Of shared memory: the rows of slices; or the last two numbers of all parts. */
	__host__ __device__ int64_t results_size() const
	{
		const int64_t slices_size = slices * row_size(), parts_size = 2 * parts;

		return (slices_size > parts_size ? slices_size : parts_size) * rows();
	}
	/* Parts that have keys, for a query at position i. */
	__device__ int used_parts(int64_t i) const
	{
		const int chunks = (int)i / chunk + 1;

		return chunks < parts ? chunks : parts;
	}
	__device__ struct decode_keys keys(int part, int64_t i) const
	{
		return { part * chunk, (int)i + 1, parts * chunk };
	}
	int bytes() const
	{
		const int results =
			(int)((results_size() + 2 * rows()) * (int64_t)sizeof(typename X::real));
		const int stages = tiles * slices * X::STAGES * X::STAGE;

		return results > stages ? results : stages;
	}
};

static inline int64_t common_divisor(int64_t a, int64_t b)
{
	return b ? common_divisor(b, a % b) : a;
}

/*
 * Few units need many parts: a GPU runs `at_once` blocks.  Many need some, so that the last blocks
 * are short, but each part costs some time: it has about 8 chunks at least.
 */
static inline int64_t decode_parts(int64_t units, int64_t chunks, int64_t at_once)
{
	const bool few = units < DECODE_MANY_UNITS;
	const int64_t wanted = ((few ? at_once : 4096) + units - 1) / units;
	const int64_t most = wanted < DECODE_MAX_SPLITS ? wanted : DECODE_MAX_SPLITS;
	const int64_t possible = few ? chunks : (chunks + 7) / 8;

	return possible < most ? possible : most;
}

template <typename X> static decode_layout<X> decode_layout_of(const struct node *n)
{
	const struct tensor *q = n->in[Q], *k = n->in[K], *v = n->in[V];
	const int64_t H = q->dim[2], B = q->dim[0];
	const int64_t sharing = common_divisor(H / k->dim[2], H / v->dim[2]);
	const int64_t tiles = (sharing + X::ROWS - 1) / X::ROWS;
	/* On an H200; stages leave room for two on a multiprocessor. */
	const int64_t at_once = X::STAGES > 0 ? 256 : 512;
	decode_layout<X> l;

	l.sharing = (int)sharing;
	l.tiles = (int)(tiles < X::WARPS ? tiles : X::WARPS);
	static_assert(X::WARPS / 2 <= DECODE_MAX_SLICES);
	l.slices = l.tiles == 1 ? DECODE_MAX_SLICES : X::WARPS / l.tiles;
	l.units = (int)(H / sharing * ((sharing + l.rows() - 1) / l.rows()));
	l.chunk = l.slices * X::WARP_KEYS;
	/* Where there are more units than counters, each has one part. */
	l.parts = B * l.units > ARRIVAL_COUNTERS
			  ? 1
			  : (int)decode_parts(B * l.units, (k->dim[1] + l.chunk - 1) / l.chunk,
					      at_once);
	return l;
}

template <typename X> struct decode_problem {
	typedef typename X::P P;
	typedef typename X::real real;

	decode_layout<X> layout;
	const struct run *run;
	int H, key_width, value_width;
	input_view<P> q, k, v, recent;
	bool q_vectorized; /* of 16 bytes, of the keys' type */
	struct heads q_layout, k_layout, v_layout, recent_layout, bias_layout, o_layout;
	real scale;	      /* of scores in powers of two */
	const real *key_bias; /* or NULL */
	bool alibi;
	int64_t band_window; /* < 0: no band */
	real constant_band;
	const real *learned_band; /* or NULL */
	output_view<P> o;
	real *lse;
	real *partial;	    /* [B, units, parts, rows, row_size] */
	unsigned *arrivals; /* [B, units]: 0 before and after */

	__device__ real band() const
	{
		return learned_band ? *learned_band : constant_band;
	}
};

/* ------------------------------------------------------------------ in registers */

/* What a lane has of a key or value. */
template <typename X, int C> struct decode_channels {
	typedef typename X::P P;
	typedef typename X::T T;

	alignas(16) T x[C];

	/* Of the row that begins at element `at`. */
	__device__ void read(const input_view<P> &from, int64_t at, int lane, int width)
	{
		if constexpr (X::ANY) {
#pragma unroll
			for (int e = 0; e < C; e++)
				x[e] = X::channel(lane, e) < width ? from[at + X::channel(lane, e)]
								   : 0;
		} else {
#pragma unroll
			for (int n = 0; n < C / X::VEC16; n++) {
				const int channel = X::channel(lane, n * X::VEC16);
				vec16 vec = {};

				if (channel < width)
					vec = *(const vec16 *)((const T *)from.at + at + channel);
				((vec16 *)x)[n] = vec;
			}
		}
	}
	/* As products read it. */
	__device__ typename P::real operator[](int e) const
	{
		return (typename P::real)(typename P::factor)x[e];
	}
};

/* The running softmax of a head: sums of a lane's channels, largest score, sum of exponentials. */
template <typename X> struct decode_row {
	typedef typename X::real real;

	alignas(16) real o[X::VC];
	real most, sum;

	__device__ void clear()
	{
		/* Less than any score, and so that differences are numbers. */
		most = sizeof(real) == sizeof(double) ? (real)-1e300 : (real)-1e37;
		sum = 0;
#pragma unroll
		for (int e = 0; e < X::VC; e++)
			o[e] = 0;
	}
	__device__ void shrink(real larger)
	{
		const real factor = exp2(most - larger);

		most = larger;
		sum *= factor;
#pragma unroll
		for (int e = 0; e < X::VC; e++)
			o[e] *= factor;
	}
	__device__ void add(const real (&score)[X::KEYS],
			    const decode_channels<X, X::VC> (&v)[X::KEYS])
	{
		real larger = most;

#pragma unroll
		for (int u = 0; u < X::KEYS; u++)
			larger = score[u] > larger ? score[u] : larger;
		shrink(larger);
#pragma unroll
		for (int u = 0; u < X::KEYS; u++) {
			const real p = exp2(score[u] - larger);

			sum += p;
#pragma unroll
			for (int e = 0; e < X::VC; e++)
				o[e] += p * v[u][e];
		}
	}
	__device__ void join(struct decode_row other)
	{
		const real larger = other.most > most ? other.most : most;

		shrink(larger);
		other.shrink(larger);
		sum += other.sum;
#pragma unroll
		for (int e = 0; e < X::VC; e++)
			o[e] += other.o[e];
	}
	/* With the same channels of another team of the warp. */
	__device__ void join(int distance)
	{
		const real other_most = __shfl_xor_sync(0xffffffffu, most, distance);
		const real larger = other_most > most ? other_most : most;

		shrink(larger);
		sum += __shfl_xor_sync(0xffffffffu, sum, distance);
#pragma unroll
		for (int e = 0; e < X::VC; e++)
			o[e] += __shfl_xor_sync(0xffffffffu, o[e], distance);
	}
};

/* Where a warp works. */
template <typename X> struct decode_place {
	int lane, team, slice;
	int64_t b;
	int first; /* head of row 0 */
	int rows;  /* heads; may be 0 */
	int row;   /* of the block: row 0 of the warp */
	int64_t i; /* position of the query */

	__device__ explicit decode_place(const decode_problem<X> &p)
	{
		const decode_layout<X> &l = p.layout;
		const int warp = (int)threadIdx.x / WARP, tile = warp % l.tiles;
		const int per_group = (l.sharing + l.rows() - 1) / l.rows();
		const int unit = (int)blockIdx.x % l.units, inside = unit % per_group * l.rows();

		lane = (int)threadIdx.x % X::LANES;
		team = (int)threadIdx.x % WARP / X::LANES;
		slice = warp / l.tiles;
		b = blockIdx.x / l.units;
		row = tile * X::ROWS;
		first = unit / per_group * l.sharing + inside + row;
		rows = l.sharing - inside - row;
		rows = rows < 0 ? 0 : rows > X::ROWS ? X::ROWS : rows;
		i = p.run->past;
	}
	/* The team's key number u of the chunk that begins with key `first`; it may come after the
	 * query's own. */
	__device__ int place(int first, int u) const
	{
		return first + slice * X::WARP_KEYS + team + u * X::TEAMS;
	}
	/* What is read for it.  If it comes after, that is the query's own, and the score does not
	 * count. */
	__device__ int key(int first, int u) const
	{
		const int j = place(first, u);

		return j < (int)i ? j : (int)i;
	}
};

/* ------------------------------------------------------------------------ scores */

template <typename X> struct decode_queries {
	typedef typename X::P P;
	typedef typename X::real real;

	real q[X::ROWS][X::KC];
	real slope[X::ROWS];
	real own_key[X::ANY ? X::KC : 1]; /* of the query's token, times the weight of the band */

	__device__ decode_queries(const decode_problem<X> &p, const decode_place<X> &x)
	{
#pragma unroll
		for (int r = 0; r < X::ROWS; r++) {
			const int64_t at = p.q_layout.at(x.b, x.first + r, 0);

			slope[r] = p.alibi ? (real)(alibi_slope(x.first + r, p.H) * M_LOG2E) : 0;
			if (!X::ANY && p.q_vectorized) {
				load_vecs(p, x, at, r);
				continue;
			}
#pragma unroll
			for (int e = 0; e < X::KC; e++) {
				const int channel = X::channel(x.lane, e);

				q[r][e] = r < x.rows && channel < p.key_width
						  ? p.scale * (real)(typename P::factor)
								      p.q[at + channel]
						  : 0;
			}
		}
		if constexpr (X::ANY) {
			decode_channels<X, X::KC> k = {};

			if (p.band_window >= 0 && x.rows > 0)
				k.read(p.k, p.k_layout.at(x.b, x.first, x.i), x.lane, p.key_width);
			for (int e = 0; e < X::KC; e++)
				own_key[e] = p.band_window < 0 ? 0 : k[e] * p.scale * p.band();
		}
	}

	/* All accesses are under way together. */
	__device__ void load_vecs(const decode_problem<X> &p, const decode_place<X> &x, int64_t at,
				  int r)
	{
		decode_channels<X, X::KC> vecs = {};

		if (r < x.rows)
			vecs.read(p.q, at, x.lane, p.key_width);
#pragma unroll
		for (int e = 0; e < X::KC; e++)
			q[r][e] = p.scale * vecs[e];
	}

	/* What the lane contributes to the score of head r and a key at position j. */
	__device__ real share(const decode_problem<X> &p, const decode_place<X> &x, int r,
			      int64_t j, const decode_channels<X, X::KC> &k) const
	{
		real sum = 0;

#pragma unroll
		for (int e = 0; e < X::KC; e++)
			sum += q[r][e] * k[e];
		if constexpr (X::ANY) {
			const int64_t first = x.i + 1 - p.recent_layout.T;

			if (p.band_window < 0 || x.i - j > p.band_window || j > x.i)
				return sum;
			decode_channels<X, X::KC> recent;

			recent.read(p.recent, p.recent_layout.at(x.b, x.first + r, j - first),
				    x.lane, p.key_width);
#pragma unroll
			for (int e = 0; e < X::KC; e++)
				sum += own_key[e] * recent[e];
		}
		return sum;
	}
};

/*
 * The warp's keys and values of the chunk that begins with key `first`, but not those of the
 * query's own token, which may not be written yet.
 */
template <typename X>
static __device__ void prefetch_keys(const decode_problem<X> &p, const decode_place<X> &x,
				     int first)
{
	typedef typename X::T T;
	constexpr int LINE = 64 / (int)sizeof(T); /* channels that one access brings */

	if (X::ANY || x.rows == 0)
		return;
	const T *k = (const T *)p.k.at + p.k_layout.at(x.b, x.first, 0);
	const T *v = (const T *)p.v.at + p.v_layout.at(x.b, x.first, 0);

	for (int n = (int)threadIdx.x % WARP; n < 2 * X::WARP_KEYS; n += WARP) {
		const int64_t j = first + x.slice * X::WARP_KEYS + n / 2;
		const T *row =
			n % 2 ? v + j * (int)p.v_layout.pitch : k + j * (int)p.k_layout.pitch;
		const int width = n % 2 ? p.value_width : p.key_width;

		if (j >= x.i)
			return;
		for (int channel = 0; channel < width; channel += LINE)
			prefetch_l2(row + channel);
	}
}

#include "core/backend/cuda/decode/decode_stages.cuh"

/* What a team has of some keys and values. */
template <typename X> struct decode_vecs {
	decode_channels<X, X::KC> k[X::KEYS];
	decode_channels<X, X::VC> v[X::KEYS];

	__device__ void read(const decode_problem<X> &p, const decode_place<X> &x, int first)
	{
		const int64_t k_at = p.k_layout.at(x.b, x.first, 0),
			      v_at = p.v_layout.at(x.b, x.first, 0);

#pragma unroll
		for (int u = 0; u < X::KEYS; u++) {
			const int64_t j = x.key(first, u);

			k[u].read(p.k, k_at + j * (int)p.k_layout.pitch, x.lane, p.key_width);
			v[u].read(p.v, v_at + j * (int)p.v_layout.pitch, x.lane, p.value_width);
		}
	}
	__device__ void read(const char *stage)
	{
		stage += threadIdx.x % WARP * 16;
#pragma unroll
		for (int u = 0; u < X::KEYS; u++) {
#pragma unroll
			for (int n = 0; n < X::KC / X::VEC16; n++)
				((vec16 *)k[u].x)[n] = *(const vec16 *)(stage + X::key_vec(u, n));
#pragma unroll
			for (int n = 0; n < X::VC / X::VEC16; n++)
				((vec16 *)v[u].x)[n] = *(const vec16 *)(stage + X::value_vec(u, n));
		}
	}
};

/* The keys of a part, for the heads of a warp. */
template <typename X>
static __device__ void decode_walk(const decode_problem<X> &p, const decode_place<X> &x,
				   decode_stages<X> &stages, decode_row<X> (&row)[X::ROWS])
{
	typedef typename X::real real;
	const decode_queries<X> queries(p, x);
	const int64_t bias_at = p.key_bias ? p.bias_layout.at(x.b, x.first, 0) : 0;
	const int i = (int)x.i;

	for (int first = stages.keys.begin; first < stages.keys.end; first += stages.keys.step) {
		decode_vecs<X> vecs;
		real bias[X::KEYS];

		if constexpr (X::STAGES > 0)
			vecs.read(stages.oldest());
		else
			vecs.read(p, x, first);
#pragma unroll
		for (int u = 0; u < X::KEYS; u++)
			bias[u] = !p.key_bias
					  ? 0
					  : p.key_bias[bias_at +
						       x.key(first, u) * (int)p.bias_layout.pitch] *
						    (real)M_LOG2E;
#pragma unroll
		for (int r = 0; r < X::ROWS; r++) {
			real score[X::KEYS];

			if (r >= x.rows)
				break;
#pragma unroll
			for (int u = 0; u < X::KEYS; u++) {
				const int j = x.place(first, u);
				real s = queries.share(p, x, r, j, vecs.k[u]);

				for (int distance = X::LANES / 2; distance > 0; distance /= 2)
					s += __shfl_xor_sync(0xffffffffu, s, distance);
				s += bias[u] - queries.slope[r] * (real)(i - j);
				score[u] = j <= i ? s : (real)-INFINITY;
			}
			row[r].add(score, vecs.v);
		}
		if constexpr (X::STAGES > 0)
			stages.next();
	}
}

#include "core/backend/cuda/decode/decode_mma.cuh"

/* -------------------------------------------------------------------------- joining */

template <typename X>
static __device__ void decode_finish(const decode_problem<X> &p, const decode_place<X> &block,
				     int row, int channel, typename X::real o,
				     typename X::real most, typename X::real sum)
{
	typedef typename X::real real;
	const int head = block.first - block.row + row;

	if ((block.first - block.row) % p.layout.sharing + row >= p.layout.sharing)
		return;
	p.o[p.o_layout.at(block.b, head, 0) + channel] = o / sum;
	if (channel == 0)
		p.lse[block.b * p.H + head] = (most + log2(sum)) * (real)M_LN2;
}

/* put(row, channel, sum of values, largest score, sum of exponentials) of all slices, for all rows
 * of a block. */
template <typename X, typename F>
static __device__ void decode_join_slices(const decode_problem<X> &p,
					  const typename X::real *shared, F put)
{
	typedef typename X::real real;
	const decode_layout<X> &l = p.layout;

	for (int item = (int)threadIdx.x; item < l.rows() * X::VALUE; item += (int)blockDim.x) {
		const int row = item / X::VALUE, channel = item % X::VALUE;
		const real *slice = shared + row * (int)l.row_size();
		real most[DECODE_MAX_SLICES], sums[DECODE_MAX_SLICES], values[DECODE_MAX_SLICES];
		real larger = slice[X::VALUE], sum = 0, value = 0;

		if (channel >= p.value_width)
			continue;
#pragma unroll
		for (int k = 0; k < DECODE_MAX_SLICES; k++, slice += l.rows() * l.row_size()) {
			const bool used = k < l.slices;

			most[k] = used ? slice[X::VALUE] : larger;
			sums[k] = used ? slice[X::VALUE + 1] : 0;
			values[k] = used ? slice[channel] : 0;
			larger = most[k] > larger ? most[k] : larger;
		}
#pragma unroll
		for (int k = 0; k < DECODE_MAX_SLICES; k++) {
			const real weight = exp2(most[k] - larger);

			sum += weight * sums[k];
			value += weight * values[k];
		}
		put(row, channel, value, larger, sum);
	}
}

/*
 * What parts have for each row: sums of values, and in shared memory (largest score, sum of
 * exponentials).  Other blocks wrote the sums, so they must not come from a cache of this
 * multiprocessor.
 */
template <typename X> struct decode_parts_results {
	typedef typename X::real real;

	static constexpr int BATCH = 16; /* parts whose values are under way together */
	struct batch {
		real value[BATCH];
	};

	const real *at;
	real *pair, *total;	   /* total: of each row, the pair of all parts */
	int64_t apart, pair_apart; /* from one part to the next */
	int64_t pair_row;	   /* from one row to the next */
	int n;			   /* parts */

	__device__ struct batch read(int first, int channel) const
	{
		struct batch x;

#pragma unroll
		for (int k = 0; k < BATCH; k++) {
			const real *from = at + (first + k) * apart + channel;

			x.value[k] = first + k < n ? __ldcg(from) : 0;
		}
		return x;
	}
	/* A warp takes a row.  The largest score of a part gives way to the weight of its values.
	 */
	__device__ void weigh(int rows) const
	{
		const int lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;

		for (int row = (int)threadIdx.x / WARP; row < rows; row += warps) {
			real *mine = pair + row * pair_row, most = -INFINITY, sum = 0;

			for (int k = lane; k < n; k += WARP)
				most = mine[k * pair_apart] > most ? mine[k * pair_apart] : most;
			most = warp_reduce(most, larger_value());
			for (int k = lane; k < n; k += WARP) {
				const real weight = exp2(mine[k * pair_apart] - most);

				sum += weight * mine[k * pair_apart + 1];
				mine[k * pair_apart] = weight;
			}
			sum = warp_sum(sum);
			if (lane == 0) {
				total[2 * row] = most;
				total[2 * row + 1] = sum;
			}
		}
		__syncthreads();
	}
	/* begin: the first batch. */
	__device__ real values(int row, int channel, struct batch begin) const
	{
		const real *weight = pair + row * pair_row;
		real sum = 0;

		for (int first = 0; first < n; first += BATCH) {
			const struct batch x = first > 0 ? read(first, channel) : begin;

#pragma unroll
			for (int k = 0; k < BATCH; k++)
				if (first + k < n)
					sum += weight[(first + k) * pair_apart] * x.value[k];
		}
		return sum;
	}
};

/* The pairs of all parts of a unit, to shared memory [parts, rows, 2]: all are read at once. */
template <typename X>
static __device__ void decode_read_pairs(const decode_problem<X> &p, const typename X::real *unit,
					 int parts, typename X::real *shared)
{
	const int lines = parts * p.layout.rows();

	for (int line = (int)threadIdx.x; line < lines; line += (int)blockDim.x) {
		const typename X::real *pair = unit + line * p.layout.row_size() + X::VALUE;

		shared[2 * line] = __ldcg(pair);
		shared[2 * line + 1] = __ldcg(pair + 1);
	}
}

/* Of a unit with several rows. */
template <typename X>
static __device__ void decode_join_parts(const decode_problem<X> &p, const decode_place<X> &place,
					 const typename X::real *unit, int parts,
					 typename X::real *shared)
{
	const decode_layout<X> &l = p.layout;
	typename X::real *total = shared + l.results_size();
	const decode_parts_results<X> results = {
		unit, shared, total, l.rows() * l.row_size(), 2 * l.rows(), 2, parts
	};

	decode_read_pairs(p, unit, parts, shared);
	__syncthreads();
	results.weigh(l.rows());
	for (int item = (int)threadIdx.x; item < l.rows() * X::VALUE; item += (int)blockDim.x) {
		const int row = item / X::VALUE, channel = item % X::VALUE;
		auto mine = results;

		if (channel >= p.value_width)
			continue;
		mine.at += row * l.row_size();
		decode_finish(p, place, row, channel,
			      mine.values(row, channel, mine.read(0, channel)), total[2 * row],
			      total[2 * row + 1]);
	}
}

/* What all teams of a warp have, row by row to shared memory [slices, rows, row_size]. */
template <typename X>
static __device__ void decode_put_slice(const decode_problem<X> &p, const decode_place<X> &x,
					decode_row<X> (&row)[X::ROWS], typename X::real *shared)
{
#pragma unroll
	for (int r = 0; r < X::ROWS; r++)
		for (int distance = X::LANES; distance < WARP; distance *= 2)
			row[r].join(distance);
	if (x.team > 0)
		return;
#pragma unroll
	for (int r = 0; r < X::ROWS; r++) {
		typename X::real *to =
			shared + (x.slice * p.layout.rows() + x.row + r) * p.layout.row_size();

#pragma unroll
		for (int e = 0; e < X::VC; e++)
			to[X::channel(x.lane, e)] = row[r].o[e];
		if (x.lane == 0) {
			to[X::VALUE] = row[r].most;
			to[X::VALUE + 1] = row[r].sum;
		}
	}
}

/*
 * Of a unit with one row, and so with one tile: each team takes some parts, as if they were keys.
 * All are read at once, and not from a cache of this multiprocessor, since other blocks wrote them.
 */
template <typename X>
static __device__ void decode_take_parts(const decode_problem<X> &p, const decode_place<X> &x,
					 const typename X::real *unit, int parts,
					 typename X::real *shared)
{
	typedef typename X::real real;
	constexpr int TEAMS = DECODE_MAX_SLICES * X::TEAMS,
		      MAX = (DECODE_MAX_SPLITS + TEAMS - 1) / TEAMS;
	constexpr int AT_ONCE = 16 / (int)sizeof(real); /* numbers */
	decode_row<X> part[MAX], row[1];

	static_assert(X::ROWS == 1 && X::VEC16 % AT_ONCE == 0);
#pragma unroll
	for (int k = 0; k < MAX; k++) {
		const int number = k * TEAMS + x.slice * X::TEAMS + x.team;
		const real *from = unit + number * p.layout.row_size();
		alignas(16) real pair[AT_ONCE];

		part[k].clear();
		if (number >= parts)
			continue;
#pragma unroll
		for (int e = 0; e < X::VC; e += AT_ONCE)
			*(uint4 *)(part[k].o + e) =
				__ldcg((const uint4 *)(from + X::channel(x.lane, e)));
		*(uint4 *)pair = __ldcg((const uint4 *)(from + X::VALUE));
		part[k].most = pair[0];
		part[k].sum = pair[1];
	}
	row[0] = part[0];
#pragma unroll
	for (int k = 1; k < MAX; k++)
		row[0].join(part[k]);
	decode_put_slice(p, x, row, shared);
}

/* -------------------------------------------------------------------------- kernel */

/* The rows of a block after its part, slice by slice to shared memory. */
template <typename X>
static __device__ void decode_part(const decode_problem<X> &p, const decode_place<X> &x,
				   decode_stages<X> &stages, typename X::real *shared)
{
	decode_row<X> row[X::ROWS];

#pragma unroll
	for (int r = 0; r < X::ROWS; r++)
		row[r].clear();
	if (x.rows > 0)
		decode_walk(p, x, stages, row);
	if (X::STAGES > 0)
		__syncthreads(); /* results take the place of stages */
	decode_put_slice(p, x, row, shared);
}

template <typename X>
static __global__ void __launch_bounds__(X::WARPS *WARP, X::RESIDENT)
	decode_kernel(const __grid_constant__ decode_problem<X> p)
{
	typedef typename X::real real;
	const decode_layout<X> &l = p.layout;
	const decode_place<X> x(p); /* the run's values were there before its first kernel */

	const int part = (int)blockIdx.y, parts = l.used_parts(x.i);

	decode_stages<X> stages(p, x, l.keys(part, x.i), dynamic_smem());

	if constexpr (X::STAGES > 0)
		stages.begin();
	else
		prefetch_keys(p, x, stages.keys.begin);
	pdl_wait();
	const int64_t block_size = l.rows() * l.row_size();
	real *shared = (real *)dynamic_smem();
	real *unit = p.partial + (int64_t)blockIdx.x * l.parts * block_size;

	if (part >= parts)
		return;
	if constexpr (X::STAGES > 0)
		stages.fill();
	decode_part(p, x, stages, shared);
	/* A part, and then, in the block that arrives last, all parts. */
	for (bool all = parts == 1;; all = true) {
		__syncthreads();
		decode_join_slices(p, shared, [&](int r, int channel, real o, real most, real sum) {
			real *to = unit + part * block_size + r * l.row_size();

			if (all) {
				decode_finish(p, x, r, channel, o, most, sum);
				return;
			}
			to[channel] = o;
			if (channel == 0) {
				to[X::VALUE] = most;
				to[X::VALUE + 1] = sum;
			}
		});
		if (X::TENSOR || all || !is_last_block(p.arrivals + blockIdx.x, (unsigned)parts))
			return;
		if constexpr (X::ROWS > 1)
			return decode_join_parts(p, x, unit, parts, shared);
		else
			decode_take_parts(p, x, unit, parts, shared);
	}
}

/* Joins the parts of row blockIdx.y of a unit, a thread for each channel. */
template <typename X>
static __global__ void decode_join_kernel(const __grid_constant__ decode_problem<X> p)
{
	typedef typename X::real real;
	__shared__ real pair[2 * DECODE_MAX_SPLITS], total[2];
	const decode_layout<X> &l = p.layout;
	const decode_place<X> x(p);
	const int row = (int)blockIdx.y, channel = (int)threadIdx.x, parts = l.used_parts(x.i);
	const int64_t block_size = l.rows() * l.row_size();
	const real *unit =
		p.partial + (int64_t)blockIdx.x * l.parts * block_size + row * l.row_size();

	const decode_parts_results<X> results = { unit, pair, total, block_size, 2, 0, parts };

	pdl_wait();
	if (parts == 1)
		return;
	const auto begin = results.read(0, channel);

	for (int k = (int)threadIdx.x; k < parts; k += (int)blockDim.x) {
		pair[2 * k] = unit[k * block_size + X::VALUE];
		pair[2 * k + 1] = unit[k * block_size + X::VALUE + 1];
	}
	__syncthreads();
	results.weigh(1);
	if (channel < p.value_width)
		decode_finish(p, x, row, channel, results.values(0, channel, begin), total[0],
			      total[1]);
}

/* -------------------------------------------------------------------------- passes */

template <typename P> static int64_t factor_size(const struct tensor *t)
{
	return (int64_t)(is_bf16(t) ? sizeof(typename P::factor) : sizeof(typename P::real));
}

/* Can rows of heads be read 16 bytes at a time? */
template <typename P> static bool is_vectorized(const struct tensor *t)
{
	const int64_t vec = 16 / factor_size<P>(t);

	return t->dim[3] % vec == 0 && heads_of(t, t->dim[2]).pitch % vec == 0 &&
	       t->offset % vec == 0;
}

template <typename P> struct decode_shapes {
	typedef typename P::real real;

	static constexpr bool IS_DOUBLE = sizeof(real) == sizeof(double);
	static constexpr int C = IS_DOUBLE ? 8 : 16, ROWS = IS_DOUBLE ? 2 : 4;

	/* All that the others do not take. */
	typedef decode_shape<P, real, 1, WARP, C, C, ROWS, 1> any;

	/* Heads of their own keys, few and many; of keys twice as wide; and heads that share keys.
	 */
	template <typename T>
	using one = decode_shape<P, T, 16 / sizeof(T), 8, 8, 8, 1, 4, sizeof(T) == 2 ? 6 : 0>;
	template <typename T>
	using one_of_many =
		decode_shape<P, T, 16 / sizeof(T), 8, 8, 8, 1, 4, sizeof(T) == 2 ? 2 : 0>;
	template <typename T>
	using wide_key = decode_shape<P, T, 16 / sizeof(T), 8, 16, 8, 1, IS_DOUBLE ? 2 : 4>;
	template <typename T> using shared = decode_shape<P, T, 16 / sizeof(T), 16, 8, 8, ROWS, 2>;
};

#define DECODE_TENSOR_HEADS 4 /* from here on they share keys on tensor cores */

template <typename X> static bool decode_fits(const struct node *n)
{
	return n->in[K]->dim[3] <= X::KEY && n->in[V]->dim[3] <= X::VALUE;
}

template <typename P, typename T, typename F> static bool with_vectors(const struct node *n, F f)
{
	typedef decode_shapes<P> shapes;
	typedef typename shapes::template one<T> one;
	typedef typename shapes::template wide_key<T> wide_key;
	typedef typename shapes::template shared<T> shared;
	typedef decode_tensor_shape<P> tensor;
	const int64_t H = n->in[Q]->dim[2];
	const int64_t sharing = common_divisor(H / n->in[K]->dim[2], H / n->in[V]->dim[2]);
	const bool shares = sharing > 1;

	if constexpr (ROUNDS<P> && sizeof(T) == sizeof(typename P::factor))
		if (sharing >= DECODE_TENSOR_HEADS && !n->in[KEY_BIAS] && is_bf16(n->in[Q]) &&
		    is_vectorized<P>(n->in[Q]) && decode_fits<tensor>(n)) {
			f(tensor());
			return true;
		}
	if (!shares && decode_fits<one>(n) && n->in[Q]->dim[0] * H < DECODE_MANY_UNITS)
		f(one());
	else if (!shares && decode_fits<one>(n))
		f(typename shapes::template one_of_many<T>());
	else if (!shares && decode_fits<wide_key>(n))
		f(wide_key());
	else if (decode_fits<shared>(n))
		f(shared());
	else
		return false;
	return true;
}

/* f(shape) for the node. */
template <typename P, typename F> static void with_decode_shape(const struct node *n, F f)
{
	const struct attention_attr *a = (const struct attention_attr *)n->attr;
	const struct tensor *k = n->in[K], *v = n->in[V];
	bool done = false;

	if (a->band_window < 0 && is_bf16(k) == is_bf16(v) && is_vectorized<P>(k) &&
	    is_vectorized<P>(v))
		done = is_bf16(k) ? with_vectors<P, typename P::factor>(n, f)
				  : with_vectors<P, typename P::real>(n, f);
	if (!done)
		f(typename decode_shapes<P>::any());
}

template <typename P> struct decode {
	/*
	 * Nodes of one query per example, to a cache, of which only the query's own row is written
	 * in this run; whether it takes a node depends on the node alone.
	 */
	static bool takes(const struct node *n)
	{
		const struct attention_attr *a = (const struct attention_attr *)n->attr;

		return n->in[Q]->dim[1] == 1 && tensor_root(n->in[K])->kind == TENSOR_STATE &&
		       tensor_root(n->in[V])->kind == TENSOR_STATE && a->route.mode != ROUTE_TOPK &&
		       a->dropout == 0 && decode_fits<typename decode_shapes<P>::any>(n);
	}

	template <typename X>
	static typename P::real *alloc(struct scratch *m, const struct node *n)
	{
		const decode_layout<X> l = decode_layout_of<X>(n);

		return m->alloc<typename P::real>(n->in[Q]->dim[0] * l.units * l.parts * l.rows() *
						  l.row_size());
	}

	template <typename X> static decode_problem<X> open(const struct call *c, struct scratch *m)
	{
		typedef typename P::real real;
		const struct node *n = c->node;
		const struct attention_attr *a = (const struct attention_attr *)n->attr;
		const int64_t H = n->in[Q]->dim[2];
		const int recent = n->in[RECENT] ? RECENT : Q;
		decode_problem<X> p = {};

		p.layout = decode_layout_of<X>(n);
		p.run = run_of(c);
		p.H = (int)H;
		p.key_width = (int)n->in[K]->dim[3];
		p.value_width = (int)n->in[V]->dim[3];
		p.q = input<P>(c, Q);
		p.k = input<P>(c, K);
		p.v = input<P>(c, V);
		p.recent = input<P>(c, recent);
		p.q_vectorized =
			is_bf16(n->in[Q]) == is_bf16(n->in[K]) && is_vectorized<P>(n->in[Q]);
		p.q_layout = heads_of(n->in[Q], H);
		p.k_layout = heads_of(n->in[K], H);
		p.v_layout = heads_of(n->in[V], H);
		p.recent_layout = heads_of(n->in[recent], H);
		p.o_layout = heads_of(n->out[O], H);
		p.scale = (real)(a->scale * M_LOG2E);
		p.key_bias = real_input<P>(c, KEY_BIAS);
		if (p.key_bias)
			p.bias_layout = heads_of(n->in[KEY_BIAS], H);
		p.alibi = a->alibi;
		p.band_window = a->band_window;
		p.constant_band = (real)a->band;
		p.learned_band = real_input<P>(c, BAND);
		p.o = output<P>(c, O);
		p.lse = real_output<P>(c, LSE);
		p.partial = alloc<X>(m, n);
		p.arrivals = context_of(c)->arrivals;
		return p;
	}

	template <typename X>
	static void join_parts(const struct call *c, const decode_problem<X> &p, unsigned units)
	{
		if (p.layout.parts == 1)
			return;
		launch_pdl(context_of(c)->pdl, decode_join_kernel<X>,
			   dim3(units, (unsigned)p.layout.rows()), X::VALUE, 0, stream_of(c), p);
		note_launch(c);
	}

	static void forward(const struct call *c)
	{
		with_decode_shape<P>(c->node, [&](auto shape) {
			typedef decltype(shape) X;
			struct scratch m = { (char *)c->work, 0 };
			const decode_problem<X> p = open<X>(c, &m);
			const decode_layout<X> &l = p.layout;
			const dim3 blocks((unsigned)(c->node->in[Q]->dim[0] * l.units),
					  (unsigned)l.parts);

			set_max_dynamic_smem(c, decode_kernel<X>, l.bytes());
			launch_pdl(context_of(c)->pdl, decode_kernel<X>, blocks,
				   l.tiles * l.slices * WARP, l.bytes(), stream_of(c), p);
			note_launch(c);
			if constexpr (X::TENSOR)
				join_parts(c, p, blocks.x);
		});
	}

	static size_t workspace(const struct node *n)
	{
		struct scratch m = { NULL, 0 };

		with_decode_shape<P>(n, [&](auto shape) { alloc<decltype(shape)>(&m, n); });
		return m.used;
	}
};

#endif
