/*
 * decode_stages - the keys and values of a part on their way to shared memory.  A part of
 * decode_attention.cuh.
 *
 * A warp has STAGES stages, each for its share of a chunk.  All are on their way while it waits for
 * the first, and a stage that has been read is filled again.  What was in the cache before this
 * token sets out before the kernel before has ended.  A warp waits for no other warp.
 */
#ifndef CUDA_DECODE_DECODE_STAGES_CUH
#define CUDA_DECODE_DECODE_STAGES_CUH

template <typename X> struct decode_stages {
	const decode_problem<X> &p;
	const decode_place<X> &x;
	const struct decode_keys keys;
	char *mine;
	int first; /* of the chunk that sets out next */
	int stage; /* for it: the oldest one */
	int begun; /* stages, by begin() */

	__device__ decode_stages(const decode_problem<X> &p, const decode_place<X> &x,
				 struct decode_keys keys, char *shared)
	    : p(p), x(x), keys(keys), mine(shared + (int)threadIdx.x / WARP * X::STAGES * X::STAGE),
	      first(keys.begin), stage(0), begun(0)
	{
	}
	/* Before pdl_wait(): chunks without the query's own key, which may not be written yet.
	 */
	__device__ void begin()
	{
#pragma unroll 1
		while (begun < X::STAGES && first + (x.slice + 1) * X::WARP_KEYS <= x.i) {
			next();
			begun++;
		}
	}
	/* After it: all that have not set out. */
	__device__ void fill()
	{
#pragma unroll 1
		for (; begun < X::STAGES; begun++)
			next();
	}
	/* The oldest stage has been read by all lanes. */
	__device__ void next()
	{
		if (x.rows > 0 && first < keys.end)
			decode_copy(p, x, first, smem_address(mine + stage * X::STAGE));
		cp_async_commit();
		first += keys.step;
		stage = stage + 1 < X::STAGES ? stage + 1 : 0;
	}
	/* The oldest stage, which is there for all lanes. */
	__device__ const char *oldest() const
	{
		cp_async_wait<X::STAGES - 1>();
		__syncwarp();
		return mine + stage * X::STAGE;
	}
};

/* [keys, then values][of a lane, piece by piece][lane] of 16 bytes: each lane copies what it will
 * read. */
template <typename X>
static __device__ void decode_copy(const decode_problem<X> &p, const decode_place<X> &x, int first,
				   uint32_t to)
{
	typedef typename X::T T;
	const T *k = (const T *)p.k.at + p.k_layout.at(x.b, x.first, 0);
	const T *v = (const T *)p.v.at + p.v_layout.at(x.b, x.first, 0);

	to += (uint32_t)(threadIdx.x % WARP * 16);
#pragma unroll
	for (int u = 0; u < X::KEYS; u++) {
		const int64_t j = x.key(first, u);

#pragma unroll
		for (int n = 0; n < X::KC / X::VEC16; n++) {
			const int channel = X::channel(x.lane, n * X::VEC16);

			cp_async_vec16(to + X::key_vec(u, n),
				       k + j * (int)p.k_layout.pitch + channel,
				       channel < p.key_width);
		}
#pragma unroll
		for (int n = 0; n < X::VC / X::VEC16; n++) {
			const int channel = X::channel(x.lane, n * X::VEC16);

			cp_async_vec16(to + X::value_vec(u, n),
				       v + j * (int)p.v_layout.pitch + channel,
				       channel < p.value_width);
		}
	}
}

#endif
