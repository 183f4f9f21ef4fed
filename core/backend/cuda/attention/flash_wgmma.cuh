/*
 * flash_wgmma - the forward pass of flash_forward.cuh with wgmma (Hopper): the tensor cores
 * multiply while the warpgroups exponentiate.
 *
 * The PV product runs one step behind QK^T (FlashAttention-3's intra-warpgroup pipelining):
 *
 *     start S_j = Q K_j^T, start O += P_{j-1} V_{j-1}, wait for S_j, compute P_j, wait for O
 *
 * P_{j-1} waits in registers as bfloat16. Stage j-1 is read until the end of step j, so new copies
 * go to the stage of step j-2, which takes at least three stages. Blocks have two warpgroups and
 * BLOCK_M = 128 queries; key tiles have 64 keys.
 *
 * (J. Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and
 * Low-precision", 2024.)
 */
#ifndef CUDA_ATTENTION_FLASH_WGMMA_CUH
#define CUDA_ATTENTION_FLASH_WGMMA_CUH

#include "core/backend/cuda/attention/flash_forward.cuh"

/* Stages that are copied ahead of the current step. */
template <typename Traits> static constexpr int PREFETCH_STAGES = Traits::STAGES - 2;

/*
 * Waits until the copies of step j have landed and no warpgroup reads the stage of step j-2.
 */
template <typename Traits> static __device__ __forceinline__ void wait_for_stage()
{
	static_assert(Traits::STAGES >= 3, "one stage is filled while two are read");
	cp_async_wait<PREFETCH_STAGES<Traits> - 1>();
	fence_proxy_async();
	__syncthreads();
}

/* P as bfloat16 A fragments, held until the next step's PV product. */
template <typename Traits> using pending_probabilities = uint32_t[Traits::N_TILES / 2][4];

/* The tiles of one step. */
template <typename Smem>
static __device__ __forceinline__ typename Smem::stage_tiles stage_tiles_of(uint32_t start,
									    int step)
{
	return typename Smem::stage_tiles(Smem::stage(start, step));
}

template <bool FIRST> using is_first = std::integral_constant<bool, FIRST>;

/* First key tile that is fully masked for the warpgroup. */
template <typename Traits>
static __device__ int warpgroup_key_end(const query_block_loop<Traits> &loop, int warpgroup_index)
{
	const int end =
		(loop.position + 64 * warpgroup_index + 63) / Traits::BLOCK_N + 1 - loop.skipped;

	return end < loop.end ? end : loop.end;
}

template <typename Traits, typename Smem>
static __device__ void
load_key_tile_ahead(const params_of<Traits> &p, const query_block_loop<Traits> &loop,
		    const gmem_operands_of<Traits> &keys, uint32_t start, int step)
{
	if (step < loop.end)
		load_key_tile<Traits, Smem>(p, loop, keys, start, step);
	else
		cp_async_commit();
}

/*
 * Calls f(is_first, step, prefetch_next) for the key tiles before `end`. f must call
 * prefetch_next() after it has issued its products.
 */
template <typename Traits, typename Smem, typename F>
static __device__ __forceinline__ void for_each_key_tile(const params_of<Traits> &p,
							 const query_block_loop<Traits> &loop,
							 int end, uint32_t start, F f)
{
	const gmem_operands_of<Traits> keys = keys_of<Traits>(p, loop.head);

	for (int step = loop.begin; step < loop.begin + PREFETCH_STAGES<Traits>; step++)
		load_key_tile_ahead<Traits, Smem>(p, loop, keys, start, step);
	for (int step = loop.begin; step < loop.end; step++) {
		const auto prefetch_next = [&] {
			load_key_tile_ahead<Traits, Smem>(p, loop, keys, start,
							  step + PREFETCH_STAGES<Traits>);
		};

		wait_for_stage<Traits>();
		if (step == loop.begin)
			f(is_first<true>(), step, prefetch_next);
		else if (step < end)
			f(is_first<false>(), step, prefetch_next);
		else
			prefetch_next();
	}
}

/* A row adopts a new maximum only if an exponential would exceed 2^8 otherwise. */
#define MAX_LOG2_GROWTH 8

/*
 * Lazy rescaling: a row keeps its reference score while no P exceeds 2^MAX_LOG2_GROWTH, so
 * rescaling is rare after the first steps. The decision depends on the row alone. FIRST: all rows
 * adopt a reference. Returns whether the accumulators must be rescaled; `rescale` is set only then.
 */
template <typename Traits, bool FIRST>
static __device__ __forceinline__ bool
update_row_max(typename Traits::real scale_log2, online_softmax<Traits> &softmax,
	       const typename Traits::score_acc &s, typename Traits::row_scalars &rescale)
{
	typename Traits::row_scalars local_max;
	bool keeps_max = true;

	thread_row_max<Traits>(s, local_max);
#pragma unroll
	for (int half = 0; half < 2; half++)
		keeps_max &= (local_max[0][half] - softmax.row_max[0][half]) * scale_log2 <=
			     MAX_LOG2_GROWTH;
	if (!FIRST && __all_sync(0xffffffffu, keeps_max))
		return false;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const typename Traits::real previous = softmax.row_max[0][half];

		local_max[0][half] = quad_max(local_max[0][half]);
		if (FIRST || !((local_max[0][half] - previous) * scale_log2 <= MAX_LOG2_GROWTH))
			softmax.row_max[0][half] = local_max[0][half];
		rescale[0][half] =
			softmax_exp2<Traits>((previous - softmax.row_max[0][half]) * scale_log2);
		softmax.row_sum[0][half] *= rescale[0][half];
	}
	return true;
}

template <typename Traits>
static __global__ void __launch_bounds__(Traits::THREADS, Traits::MIN_BLOCKS_PER_SM)
	flash_forward_wgmma_kernel(
		struct replicas replicas, const __grid_constant__ params_of<Traits> given_p,
		const __grid_constant__ forward_outputs<typename Traits::P> given_out)
{
	const auto &p = replicas.own(given_p);
	const auto &out = replicas.own(given_out);
	typedef typename Traits::real real;
	typedef smem_layout<Traits, false> Smem;

	pdl_wait();
	char *shared = dynamic_smem();
	const uint32_t start = smem_address(shared);
	const int warpgroup_index = warpgroup(), row = 16 * (int)(threadIdx.x / 32);
	const query_block_loop<Traits> loop(p);
	const int end = warpgroup_key_end(loop, warpgroup_index);
	const score_terms_of<Traits> t = make_score_terms(p, loop.head);
	const typename Smem::resident_tiles resident(start);
	typename Traits::score_acc s;
	typename Traits::cross_acc cross;
	typename Traits::v_acc o;
	typename Traits::row_scalars rescale;
	pending_probabilities<Traits> probabilities;
	online_softmax<Traits> softmax;

	if (!Traits::is_supported())
		return;
	clear(o);
	fill(softmax.row_max, (real)-INFINITY);
	fill(softmax.row_sum, (real)0);
	resident.copy(queries_of<Traits>(p, loop.head), loop.first, false);
	for_each_key_tile<Traits, Smem>(
		p, loop, end, start, [&](auto first, int step, auto prefetch_next) {
			const typename Smem::stage_tiles stage = stage_tiles_of<Smem>(start, step);

			begin_product_nt(s, resident.score, 64 * warpgroup_index, stage.score);
			if constexpr (!first.value)
				begin_product_nn<Traits::N_TILES>(
					o, probabilities,
					stage_tiles_of<Smem>(start, step - 1).value);
			prefetch_next();
			wgmma_wait<first.value ? 0 : 1>(s);
			query_scores<Traits, Smem>(p, loop, t, resident, stage,
						   Smem::scalars(shared, step), step, s, cross);
			const bool needs_rescale = update_row_max<Traits, first.value>(
				scale_log2_of<Traits>(t), softmax, s, rescale);

			exponentiate<Traits>(scale_log2_of<Traits>(t), softmax, s);
			if (Traits::HAS_TERMS && p.dropout.factor != 0)
				apply_dropout<Traits>(p, loop.head, loop.first + row,
						      loop.first_key(step), s);
			if constexpr (!first.value) {
				wgmma_wait<0>(o);
				if (needs_rescale)
					rescale_rows<Traits>(rescale, o);
			}
			round_fragments<Traits::N_TILES>(probabilities, s);
		});
	begin_product_nn<Traits::N_TILES>(o, probabilities,
					  stage_tiles_of<Smem>(start, end - 1).value);
	wgmma_wait<0>(o);
	store_output<Traits>(p, loop, scale_log2_of<Traits>(t), row, softmax, o, out);
}

#endif
