/*
 * decode_tensor - heads that share keys and values in bfloat16, on tensor cores.  A part of
 * decode_attention.cuh.
 *
 * A warp has 16 heads and takes 16 keys at a time: scores [16 heads, 16 keys], then O [16 heads,
 * 128] += P V. Both products sum over their channels or keys in any order, so fragments are laid
 * out as memory is: each lane reads keys and values by pieces of 16 bytes.  With group = lane / 4,
 * pair = lane % 4:
 *
 *     scores, step (c, half): a lane has channels 32 c + 8 pair + 4 half + 0..3, keys `group` of
 * two tiles O, tile (half, e): column n is channel 64 half + 8 n + e; a lane has keys 2 pair + 0,
 * 1, 8, 9
 *
 * P is rounded, and the sum of exponentials is that of the rounded ones.
 */
#ifndef CUDA_DECODE_DECODE_MMA_CUH
#define CUDA_DECODE_DECODE_MMA_CUH

template <typename P_> struct decode_tensor_shape {
	typedef P_ P;
	typedef typename P::factor T;
	typedef typename P::real real;

	static constexpr int LANES = WARP, TEAMS = 1, ROWS = 16, KEYS = 16, KEY = 128, VALUE = 128;
	static constexpr bool ANY = false, TENSOR = true;
	static constexpr int WARPS = 4; /* of a block, at most */
	static constexpr int RESIDENT = 2;
	static constexpr int WARP_KEYS = KEYS, STAGES = 3,
			     STAGE = KEYS * (KEY + VALUE) * (int)sizeof(T);
};

/*
 * A stage: 16 rows of keys, then of values, each of 16 pieces.  The lanes of a warp copy whole
 * rows, because quarters of rows come more slowly from memory.  Where a piece lies in its row
 * depends on the row, so that lanes that read at the same time read from different banks.
 */
static __device__ int decode_key_place(int row, int vec)
{
	return (row * 16 + (vec ^ (row % 2 * 4))) * 16;
}

static __device__ int decode_value_place(int row, int vec)
{
	return ((16 + row) * 16 + (vec ^ (row / 2 % 4 * 2))) * 16;
}

/* What comes after the query's own is replaced by its own, and does not count. */
template <typename P>
static __device__ void decode_copy(const decode_problem<decode_tensor_shape<P>> &p,
				   const decode_place<decode_tensor_shape<P>> &x, int chunk,
				   uint32_t to)
{
	typedef decode_tensor_shape<P> X;
	typedef typename X::T T;
	const int vec = x.lane % 16, channel = 8 * vec;
	const int64_t first = chunk + x.slice * X::KEYS;
	const int last = (int)(x.i - first);
	const int k_pitch = (int)p.k_layout.pitch, v_pitch = (int)p.v_layout.pitch;
	const T *k = (const T *)p.k.at + p.k_layout.at(x.b, x.first, 0) + first * k_pitch + channel;
	const T *v = (const T *)p.v.at + p.v_layout.at(x.b, x.first, 0) + first * v_pitch + channel;

#pragma unroll
	for (int n = 0; n < X::KEYS / 2; n++) {
		const int row = 2 * n + x.lane / 16, own = row < last ? row : last;

		cp_async_vec16(to + decode_key_place(row, vec), k + own * k_pitch,
			       channel < p.key_width);
	}
#pragma unroll
	for (int n = 0; n < X::KEYS / 2; n++) {
		const int row = 2 * n + x.lane / 16, own = row < last ? row : last;

		cp_async_vec16(to + decode_value_place(row, vec), v + own * v_pitch,
			       channel < p.value_width);
	}
}

template <typename X> struct decode_fragments {
	typedef typename X::T T;

	static constexpr int STEPS = X::KEY / 16, TILES = X::VALUE / 8;

	int group, pair;
	uint32_t q[STEPS][4];
	float o[TILES][4];
	float most[2], sum[2], slope[2]; /* of rows `group` and group + 8; sum: the lane's share */

	__device__ decode_fragments(const decode_problem<X> &p, const decode_place<X> &x)
	    : group(x.lane / 4), pair(x.lane % 4), q{}, o{}, most{ -1e37f, -1e37f }, sum{}, slope{}
	{
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const int row = group + 8 * r, head = x.first + row;

			if (row >= x.rows)
				continue;
			slope[r] = p.alibi ? (float)(alibi_slope(head, p.H) * M_LOG2E) : 0;
#pragma unroll
			for (int c = 0; c < STEPS / 2; c++)
				read_query(p, p.q_layout.at(x.b, head, 0), c, r);
		}
	}
	__device__ void read_query(const decode_problem<X> &p, int64_t at, int c, int r)
	{
		const int channel = 32 * c + 8 * pair;
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
					*(const vec16 *)(stage + decode_key_place(8 * tile + group,
										  4 * c + pair));
	}
	__device__ void read_values(const char *stage, vec16 (&v)[4][2]) const
	{
#pragma unroll
		for (int key = 0; key < 4; key++)
#pragma unroll
			for (int half = 0; half < 2; half++)
				v[key][half] =
					*(const vec16 *)(stage +
							 decode_value_place(2 * pair + key % 2 +
										    8 * (key / 2),
									    8 * half + group));
	}

	/* Scores in powers of two, [tile][row of two][key of two]. */
	__device__ void score(const decode_problem<X> &p, const decode_place<X> &x, int64_t first,
			      const vec16 (&k)[2][STEPS / 2], float (&s)[2][4]) const
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
				const int64_t j = first + 8 * tile + 2 * pair + e % 2;

				s[tile][e] = j <= x.i ? p.scale * s[tile][e] -
								slope[e / 2] * (float)(x.i - j)
						      : -INFINITY;
			}
		}
	}

	/* Scores become P as a product reads it; what was summed shrinks. */
	__device__ void weigh(float (&s)[2][4], uint32_t (&a)[4])
	{
#pragma unroll
		for (int r = 0; r < 2; r++) {
			float larger = most[r];

#pragma unroll
			for (int e = 0; e < 4; e++)
				larger = fmaxf(larger, s[e / 2][2 * r + e % 2]);
			for (int distance = 1; distance < 4; distance *= 2)
				larger = fmaxf(larger,
					       __shfl_xor_sync(0xffffffffu, larger, distance));
			const float factor = exp2(most[r] - larger);

			most[r] = larger;
			sum[r] *= factor;
#pragma unroll
			for (int tile = 0; tile < TILES; tile++) {
				o[tile][2 * r] *= factor;
				o[tile][2 * r + 1] *= factor;
			}
#pragma unroll
			for (int tile = 0; tile < 2; tile++) {
				const float low = (float)(T)exp2(s[tile][2 * r] - larger);
				const float high = (float)(T)exp2(s[tile][2 * r + 1] - larger);

				sum[r] += low + high;
				a[r + 2 * tile] = pack_bf16x2(low, high);
			}
		}
	}

	/* Number e of eight of two keys. */
	static __device__ uint32_t both(const vec16 &low, const vec16 &high, int e)
	{
		const uint32_t a = low.word[e / 2], b = high.word[e / 2];

		return e % 2 ? a >> 16 | (b & 0xffff0000u) : (a & 0xffffu) | b << 16;
	}

	__device__ void add(const uint32_t (&a)[4], const vec16 (&v)[4][2])
	{
#pragma unroll
		for (int tile = 0; tile < TILES; tile++) {
			const int half = tile / 8, e = tile % 8;

			mma(o[tile], a, both(v[0][half], v[1][half], e),
			    both(v[2][half], v[3][half], e));
		}
	}

	/* Row by row to shared memory [slices, rows, row_size]. */
	__device__ void put(const decode_problem<X> &p, const decode_place<X> &x, float *shared)
	{
#pragma unroll
		for (int r = 0; r < 2; r++) {
			float *to = shared + (x.slice * p.layout.rows() + x.row + group + 8 * r) *
						     p.layout.row_size();

			for (int distance = 1; distance < 4; distance *= 2)
				sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], distance);
#pragma unroll
			for (int tile = 0; tile < TILES; tile++)
#pragma unroll
				for (int e = 0; e < 2; e++)
					to[64 * (tile / 8) + 8 * (2 * pair + e) + tile % 8] =
						o[tile][2 * r + e];
			if (pair == 0) {
				to[X::VALUE] = most[r];
				to[X::VALUE + 1] = sum[r];
			}
		}
	}
};

template <typename P>
static __device__ void decode_part(const decode_problem<decode_tensor_shape<P>> &p,
				   const decode_place<decode_tensor_shape<P>> &x,
				   decode_stages<decode_tensor_shape<P>> &stages, float *shared)
{
	typedef decode_tensor_shape<P> X;
	typedef decode_fragments<X> fragments;
	fragments f(p, x);

	for (int first = stages.keys.begin; x.rows > 0 && first < stages.keys.end;
	     first += stages.keys.step) {
		const char *stage = stages.oldest();
		vec16 k[2][fragments::STEPS / 2], v[4][2];
		uint32_t a[4];
		float s[2][4];

		f.read_keys(stage, k);
		f.score(p, x, first + x.slice * X::KEYS, k, s);
		f.read_values(stage, v);
		f.weigh(s, a);
		f.add(a, v);
		__syncwarp();
		stages.next();
	}
	__syncthreads(); /* results take the place of stages */
	f.put(p, x, shared);
}

#endif
