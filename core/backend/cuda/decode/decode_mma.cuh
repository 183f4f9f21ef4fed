/*
 * decode_mma - decode attention on tensor cores (mma.sync m16n8k16) for bfloat16 heads that share
 * keys. Included by decode_attention.cuh.
 *
 * A warp serves 16 heads and processes 16 keys per step: S [16 heads, 16 keys] = Q K^T, then O [16
 * heads, 128] += P V. The order of the summed dimension is free in both products. It is chosen so
 * that each lane reads K and V as 16-byte vectors. With PTX's groupID = lane / 4 and
 * threadID_in_group t = lane % 4:
 *
 *     S, k-step (c, half): a lane has channels 32 c + 8 t + 4 half + 0..3 of keys groupID + 0, 8
 *     O, tile (half, e): column n is channel 64 half + 8 n + e; a lane has keys 2 t + 0, 1, 8, 9
 *
 * P is rounded to bfloat16, and exp_sum adds the rounded values.
 */
#ifndef CUDA_DECODE_DECODE_MMA_CUH
#define CUDA_DECODE_DECODE_MMA_CUH

template <typename P_> struct decode_mma_traits {
	typedef P_ P;
	typedef typename P::factor T;
	typedef typename P::real real;

	static constexpr int LANES_PER_KEY = WARP, LANE_GROUPS = 1, HEADS_PER_WARP = 16,
			     KEYS_PER_GROUP = 16, QK_DIM = 128, V_DIM = 128;
	static constexpr bool GENERIC = false, USES_MMA = true;
	static constexpr int WARPS = 4; /* upper bound per block */
	static constexpr int MIN_BLOCKS_PER_SM = 2;
	static constexpr int KEYS_PER_WARP = KEYS_PER_GROUP, STAGES = 3,
			     STAGE_BYTES = KEYS_PER_GROUP * (QK_DIM + V_DIM) * (int)sizeof(T);
};

/*
 * Offset of a 16-byte vector in a stage, which holds 16 rows of K, then 16 rows of V, of 16 vectors
 * each. A half-warp copies a whole row: partial rows reach less bandwidth. The XOR swizzle avoids
 * bank conflicts when fragments are read.
 */
static __device__ int key_smem_offset(int row, int vec)
{
	return (row * 16 + (vec ^ (row % 2 * 4))) * 16;
}

static __device__ int value_smem_offset(int row, int vec)
{
	return ((16 + row) * 16 + (vec ^ (row / 2 % 4 * 2))) * 16;
}

/*
 * Copies a chunk to a stage. Keys beyond the query are replaced by the query's own; their scores
 * are masked.
 */
template <typename P>
static __device__ void copy_chunk(const decode_params<decode_mma_traits<P>> &p,
				  const decode_coord<decode_mma_traits<P>> &x, int chunk,
				  uint32_t to)
{
	typedef decode_mma_traits<P> Traits;
	typedef typename Traits::T T;
	const int vec = x.lane % 16, channel = 8 * vec;
	const int64_t first = chunk + x.slice * Traits::KEYS_PER_GROUP;
	const int last = (int)(x.i - first);
	const int k_pitch = (int)p.k_layout.pitch, v_pitch = (int)p.v_layout.pitch;
	const T *k =
		(const T *)p.k.at + p.k_layout.at(x.b, x.first_head, 0) + first * k_pitch + channel;
	const T *v =
		(const T *)p.v.at + p.v_layout.at(x.b, x.first_head, 0) + first * v_pitch + channel;

#pragma unroll
	for (int n = 0; n < Traits::KEYS_PER_GROUP / 2; n++) {
		const int row = 2 * n + x.lane / 16, clamped = row < last ? row : last;

		cp_async_vec16(to + key_smem_offset(row, vec), k + clamped * k_pitch,
			       channel < p.key_width);
	}
#pragma unroll
	for (int n = 0; n < Traits::KEYS_PER_GROUP / 2; n++) {
		const int row = 2 * n + x.lane / 16, clamped = row < last ? row : last;

		cp_async_vec16(to + value_smem_offset(row, vec), v + clamped * v_pitch,
			       channel < p.value_width);
	}
}

template <typename Traits> struct mma_fragments {
	typedef typename Traits::T T;

	static constexpr int STEPS = Traits::QK_DIM / 16, TILES = Traits::V_DIM / 8;

	int group_id, thread_in_group;
	uint32_t q[STEPS][4];
	float o[TILES][4];
	/* Of rows group_id and group_id + 8; exp_sum is the lane's share. */
	float max_score[2], exp_sum[2];

	__device__ mma_fragments(const decode_params<Traits> &p, const decode_coord<Traits> &x)
	    : group_id(x.lane / 4),
	      thread_in_group(x.lane % 4), q{}, o{}, max_score{ -1e37f, -1e37f }, exp_sum{}
	{
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const int row = group_id + 8 * r, head = x.first_head + row;

			if (row >= x.rows)
				continue;
#pragma unroll
			for (int c = 0; c < STEPS / 2; c++)
				read_query(p, p.q_layout.at(x.b, head, 0), c, r);
		}
	}
	__device__ void read_query(const decode_params<Traits> &p, int64_t at, int c, int r)
	{
		const int channel = 32 * c + 8 * thread_in_group;
		vec16 vec = {};

		if (channel < p.key_width)
			vec = *(const vec16 *)((const T *)p.q.at + at + channel);
#pragma unroll
		for (int e = 0; e < 4; e++)
			q[2 * c + e / 2][r + 2 * (e % 2)] = vec.word[e];
	}

	__device__ void read_keys(const char *stage, vec16 (&k)[2][STEPS / 2]) const
	{
#pragma unroll
		for (int tile = 0; tile < 2; tile++)
#pragma unroll
			for (int c = 0; c < STEPS / 2; c++)
				k[tile][c] =
					*(const vec16 *)(stage +
							 key_smem_offset(8 * tile + group_id,
									 4 * c + thread_in_group));
	}
	__device__ void read_values(const char *stage, vec16 (&v)[4][2]) const
	{
#pragma unroll
		for (int key = 0; key < 4; key++)
#pragma unroll
			for (int half = 0; half < 2; half++)
				v[key][half] =
					*(const vec16 *)(stage +
							 value_smem_offset(2 * thread_in_group +
										   key % 2 +
										   8 * (key / 2),
									   8 * half + group_id));
	}

	/* Scores times log2(e), [tile][row and key of a fragment]. */
	__device__ void score(const decode_params<Traits> &p, const decode_coord<Traits> &x,
			      int64_t first, const vec16 (&k)[2][STEPS / 2], float (&s)[2][4]) const
	{
#pragma unroll
		for (int tile = 0; tile < 2; tile++) {
#pragma unroll
			for (int e = 0; e < 4; e++)
				s[tile][e] = 0;
#pragma unroll
			for (int step = 0; step < STEPS; step++) {
				const uint32_t *word = k[tile][step / 2].word + 2 * (step % 2);

				mma(s[tile], q[step], word[0], word[1]);
			}
#pragma unroll
			for (int e = 0; e < 4; e++) {
				const int64_t j = first + 8 * tile + 2 * thread_in_group + e % 2;

				const int row = group_id + 8 * (e / 2);

				s[tile][e] = p.terms.finish(p.scale * s[tile][e],
							    x.first_head + (row < x.rows ? row : 0),
							    x.i, j);
			}
		}
	}

	/* Online softmax step: s becomes P as an A fragment; O and exp_sum are rescaled. */
	__device__ void softmax_step(float (&s)[2][4], uint32_t (&a)[4])
	{
#pragma unroll
		for (int r = 0; r < 2; r++) {
			float new_max = max_score[r];

#pragma unroll
			for (int e = 0; e < 4; e++)
				new_max = fmaxf(new_max, s[e / 2][2 * r + e % 2]);
			for (int distance = 1; distance < 4; distance *= 2)
				new_max = fmaxf(new_max,
						__shfl_xor_sync(0xffffffffu, new_max, distance));
			const float factor = exp2(max_score[r] - new_max);

			max_score[r] = new_max;
			exp_sum[r] *= factor;
#pragma unroll
			for (int tile = 0; tile < TILES; tile++) {
				o[tile][2 * r] *= factor;
				o[tile][2 * r + 1] *= factor;
			}
#pragma unroll
			for (int tile = 0; tile < 2; tile++) {
				const float low = (float)(T)exp2(s[tile][2 * r] - new_max);
				const float high = (float)(T)exp2(s[tile][2 * r + 1] - new_max);

				exp_sum[r] += low + high;
				a[r + 2 * tile] = pack_bf16x2(low, high);
			}
		}
	}

	/* Packs element e of two keys into one word. */
	static __device__ uint32_t pack_two_keys(const vec16 &low, const vec16 &high, int e)
	{
		const uint32_t a = low.word[e / 2], b = high.word[e / 2];

		return e % 2 ? a >> 16 | (b & 0xffff0000u) : (a & 0xffffu) | b << 16;
	}

	__device__ void accumulate(const uint32_t (&a)[4], const vec16 (&v)[4][2])
	{
#pragma unroll
		for (int tile = 0; tile < TILES; tile++) {
			const int half = tile / 8, e = tile % 8;

			mma(o[tile], a, pack_two_keys(v[0][half], v[1][half], e),
			    pack_two_keys(v[2][half], v[3][half], e));
		}
	}

	/* Stores the warp's partial results to shared memory [slices,rows,row_size]. */
	__device__ void store(const decode_params<Traits> &p, const decode_coord<Traits> &x,
			      float *shared)
	{
#pragma unroll
		for (int r = 0; r < 2; r++) {
			float *to =
				shared + (x.slice * p.layout.rows() + x.row + group_id + 8 * r) *
						 p.layout.row_size();

			for (int distance = 1; distance < 4; distance *= 2)
				exp_sum[r] += __shfl_xor_sync(0xffffffffu, exp_sum[r], distance);
#pragma unroll
			for (int tile = 0; tile < TILES; tile++)
#pragma unroll
				for (int e = 0; e < 2; e++)
					to[64 * (tile / 8) + 8 * (2 * thread_in_group + e) +
					   tile % 8] = o[tile][2 * r + e];
			if (thread_in_group == 0) {
				to[Traits::V_DIM] = max_score[r];
				to[Traits::V_DIM + 1] = exp_sum[r];
			}
		}
	}
};

template <typename P>
static __device__ void decode_split(const decode_params<decode_mma_traits<P>> &p,
				    const decode_coord<decode_mma_traits<P>> &x,
				    decode_stages<decode_mma_traits<P>> &stages, float *shared)
{
	typedef decode_mma_traits<P> Traits;
	typedef mma_fragments<Traits> fragments;
	fragments f(p, x);

	for (int first = stages.keys.begin; x.rows > 0 && first < stages.keys.end;
	     first += stages.keys.step) {
		const char *stage = stages.wait_oldest();
		vec16 k[2][fragments::STEPS / 2], v[4][2];
		uint32_t a[4];
		float s[2][4];

		f.read_keys(stage, k);
		f.score(p, x, first + x.slice * Traits::KEYS_PER_GROUP, k, s);
		f.read_values(stage, v);
		f.softmax_step(s, a);
		f.accumulate(a, v);
		__syncwarp();
		stages.issue_next();
	}
	__syncthreads(); /* the stages' memory is reused for results */
	f.store(p, x, shared);
}

#endif
