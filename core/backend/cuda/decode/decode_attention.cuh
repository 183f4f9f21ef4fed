/*
 * decode_attention - attention of one query per sequence to a KV cache (flash decoding).
 *
 *     s_j = scale q.k_j + terms    o = sum_j softmax(s)_j v_j    lse = log sum_j exp(s_j)
 *
 * Memory bandwidth bounds it: K and V are read once. A block serves the query heads that share a
 * key/value head (GQA). Split-K: gridDim.y blocks share the keys of a sequence; split p of n takes
 * chunks p, p + n, ... The number of splits depends on shapes alone. The kernel reads the sequence
 * length on the device, so a captured graph serves any length; splits without keys exit at once.
 *
 * Within a warp, LANES_PER_KEY lanes form a lane group that processes one key at a time and holds a
 * few channels per lane. A warp serves HEADS_PER_WARP heads. The warps of a block form `tiles`
 * (other heads, same keys, which hit L1) times `slices` (same heads, other keys). Each lane group
 * keeps an online softmax. Lane groups, slices and splits are combined in a fixed order, so results
 * are deterministic. The last block to arrive combines the splits.
 *
 * Four or more bfloat16 heads that share keys use tensor cores (decode_mma.cuh). Their partial
 * results are large, so a second kernel, decode_attention_combine_kernel, combines the splits.
 */
#ifndef CUDA_DECODE_DECODE_ATTENTION_CUH
#define CUDA_DECODE_DECODE_ATTENTION_CUH

#include "core/backend/cuda/attention/attention.cuh"
#include "core/backend/cuda/primitives/ptx.cuh"

/* --------------------------------------------------------------- kernel traits */

/*
 * T: element type of K and V in memory. A lane holds K_CHANNELS channels of a key and V_CHANNELS of
 * a value, in vectors of VEC16 elements. A lane group processes KEYS_PER_GROUP keys at a time, read
 * from global memory, or from STAGES stages of shared memory (decode_stages.cuh).
 */
template <typename P_, typename T_, int VEC16_, int LANES_PER_KEY_, int K_CHANNELS_,
	  int V_CHANNELS_, int HEADS_PER_WARP_, int KEYS_PER_GROUP_, int STAGES_ = 0>
struct decode_traits {
	typedef P_ P;
	typedef T_ T;
	typedef typename P::real real;

	static constexpr int VEC16 = VEC16_, LANES_PER_KEY = LANES_PER_KEY_,
			     K_CHANNELS = K_CHANNELS_, V_CHANNELS = V_CHANNELS_,
			     HEADS_PER_WARP = HEADS_PER_WARP_;
	static constexpr int KEYS_PER_GROUP = KEYS_PER_GROUP_, LANE_GROUPS = WARP / LANES_PER_KEY;
	static constexpr int QK_DIM = LANES_PER_KEY * K_CHANNELS,
			     V_DIM = LANES_PER_KEY * V_CHANNELS; /* largest head dimensions */
	static constexpr bool GENERIC = VEC16 == 1; /* any layout and type, and the band */
	static constexpr bool USES_MMA = false;
	static constexpr int KEYS_PER_WARP = KEYS_PER_GROUP * LANE_GROUPS; /* of a chunk */
	static constexpr int STAGES = STAGES_,
			     STAGE_BYTES = KEYS_PER_WARP * (QK_DIM + V_DIM) * (int)sizeof(T);
	static constexpr int WARPS = GENERIC ? 4 : 8; /* upper bound per block */
	/*
	 * For __launch_bounds__ with WARPS warps: 3 for one bfloat16 head per warp, which is 6
	 * blocks of four warps. Shared memory for stages may allow fewer.
	 */
	static constexpr int MIN_BLOCKS_PER_SM =
		sizeof(T) == 2 && K_CHANNELS == 8 && HEADS_PER_WARP == 1 ? 3 : 1;

	static __device__ int channel(int lane, int e)
	{
		return (e / VEC16 * LANES_PER_KEY + lane) * VEC16 + e % VEC16;
	}
	/* Offset in a stage of vector n of the lane group's u-th key; value_vec(): of its value. */
	static __device__ int key_vec(int u, int n)
	{
		return (u * (K_CHANNELS / VEC16) + n) * WARP * 16;
	}
	static __device__ int value_vec(int u, int n)
	{
		return (KEYS_PER_GROUP * (K_CHANNELS / VEC16) + u * (V_CHANNELS / VEC16) + n) *
		       WARP * 16;
	}
};

#define DECODE_MAX_SPLITS 64
#define DECODE_MAX_SLICES 4

/* The chunks of a split: first key of the first chunk, end of the keys, keys between chunks. */
struct key_range {
	int begin, end, step;
};

/* Work distribution: grid and warps of a block. */
template <typename Traits> struct decode_layout {
	int head_blocks; /* blocks per sequence along the heads */
	int group_size;	 /* query heads per key/value head */
	int tiles, slices;
	int chunk, splits; /* keys per block and step; blocks along the keys */
	struct score_window window;

	__host__ __device__ int rows() const
	{
		return tiles * Traits::HEADS_PER_WARP;
	}
	/*
	 * Elements of a partial result: V_DIM values, max_score and exp_sum, padded to whole
	 * vectors for combine_splits_of_one_head().
	 */
	__host__ __device__ int64_t row_size() const
	{
		return Traits::V_DIM +
		       (Traits::HEADS_PER_WARP == 1 ? 16 / (int)sizeof(typename Traits::real) : 2);
	}
	/*
	 * Elements of shared memory: partial results of the slices, or (max_score, exp_sum) of all
	 * splits.
	 */
	__host__ __device__ int64_t results_size() const
	{
		const int64_t slices_size = slices * row_size(), splits_size = 2 * splits;

		return (slices_size > splits_size ? slices_size : splits_size) * rows();
	}
	/* First chunk with keys that a query at position i sees. */
	__device__ int first_chunk(int64_t i) const
	{
		return (int)score_first_key(window, i) / chunk;
	}
	/* Splits that have keys for a query at position i. */
	__device__ int used_splits(int64_t i) const
	{
		const int chunks = (int)i / chunk + 1 - first_chunk(i);

		return chunks < splits ? chunks : splits;
	}
	__device__ struct key_range keys(int split, int64_t i) const
	{
		return { (first_chunk(i) + split) * chunk, (int)i + 1, splits * chunk };
	}
	int bytes() const
	{
		const int results = (int)((results_size() + 2 * rows()) *
					  (int64_t)sizeof(typename Traits::real));
		const int stages = tiles * slices * Traits::STAGES * Traits::STAGE_BYTES;

		return results > stages ? results : stages;
	}
};

static inline int64_t gcd(int64_t a, int64_t b)
{
	return b ? gcd(b, a % b) : a;
}

/* About one for each multiprocessor. */
static inline bool has_many_head_blocks(int sms, int64_t head_blocks)
{
	return head_blocks >= blocks_to_fill(sms, 1);
}

/*
 * Few head blocks: enough splits to fill the GPU, with `per_sm` blocks on each multiprocessor.
 * Many: enough splits to balance the tail, with at least about 8 chunks each, because every split
 * has a fixed cost.
 */
static inline int64_t num_splits_heuristic(int sms, int64_t head_blocks, int64_t chunks, int per_sm)
{
	const bool few = !has_many_head_blocks(sms, head_blocks);
	const int64_t blocks = blocks_to_fill(sms, few ? per_sm : 32);
	const int64_t wanted = (blocks + head_blocks - 1) / head_blocks;
	const int64_t max_splits = wanted < DECODE_MAX_SPLITS ? wanted : DECODE_MAX_SPLITS;
	const int64_t possible = few ? chunks : (chunks + 7) / 8;

	return possible < max_splits ? possible : max_splits;
}

template <typename Traits>
static decode_layout<Traits> decode_layout_of(int sms, const struct node *n)
{
	const struct tensor *q = n->in[Q], *k = n->in[K], *v = n->in[V];
	const int64_t H = q->dim[2], B = q->dim[0];
	const int64_t group_size = gcd(H / k->dim[2], H / v->dim[2]);
	const int64_t tiles = (group_size + Traits::HEADS_PER_WARP - 1) / Traits::HEADS_PER_WARP;
	const int per_sm = Traits::STAGES > 0 ? 2 : 4; /* stages limit an SM to two blocks */
	const struct attention_attr *a = (const struct attention_attr *)n->attr;
	decode_layout<Traits> l;

	l.window = { a->window, a->sinks };
	l.group_size = (int)group_size;
	l.tiles = (int)(tiles < Traits::WARPS ? tiles : Traits::WARPS);
	static_assert(Traits::WARPS / 2 <= DECODE_MAX_SLICES);
	l.slices = l.tiles == 1 ? DECODE_MAX_SLICES : Traits::WARPS / l.tiles;
	l.head_blocks = (int)(H / group_size * ((group_size + l.rows() - 1) / l.rows()));
	l.chunk = l.slices * Traits::KEYS_PER_WARP;
	/* More head blocks than arrival counters: one split each. */
	l.splits = B * l.head_blocks > ARRIVAL_COUNTERS
			   ? 1
			   : (int)num_splits_heuristic(sms, B * l.head_blocks,
						       (k->dim[1] + l.chunk - 1) / l.chunk, per_sm);
	return l;
}

/* The terms of a score after scale, key bias and band (core/ops/score.h), times log2(e). */
template <typename P> struct decode_terms {
	typedef typename P::real real;

	const real *distance_bias; /* [H,S], not yet times log2(e); or NULL */
	int64_t S;
	real softcap, inverse_softcap; /* 0: no cap */
	struct score_window window;

	/* The score of key j, -infinity if query i does not see it. */
	__device__ __forceinline__ real finish(real s, int64_t h, int64_t i, int64_t j) const
	{
		if (j > i)
			return -INFINITY;
		if (distance_bias)
			s += distance_bias[h * S + i - j] * (real)M_LOG2E;
		if (softcap > 0)
			s = formulas<P>::score_cap(s, softcap, inverse_softcap);
		return j >= score_window_start(window, i) || j < window.sinks ? s : (real)-INFINITY;
	}
};

template <typename P> static decode_terms<P> decode_terms_of(const struct call *c)
{
	const struct attention_attr *a = (const struct attention_attr *)c->node->attr;
	const double softcap = a->softcap * M_LOG2E;

	return { real_input<P>(c, DISTANCE_BIAS),
		 c->node->in[K]->dim[1],
		 (typename P::real)softcap,
		 (typename P::real)(softcap > 0 ? 1 / softcap : 0),
		 { a->window, a->sinks } };
}

template <typename Traits> struct decode_params {
	typedef typename Traits::P P;
	typedef typename Traits::real real;

	decode_layout<Traits> layout;
	const struct run *run;
	int H, key_width, value_width;
	input_view<P> q, k, v, recent;
	bool q_vectorized; /* 16-byte loads, same type as the keys */
	struct heads q_layout, k_layout, v_layout, recent_layout, bias_layout, o_layout;
	real scale;	      /* times log2(e) */
	const real *key_bias; /* or NULL */
	decode_terms<P> terms;
	int64_t band_window; /* < 0: no band */
	real constant_band;
	const real *learned_band; /* or NULL */
	output_view<P> o;
	real *lse;
	real *partial;	    /* [B,head_blocks,splits,rows,row_size] */
	unsigned *arrivals; /* [B,head_blocks]; 0 before and after each launch */

	__device__ real band() const
	{
		return learned_band ? *learned_band : constant_band;
	}
};

/* --------------------------------------------------------------------- registers */

/* The channels of a key or value that one lane holds. */
template <typename Traits, int C> struct lane_channels {
	typedef typename Traits::P P;
	typedef typename Traits::T T;

	alignas(16) T x[C];

	/* Loads from the row that begins at element `at`. */
	__device__ void read(const input_view<P> &from, int64_t at, int lane, int width)
	{
		if constexpr (Traits::GENERIC) {
#pragma unroll
			for (int e = 0; e < C; e++)
				x[e] = Traits::channel(lane, e) < width
					       ? from[at + Traits::channel(lane, e)]
					       : 0;
		} else {
#pragma unroll
			for (int n = 0; n < C / Traits::VEC16; n++) {
				const int channel = Traits::channel(lane, n * Traits::VEC16);
				vec16 vec = {};

				if (channel < width)
					vec = *(const vec16 *)((const T *)from.at + at + channel);
				((vec16 *)x)[n] = vec;
			}
		}
	}
	/* Rounded to the operand type. */
	__device__ typename P::real operator[](int e) const
	{
		return (typename P::real)(typename P::factor)x[e];
	}
};

/*
 * Online softmax of one head: the lane's channels of sum_j p_j v_j, the maximum score, sum_j p_j.
 */
template <typename Traits> struct decode_softmax {
	typedef typename Traits::real real;

	alignas(16) real o[Traits::V_CHANNELS];
	real max_score, exp_sum;

	__device__ void clear()
	{
		/* Below any score, and finite so that differences are not NaN. */
		max_score = sizeof(real) == sizeof(double) ? (real)-1e300 : (real)-1e37;
		exp_sum = 0;
#pragma unroll
		for (int e = 0; e < Traits::V_CHANNELS; e++)
			o[e] = 0;
	}
	__device__ void rescale(real new_max)
	{
		const real factor = exp2(max_score - new_max);

		max_score = new_max;
		exp_sum *= factor;
#pragma unroll
		for (int e = 0; e < Traits::V_CHANNELS; e++)
			o[e] *= factor;
	}
	__device__ void
	add(const real (&score)[Traits::KEYS_PER_GROUP],
	    const lane_channels<Traits, Traits::V_CHANNELS> (&v)[Traits::KEYS_PER_GROUP])
	{
		real new_max = max_score;

#pragma unroll
		for (int u = 0; u < Traits::KEYS_PER_GROUP; u++)
			new_max = score[u] > new_max ? score[u] : new_max;
		rescale(new_max);
#pragma unroll
		for (int u = 0; u < Traits::KEYS_PER_GROUP; u++) {
			const real p = exp2(score[u] - new_max);

			exp_sum += p;
#pragma unroll
			for (int e = 0; e < Traits::V_CHANNELS; e++)
				o[e] += p * v[u][e];
		}
	}
	__device__ void combine(struct decode_softmax other)
	{
		const real new_max = other.max_score > max_score ? other.max_score : max_score;

		rescale(new_max);
		other.rescale(new_max);
		exp_sum += other.exp_sum;
#pragma unroll
		for (int e = 0; e < Traits::V_CHANNELS; e++)
			o[e] += other.o[e];
	}
	/* Combines with the lane group `distance` lanes away; both hold the same channels. */
	__device__ void combine(int distance)
	{
		const real other_max = __shfl_xor_sync(0xffffffffu, max_score, distance);
		const real new_max = other_max > max_score ? other_max : max_score;

		rescale(new_max);
		exp_sum += __shfl_xor_sync(0xffffffffu, exp_sum, distance);
#pragma unroll
		for (int e = 0; e < Traits::V_CHANNELS; e++)
			o[e] += __shfl_xor_sync(0xffffffffu, o[e], distance);
	}
};

/* What a warp works on. */
template <typename Traits> struct decode_coord {
	int lane, lane_group, slice;
	int64_t b;
	int first_head;
	int rows;  /* heads of the warp; may be 0 */
	int row;   /* row 0 of the warp within the block */
	int64_t i; /* position of the query */

	__device__ explicit decode_coord(const decode_params<Traits> &p)
	{
		const decode_layout<Traits> &l = p.layout;
		const int warp = (int)threadIdx.x / WARP, tile = warp % l.tiles;
		const int blocks_per_group = (l.group_size + l.rows() - 1) / l.rows();
		const int head_block = (int)blockIdx.x % l.head_blocks,
			  first_in_group = head_block % blocks_per_group * l.rows();

		lane = (int)threadIdx.x % Traits::LANES_PER_KEY;
		lane_group = (int)threadIdx.x % WARP / Traits::LANES_PER_KEY;
		slice = warp / l.tiles;
		b = blockIdx.x / l.head_blocks;
		row = tile * Traits::HEADS_PER_WARP;
		first_head = head_block / blocks_per_group * l.group_size + first_in_group + row;
		rows = l.group_size - first_in_group - row;
		rows = rows < 0 ? 0 : rows > Traits::HEADS_PER_WARP ? Traits::HEADS_PER_WARP : rows;
		i = p.run->past;
	}
	/*
	 * Position of the lane group's u-th key in the chunk that starts at key `first`. It may lie
	 * beyond the query.
	 */
	__device__ int key_index(int first, int u) const
	{
		return first + slice * Traits::KEYS_PER_WARP + lane_group + u * Traits::LANE_GROUPS;
	}
	/* The same, clamped to the query's own position, which is safe to load; the score is
	 * masked. */
	__device__ int clamped_key(int first, int u) const
	{
		const int j = key_index(first, u);

		return j < (int)i ? j : (int)i;
	}
};

/* ------------------------------------------------------------------------ scores */

template <typename Traits> struct decode_queries {
	typedef typename Traits::P P;
	typedef typename Traits::real real;

	real q[Traits::HEADS_PER_WARP][Traits::K_CHANNELS];
	/* k_i * scale * band, which multiplies q_j inside the band. */
	real band_key[Traits::GENERIC ? Traits::K_CHANNELS : 1];

	__device__ decode_queries(const decode_params<Traits> &p, const decode_coord<Traits> &x)
	{
#pragma unroll
		for (int r = 0; r < Traits::HEADS_PER_WARP; r++) {
			const int64_t at = p.q_layout.at(x.b, x.first_head + r, 0);

			if (!Traits::GENERIC && p.q_vectorized) {
				load_vecs(p, x, at, r);
				continue;
			}
#pragma unroll
			for (int e = 0; e < Traits::K_CHANNELS; e++) {
				const int channel = Traits::channel(x.lane, e);

				q[r][e] = r < x.rows && channel < p.key_width
						  ? p.scale * (real)(typename P::factor)
								      p.q[at + channel]
						  : 0;
			}
		}
		if constexpr (Traits::GENERIC) {
			lane_channels<Traits, Traits::K_CHANNELS> k = {};

			if (p.band_window >= 0 && x.rows > 0)
				k.read(p.k, p.k_layout.at(x.b, x.first_head, x.i), x.lane,
				       p.key_width);
			for (int e = 0; e < Traits::K_CHANNELS; e++)
				band_key[e] = p.band_window < 0 ? 0 : k[e] * p.scale * p.band();
		}
	}

	/* Issues all loads of a row at once. */
	__device__ void load_vecs(const decode_params<Traits> &p, const decode_coord<Traits> &x,
				  int64_t at, int r)
	{
		lane_channels<Traits, Traits::K_CHANNELS> vecs = {};

		if (r < x.rows)
			vecs.read(p.q, at, x.lane, p.key_width);
#pragma unroll
		for (int e = 0; e < Traits::K_CHANNELS; e++)
			q[r][e] = p.scale * vecs[e];
	}

	/* The lane's share of the score of head r and the key at position j. */
	__device__ real partial_score(const decode_params<Traits> &p, const decode_coord<Traits> &x,
				      int r, int64_t j,
				      const lane_channels<Traits, Traits::K_CHANNELS> &k) const
	{
		real sum = 0;

#pragma unroll
		for (int e = 0; e < Traits::K_CHANNELS; e++)
			sum += q[r][e] * k[e];
		if constexpr (Traits::GENERIC) {
			const int64_t first = x.i + 1 - p.recent_layout.T;

			if (p.band_window < 0 || x.i - j > p.band_window || j > x.i)
				return sum;
			lane_channels<Traits, Traits::K_CHANNELS> recent;

			recent.read(p.recent, p.recent_layout.at(x.b, x.first_head + r, j - first),
				    x.lane, p.key_width);
#pragma unroll
			for (int e = 0; e < Traits::K_CHANNELS; e++)
				sum += band_key[e] * recent[e];
		}
		return sum;
	}
};

/*
 * Prefetches the warp's keys and values of the chunk that starts at key `first` to L2. Skips the
 * query's own token, which a preceding kernel may still write.
 */
template <typename Traits>
static __device__ void prefetch_keys(const decode_params<Traits> &p, const decode_coord<Traits> &x,
				     int first)
{
	typedef typename Traits::T T;
	constexpr int LINE = 64 / (int)sizeof(T); /* channels per prefetch */

	if (Traits::GENERIC || x.rows == 0)
		return;
	const T *k = (const T *)p.k.at + p.k_layout.at(x.b, x.first_head, 0);
	const T *v = (const T *)p.v.at + p.v_layout.at(x.b, x.first_head, 0);

	for (int n = (int)threadIdx.x % WARP; n < 2 * Traits::KEYS_PER_WARP; n += WARP) {
		const int64_t j = first + x.slice * Traits::KEYS_PER_WARP + n / 2;
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

/* The keys and values that a lane group processes at a time. */
template <typename Traits> struct lane_keys {
	lane_channels<Traits, Traits::K_CHANNELS> k[Traits::KEYS_PER_GROUP];
	lane_channels<Traits, Traits::V_CHANNELS> v[Traits::KEYS_PER_GROUP];

	__device__ void read(const decode_params<Traits> &p, const decode_coord<Traits> &x,
			     int first)
	{
		const int64_t k_at = p.k_layout.at(x.b, x.first_head, 0),
			      v_at = p.v_layout.at(x.b, x.first_head, 0);

#pragma unroll
		for (int u = 0; u < Traits::KEYS_PER_GROUP; u++) {
			const int64_t j = x.clamped_key(first, u);

			k[u].read(p.k, k_at + j * (int)p.k_layout.pitch, x.lane, p.key_width);
			v[u].read(p.v, v_at + j * (int)p.v_layout.pitch, x.lane, p.value_width);
		}
	}
	__device__ void read(const char *stage)
	{
		stage += threadIdx.x % WARP * 16;
#pragma unroll
		for (int u = 0; u < Traits::KEYS_PER_GROUP; u++) {
#pragma unroll
			for (int n = 0; n < Traits::K_CHANNELS / Traits::VEC16; n++)
				((vec16 *)k[u].x)[n] =
					*(const vec16 *)(stage + Traits::key_vec(u, n));
#pragma unroll
			for (int n = 0; n < Traits::V_CHANNELS / Traits::VEC16; n++)
				((vec16 *)v[u].x)[n] =
					*(const vec16 *)(stage + Traits::value_vec(u, n));
		}
	}
};

/* Loops over the chunks of a split, for the heads of one warp. */
template <typename Traits>
static __device__ void decode_key_loop(const decode_params<Traits> &p,
				       const decode_coord<Traits> &x, decode_stages<Traits> &stages,
				       decode_softmax<Traits> (&row)[Traits::HEADS_PER_WARP])
{
	typedef typename Traits::real real;
	const decode_queries<Traits> queries(p, x);
	const int64_t bias_at = p.key_bias ? p.bias_layout.at(x.b, x.first_head, 0) : 0;
	const int i = (int)x.i;

	for (int first = stages.keys.begin; first < stages.keys.end; first += stages.keys.step) {
		lane_keys<Traits> vecs;
		real bias[Traits::KEYS_PER_GROUP];

		if constexpr (Traits::STAGES > 0)
			vecs.read(stages.wait_oldest());
		else
			vecs.read(p, x, first);
#pragma unroll
		for (int u = 0; u < Traits::KEYS_PER_GROUP; u++)
			bias[u] = !p.key_bias
					  ? 0
					  : p.key_bias[bias_at + x.clamped_key(first, u) *
									 (int)p.bias_layout.pitch] *
						    (real)M_LOG2E;
#pragma unroll
		for (int r = 0; r < Traits::HEADS_PER_WARP; r++) {
			real score[Traits::KEYS_PER_GROUP];

			if (r >= x.rows)
				break;
#pragma unroll
			for (int u = 0; u < Traits::KEYS_PER_GROUP; u++) {
				const int j = x.key_index(first, u);
				real s = queries.partial_score(p, x, r, j, vecs.k[u]);

				for (int distance = Traits::LANES_PER_KEY / 2; distance > 0;
				     distance /= 2)
					s += __shfl_xor_sync(0xffffffffu, s, distance);
				score[u] = p.terms.finish(s + bias[u], x.first_head + r, i, j);
			}
			row[r].add(score, vecs.v);
		}
		if constexpr (Traits::STAGES > 0)
			stages.issue_next();
	}
}

#include "core/backend/cuda/decode/decode_mma.cuh"

/* ---------------------------------------------------------------------- combination */

template <typename Traits>
static __device__ void write_output(const decode_params<Traits> &p,
				    const decode_coord<Traits> &block, int row, int channel,
				    typename Traits::real o, typename Traits::real max_score,
				    typename Traits::real sum)
{
	typedef typename Traits::real real;
	const int head = block.first_head - block.row + row;

	if ((block.first_head - block.row) % p.layout.group_size + row >= p.layout.group_size)
		return;
	p.o[p.o_layout.at(block.b, head, 0) + channel] = o / sum;
	if (channel == 0)
		p.lse[block.b * p.H + head] = (max_score + log2(sum)) * (real)M_LN2;
}

/*
 * Combines the slices: calls put(row, channel, value, max_score, exp_sum) for all rows of a block.
 */
template <typename Traits, typename F>
static __device__ void combine_slices(const decode_params<Traits> &p,
				      const typename Traits::real *shared, F put)
{
	typedef typename Traits::real real;
	const decode_layout<Traits> &l = p.layout;

	for (int item = (int)threadIdx.x; item < l.rows() * Traits::V_DIM;
	     item += (int)blockDim.x) {
		const int row = item / Traits::V_DIM, channel = item % Traits::V_DIM;
		const real *slice = shared + row * (int)l.row_size();
		real max_score[DECODE_MAX_SLICES], sums[DECODE_MAX_SLICES],
			values[DECODE_MAX_SLICES];
		real new_max = slice[Traits::V_DIM], sum = 0, value = 0;

		if (channel >= p.value_width)
			continue;
#pragma unroll
		for (int k = 0; k < DECODE_MAX_SLICES; k++, slice += l.rows() * l.row_size()) {
			const bool used = k < l.slices;

			max_score[k] = used ? slice[Traits::V_DIM] : new_max;
			sums[k] = used ? slice[Traits::V_DIM + 1] : 0;
			values[k] = used ? slice[channel] : 0;
			new_max = max_score[k] > new_max ? max_score[k] : new_max;
		}
#pragma unroll
		for (int k = 0; k < DECODE_MAX_SLICES; k++) {
			const real weight = exp2(max_score[k] - new_max);

			sum += weight * sums[k];
			value += weight * values[k];
		}
		put(row, channel, value, new_max, sum);
	}
}

/*
 * Partial results of all splits: values in global memory, (max_score, exp_sum) pairs in shared
 * memory. Other blocks wrote the values, so loads bypass L1 (__ldcg).
 */
template <typename Traits> struct split_results {
	typedef typename Traits::real real;

	static constexpr int BATCH = 16; /* splits whose loads are in flight together */
	struct batch {
		real value[BATCH];
	};

	const real *partials;
	real *pair, *total;		   /* total: combined pair of each row */
	int64_t split_stride, pair_stride; /* distance between splits */
	int64_t pair_row_stride;	   /* distance between rows */
	int n;				   /* splits */

	__device__ struct batch read(int first, int channel) const
	{
		struct batch x;

#pragma unroll
		for (int k = 0; k < BATCH; k++) {
			const real *from = partials + (first + k) * split_stride + channel;

			x.value[k] = first + k < n ? __ldcg(from) : 0;
		}
		return x;
	}
	/*
	 * One warp per row: computes the total pair and replaces each max_score by the split's
	 * weight.
	 */
	__device__ void softmax_weights(int rows) const
	{
		const int lane = (int)threadIdx.x % WARP, warps = (int)blockDim.x / WARP;

		for (int row = (int)threadIdx.x / WARP; row < rows; row += warps) {
			real *row_pair = pair + row * pair_row_stride, max_score = -INFINITY,
			     sum = 0;

			for (int k = lane; k < n; k += WARP)
				max_score = row_pair[k * pair_stride] > max_score
						    ? row_pair[k * pair_stride]
						    : max_score;
			max_score = warp_reduce(max_score, larger_value());
			for (int k = lane; k < n; k += WARP) {
				const real weight = exp2(row_pair[k * pair_stride] - max_score);

				sum += weight * row_pair[k * pair_stride + 1];
				row_pair[k * pair_stride] = weight;
			}
			sum = warp_sum(sum);
			if (lane == 0) {
				total[2 * row] = max_score;
				total[2 * row + 1] = sum;
			}
		}
		__syncthreads();
	}
	/* Weighted sum over splits; begin: batch 0, already loaded. */
	__device__ real values(int row, int channel, struct batch begin) const
	{
		const real *weight = pair + row * pair_row_stride;
		real sum = 0;

		for (int first = 0; first < n; first += BATCH) {
			const struct batch x = first > 0 ? read(first, channel) : begin;

#pragma unroll
			for (int k = 0; k < BATCH; k++)
				if (first + k < n)
					sum += weight[(first + k) * pair_stride] * x.value[k];
		}
		return sum;
	}
};

/* Loads the pairs of all splits of a head block to shared memory [splits,rows,2]. */
template <typename Traits>
static __device__ void load_split_pairs(const decode_params<Traits> &p,
					const typename Traits::real *partials, int splits,
					typename Traits::real *shared)
{
	const int lines = splits * p.layout.rows();

	for (int line = (int)threadIdx.x; line < lines; line += (int)blockDim.x) {
		const typename Traits::real *pair =
			partials + line * p.layout.row_size() + Traits::V_DIM;

		shared[2 * line] = __ldcg(pair);
		shared[2 * line + 1] = __ldcg(pair + 1);
	}
}

/* Combines the splits of a head block with several heads. */
template <typename Traits>
static __device__ void
combine_splits(const decode_params<Traits> &p, const decode_coord<Traits> &coord,
	       const typename Traits::real *partials, int splits, typename Traits::real *shared)
{
	const decode_layout<Traits> &l = p.layout;
	typename Traits::real *total = shared + l.results_size();
	const split_results<Traits> results = {
		partials, shared, total, l.rows() * l.row_size(), 2 * l.rows(), 2, splits
	};

	load_split_pairs(p, partials, splits, shared);
	__syncthreads();
	results.softmax_weights(l.rows());
	for (int item = (int)threadIdx.x; item < l.rows() * Traits::V_DIM;
	     item += (int)blockDim.x) {
		const int row = item / Traits::V_DIM, channel = item % Traits::V_DIM;
		auto row_results = results;

		if (channel >= p.value_width)
			continue;
		row_results.partials += row * l.row_size();
		write_output(p, coord, row, channel,
			     row_results.values(row, channel, row_results.read(0, channel)),
			     total[2 * row], total[2 * row + 1]);
	}
}

/*
 * Combines the lane groups of a warp and stores the result to shared memory [slices,rows,row_size].
 */
template <typename Traits>
static __device__ void store_slice(const decode_params<Traits> &p, const decode_coord<Traits> &x,
				   decode_softmax<Traits> (&row)[Traits::HEADS_PER_WARP],
				   typename Traits::real *shared)
{
#pragma unroll
	for (int r = 0; r < Traits::HEADS_PER_WARP; r++)
		for (int distance = Traits::LANES_PER_KEY; distance < WARP; distance *= 2)
			row[r].combine(distance);
	if (x.lane_group > 0)
		return;
#pragma unroll
	for (int r = 0; r < Traits::HEADS_PER_WARP; r++) {
		typename Traits::real *to =
			shared + (x.slice * p.layout.rows() + x.row + r) * p.layout.row_size();

#pragma unroll
		for (int e = 0; e < Traits::V_CHANNELS; e++)
			to[Traits::channel(x.lane, e)] = row[r].o[e];
		if (x.lane == 0) {
			to[Traits::V_DIM] = row[r].max_score;
			to[Traits::V_DIM + 1] = row[r].exp_sum;
		}
	}
}

/*
 * Combines the splits of a head block with one head, and so one tile. Each lane group combines some
 * splits in registers; slices are then combined by the code that follows the key loop. Separate
 * code for this, which only the last block of a head runs, took four times as long. All loads are
 * issued at once and bypass L1, since other blocks wrote the data.
 */
template <typename Traits>
static __device__ void combine_splits_of_one_head(const decode_params<Traits> &p,
						  const decode_coord<Traits> &x,
						  const typename Traits::real *partials, int splits,
						  typename Traits::real *shared)
{
	typedef typename Traits::real real;
	constexpr int BLOCK_LANE_GROUPS = DECODE_MAX_SLICES * Traits::LANE_GROUPS,
		      MAX = (DECODE_MAX_SPLITS + BLOCK_LANE_GROUPS - 1) / BLOCK_LANE_GROUPS;
	constexpr int PER_VEC = 16 / (int)sizeof(real); /* elements of a 16-byte vector */
	decode_softmax<Traits> partial[MAX], row[1];

	static_assert(Traits::HEADS_PER_WARP == 1 && Traits::VEC16 % PER_VEC == 0);
#pragma unroll
	for (int k = 0; k < MAX; k++) {
		const int split_index =
			k * BLOCK_LANE_GROUPS + x.slice * Traits::LANE_GROUPS + x.lane_group;
		const real *from = partials + split_index * p.layout.row_size();
		alignas(16) real pair[PER_VEC];

		partial[k].clear();
		if (split_index >= splits)
			continue;
#pragma unroll
		for (int e = 0; e < Traits::V_CHANNELS; e += PER_VEC)
			*(uint4 *)(partial[k].o + e) =
				__ldcg((const uint4 *)(from + Traits::channel(x.lane, e)));
		*(uint4 *)pair = __ldcg((const uint4 *)(from + Traits::V_DIM));
		partial[k].max_score = pair[0];
		partial[k].exp_sum = pair[1];
	}
	row[0] = partial[0];
#pragma unroll
	for (int k = 1; k < MAX; k++)
		row[0].combine(partial[k]);
	store_slice(p, x, row, shared);
}

/* ------------------------------------------------------------------------- kernels */

/* Computes a block's split and leaves its slices in shared memory. */
template <typename Traits>
static __device__ void decode_split(const decode_params<Traits> &p, const decode_coord<Traits> &x,
				    decode_stages<Traits> &stages, typename Traits::real *shared)
{
	decode_softmax<Traits> row[Traits::HEADS_PER_WARP];

#pragma unroll
	for (int r = 0; r < Traits::HEADS_PER_WARP; r++)
		row[r].clear();
	if (x.rows > 0)
		decode_key_loop(p, x, stages, row);
	if (Traits::STAGES > 0)
		__syncthreads(); /* the stages' memory is reused for results */
	store_slice(p, x, row, shared);
}

template <typename Traits>
static __global__ void __launch_bounds__(Traits::WARPS *WARP, Traits::MIN_BLOCKS_PER_SM)
	decode_attention_kernel(struct replicas replicas,
				const __grid_constant__ decode_params<Traits> given)
{
	const auto &p = replicas.own(given);
	typedef typename Traits::real real;
	const decode_layout<Traits> &l = p.layout;
	/* This reads p.run before pdl_wait(): it is written before the run's first kernel. */
	const decode_coord<Traits> x(p);
	const int split = (int)blockIdx.y, splits = l.used_splits(x.i);

	decode_stages<Traits> stages(p, x, l.keys(split, x.i), dynamic_smem());

	if constexpr (Traits::STAGES > 0)
		stages.issue_early();
	else
		prefetch_keys(p, x, stages.keys.begin);
	pdl_wait();
	const int64_t block_size = l.rows() * l.row_size();
	real *shared = (real *)dynamic_smem();
	real *partials = p.partial + (int64_t)blockIdx.x * l.splits * block_size;

	if (split >= splits)
		return;
	if constexpr (Traits::STAGES > 0)
		stages.issue_rest();
	decode_split(p, x, stages, shared);
	/* First this block's split. Then, in the last block to arrive, all splits. */
	for (bool all = splits == 1;; all = true) {
		__syncthreads();
		combine_slices(p, shared,
			       [&](int r, int channel, real o, real max_score, real sum) {
				       real *to = partials + split * block_size + r * l.row_size();

				       if (all) {
					       write_output(p, x, r, channel, o, max_score, sum);
					       return;
				       }
				       to[channel] = o;
				       if (channel == 0) {
					       to[Traits::V_DIM] = max_score;
					       to[Traits::V_DIM + 1] = sum;
				       }
			       });
		if (Traits::USES_MMA || all ||
		    !is_last_block(p.arrivals + blockIdx.x, (unsigned)splits))
			return;
		if constexpr (Traits::HEADS_PER_WARP > 1)
			return combine_splits(p, x, partials, splits, shared);
		else
			combine_splits_of_one_head(p, x, partials, splits, shared);
	}
}

/* Combines the splits of row blockIdx.y of a head block, one thread per channel. */
template <typename Traits>
static __global__ void
decode_attention_combine_kernel(struct replicas replicas,
				const __grid_constant__ decode_params<Traits> given)
{
	const auto &p = replicas.own(given);
	typedef typename Traits::real real;
	__shared__ real pair[2 * DECODE_MAX_SPLITS], total[2];
	const decode_layout<Traits> &l = p.layout;
	const decode_coord<Traits> x(p);
	const int row = (int)blockIdx.y, channel = (int)threadIdx.x, splits = l.used_splits(x.i);
	const int64_t block_size = l.rows() * l.row_size();
	const real *partials =
		p.partial + (int64_t)blockIdx.x * l.splits * block_size + row * l.row_size();

	const split_results<Traits> results = { partials, pair, total, block_size, 2, 0, splits };

	pdl_wait();
	if (splits == 1)
		return;
	const auto begin = results.read(0, channel);

	for (int k = (int)threadIdx.x; k < splits; k += (int)blockDim.x) {
		pair[2 * k] = partials[k * block_size + Traits::V_DIM];
		pair[2 * k + 1] = partials[k * block_size + Traits::V_DIM + 1];
	}
	__syncthreads();
	results.softmax_weights(1);
	if (channel < p.value_width)
		write_output(p, x, row, channel, results.values(0, channel, begin), total[0],
			     total[1]);
}

/* ----------------------------------------------------------------------- host side */

template <typename P> static int64_t element_size(const struct tensor *t)
{
	return (int64_t)(is_bf16(t) ? sizeof(typename P::factor) : sizeof(typename P::real));
}

/* Can rows of heads be read with 16-byte loads? */
template <typename P> static bool is_vectorized(const struct tensor *t)
{
	const int64_t vec = 16 / element_size<P>(t);

	return t->dim[3] % vec == 0 && heads_of(t, t->dim[2]).pitch % vec == 0 &&
	       t->offset % vec == 0;
}

template <typename P> struct decode_traits_for {
	typedef typename P::real real;

	static constexpr bool IS_DOUBLE = sizeof(real) == sizeof(double);
	static constexpr int C = IS_DOUBLE ? 8 : 16, HEADS_PER_WARP = IS_DOUBLE ? 2 : 4;

	/* Fallback for any layout. */
	typedef decode_traits<P, real, 1, WARP, C, C, HEADS_PER_WARP, 1> generic;

	/*
	 * mha: one query head per key head, few or many heads, or keys up to 128 channels wide.
	 * gqa: several query heads per key head.
	 */
	template <typename T>
	using mha = decode_traits<P, T, 16 / sizeof(T), 8, 8, 8, 1, 4, sizeof(T) == 2 ? 6 : 0>;
	template <typename T>
	using mha_many_heads =
		decode_traits<P, T, 16 / sizeof(T), 8, 8, 8, 1, 4, sizeof(T) == 2 ? 2 : 0>;
	template <typename T>
	using mha_wide_key = decode_traits<P, T, 16 / sizeof(T), 8, 16, 8, 1, IS_DOUBLE ? 2 : 4>;
	template <typename T>
	using gqa = decode_traits<P, T, 16 / sizeof(T), 16, 8, 8, HEADS_PER_WARP, 2>;
};

#define DECODE_MMA_MIN_HEADS 4 /* heads per key head from which tensor cores are used */

template <typename Traits> static bool decode_fits(const struct node *n)
{
	return n->in[K]->dim[3] <= Traits::QK_DIM && n->in[V]->dim[3] <= Traits::V_DIM;
}

template <typename P, typename T, typename F>
static bool dispatch_vectorized(int sms, const struct node *n, F f)
{
	typedef decode_traits_for<P> traits;
	typedef typename traits::template mha<T> mha;
	typedef typename traits::template mha_wide_key<T> mha_wide_key;
	typedef typename traits::template gqa<T> gqa;
	typedef decode_mma_traits<P> mma_traits;
	const int64_t H = n->in[Q]->dim[2];
	const int64_t group_size = gcd(H / n->in[K]->dim[2], H / n->in[V]->dim[2]);
	const bool is_gqa = group_size > 1;

	if constexpr (ROUNDS<P> && sizeof(T) == sizeof(typename P::factor))
		if (group_size >= DECODE_MMA_MIN_HEADS && !n->in[KEY_BIAS] && is_bf16(n->in[Q]) &&
		    is_vectorized<P>(n->in[Q]) && decode_fits<mma_traits>(n)) {
			f(mma_traits());
			return true;
		}
	if (!is_gqa && decode_fits<mha>(n) && !has_many_head_blocks(sms, n->in[Q]->dim[0] * H))
		f(mha());
	else if (!is_gqa && decode_fits<mha>(n))
		f(typename traits::template mha_many_heads<T>());
	else if (!is_gqa && decode_fits<mha_wide_key>(n))
		f(mha_wide_key());
	else if (decode_fits<gqa>(n))
		f(gqa());
	else
		return false;
	return true;
}

/* Calls f(traits) for the node. */
template <typename P, typename F>
static void dispatch_decode_traits(int sms, const struct node *n, F f)
{
	const struct attention_attr *a = (const struct attention_attr *)n->attr;
	const struct tensor *k = n->in[K], *v = n->in[V];
	bool done = false;

	if (a->band_window < 0 && is_bf16(k) == is_bf16(v) && is_vectorized<P>(k) &&
	    is_vectorized<P>(v))
		done = is_bf16(k) ? dispatch_vectorized<P, typename P::factor>(sms, n, f)
				  : dispatch_vectorized<P, typename P::real>(sms, n, f);
	if (!done)
		f(typename decode_traits_for<P>::generic());
}

template <typename P> struct decode {
	/*
	 * One query per sequence, attention to a cache to which this run adds only the query's own
	 * row. The answer depends on the node alone.
	 */
	static bool takes(const struct node *n)
	{
		const struct attention_attr *a = (const struct attention_attr *)n->attr;

		return n->in[Q]->dim[1] == 1 && tensor_root(n->in[K])->kind == TENSOR_STATE &&
		       tensor_root(n->in[V])->kind == TENSOR_STATE && a->route.mode != ROUTE_TOPK &&
		       a->dropout == 0 && decode_fits<typename decode_traits_for<P>::generic>(n);
	}

	template <typename Traits>
	static typename P::real *alloc(struct scratch *m, const struct node *n)
	{
		const decode_layout<Traits> l = decode_layout_of<Traits>(m->sms, n);

		return m->alloc<typename P::real>(n->in[Q]->dim[0] * l.head_blocks * l.splits *
						  l.rows() * l.row_size());
	}

	template <typename Traits>
	static decode_params<Traits> make_params(const struct call *c, struct scratch *m)
	{
		typedef typename P::real real;
		const struct node *n = c->node;
		const struct attention_attr *a = (const struct attention_attr *)n->attr;
		const int64_t H = n->in[Q]->dim[2];
		const int recent = n->in[RECENT] ? RECENT : Q;
		decode_params<Traits> p = {};

		p.layout = decode_layout_of<Traits>(m->sms, n);
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
		p.terms = decode_terms_of<P>(c);
		p.band_window = a->band_window;
		p.constant_band = (real)a->band;
		p.learned_band = real_input<P>(c, BAND);
		p.o = output<P>(c, O);
		p.lse = real_output<P>(c, LSE);
		p.partial = alloc<Traits>(m, n);
		p.arrivals = context_of(c)->arrivals;
		return p;
	}

	template <typename Traits>
	static void launch_combine(const struct call *c, const decode_params<Traits> &p,
				   unsigned head_blocks)
	{
		if (p.layout.splits == 1)
			return;
		launch_for(c, decode_attention_combine_kernel<Traits>,
			   dim3(head_blocks, (unsigned)p.layout.rows()), Traits::V_DIM, 0, p);
	}

	static void forward(const struct call *c)
	{
		struct scratch m = scratch_of(c);

		dispatch_decode_traits<P>(m.sms, c->node, [&](auto traits) {
			typedef decltype(traits) Traits;
			const decode_params<Traits> p = make_params<Traits>(c, &m);
			const decode_layout<Traits> &l = p.layout;
			const dim3 blocks((unsigned)(c->node->in[Q]->dim[0] * l.head_blocks),
					  (unsigned)l.splits);

			set_max_dynamic_smem(c, decode_attention_kernel<Traits>, l.bytes());
			launch_for(c, decode_attention_kernel<Traits>, blocks,
				   l.tiles * l.slices * WARP, l.bytes(), p);
			if constexpr (Traits::USES_MMA)
				launch_combine(c, p, blocks.x);
		});
	}

	static size_t workspace(const struct node *n, int sms)
	{
		struct scratch m = count_scratch(sms);

		dispatch_decode_traits<P>(sms, n,
					  [&](auto traits) { alloc<decltype(traits)>(&m, n); });
		return m.used;
	}
};

#endif
