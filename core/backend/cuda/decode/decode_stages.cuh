/*
 * decode_stages - cp.async pipeline that brings keys and values to shared memory. Included by
 * decode_attention.cuh.
 *
 * Each warp has its own STAGES stages, so warps never wait for each other. All stages are in flight
 * while the warp waits for the oldest one, and a stage is refilled as soon as it has been read.
 * Chunks that this step does not write are issued before pdl_wait().
 */
#ifndef CUDA_DECODE_DECODE_STAGES_CUH
#define CUDA_DECODE_DECODE_STAGES_CUH

template <typename Traits> struct decode_stages {
	const decode_params<Traits> &p;
	const decode_coord<Traits> &x;
	const struct key_range keys;
	char *smem;
	int next_key; /* first key of the next chunk to issue */
	int stage;    /* its stage, which is the oldest one */
	int issued;   /* stages filled by issue_early() */

	__device__ decode_stages(const decode_params<Traits> &p, const decode_coord<Traits> &x,
				 struct key_range keys, char *shared)
	    : p(p), x(x), keys(keys),
	      smem(shared + (int)threadIdx.x / WARP * Traits::STAGES * Traits::STAGE_BYTES),
	      next_key(keys.begin), stage(0), issued(0)
	{
	}
	/*
	 * Before pdl_wait(): chunks without the query's own key, which a preceding kernel may still
	 * write.
	 */
	__device__ void issue_early()
	{
#pragma unroll 1
		while (issued < Traits::STAGES &&
		       next_key + (x.slice + 1) * Traits::KEYS_PER_WARP <= x.i) {
			issue_next();
			issued++;
		}
	}
	/* After pdl_wait(): the remaining stages. */
	__device__ void issue_rest()
	{
#pragma unroll 1
		for (; issued < Traits::STAGES; issued++)
			issue_next();
	}
	/* Refills the oldest stage; all lanes must have read it. */
	__device__ void issue_next()
	{
		if (x.rows > 0 && next_key < keys.end)
			copy_chunk(p, x, next_key,
				   smem_address(smem + stage * Traits::STAGE_BYTES));
		cp_async_commit();
		next_key += keys.step;
		stage = stage + 1 < Traits::STAGES ? stage + 1 : 0;
	}
	/* Waits for the oldest stage. */
	__device__ const char *wait_oldest() const
	{
		cp_async_wait<Traits::STAGES - 1>();
		__syncwarp();
		return smem + stage * Traits::STAGE_BYTES;
	}
};

/*
 * Copies a chunk to a stage [keys, then values][vector of a lane][lane]. Each lane copies what it
 * reads later.
 */
template <typename Traits>
static __device__ void copy_chunk(const decode_params<Traits> &p, const decode_coord<Traits> &x,
				  int first, uint32_t to)
{
	typedef typename Traits::T T;
	const T *k = (const T *)p.k.at + p.k_layout.at(x.b, x.first_head, 0);
	const T *v = (const T *)p.v.at + p.v_layout.at(x.b, x.first_head, 0);

	to += (uint32_t)(threadIdx.x % WARP * 16);
#pragma unroll
	for (int u = 0; u < Traits::KEYS_PER_GROUP; u++) {
		const int64_t j = x.clamped_key(first, u);

#pragma unroll
		for (int n = 0; n < Traits::K_CHANNELS / Traits::VEC16; n++) {
			const int channel = Traits::channel(x.lane, n * Traits::VEC16);

			cp_async_vec16(to + Traits::key_vec(u, n),
				       k + j * (int)p.k_layout.pitch + channel,
				       channel < p.key_width);
		}
#pragma unroll
		for (int n = 0; n < Traits::V_CHANNELS / Traits::VEC16; n++) {
			const int channel = Traits::channel(x.lane, n * Traits::VEC16);

			cp_async_vec16(to + Traits::value_vec(u, n),
				       v + j * (int)p.v_layout.pitch + channel,
				       channel < p.value_width);
		}
	}
}

#endif
