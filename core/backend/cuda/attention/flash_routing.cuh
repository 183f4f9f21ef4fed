/*
 * flash_routing - recomputes P = exp(S - lse) of all heads and combines it over heads, for top-k
 * routing.
 *
 *     R_ij = mean_h P_hij, or max_h P_hij
 *
 * The forward kernel cannot do this: a row of R needs the final lse of every head.
 */
#ifndef CUDA_ATTENTION_FLASH_ROUTING_CUH
#define CUDA_ATTENTION_FLASH_ROUTING_CUH

#include "core/backend/cuda/attention/flash_forward.cuh"

/*
 * Shared memory of routing_combine_kernel. A block computes a BLOCK_M x BLOCK_N tile of R for one
 * example and loops over heads, with Q and K double-buffered. If all heads share one key head, K is
 * copied once.
 */
template <typename Traits> struct route_smem {
	typedef smem_tiles<Traits, Traits::BLOCK_M, false> query_tiles;
	typedef smem_tiles<Traits, Traits::BLOCK_N, false> key_tiles;

	static constexpr int QUERIES = query_tiles::BYTES, KEYS = key_tiles::BYTES;
	static constexpr int KEY_STAGE =
		Traits::align_smem(KEYS + Traits::BLOCK_N * (int)sizeof(typename Traits::real));

	static __host__ __device__ bool is_shared(const params_of<Traits> &p)
	{
		return !Traits::HAS_BAND && !p.key_bias && p.k.group_size == p.H;
	}
	static int bytes(const params_of<Traits> &p)
	{
		return 2 * QUERIES + (is_shared(p) ? 1 : 2) * KEY_STAGE;
	}
	/* Offsets of the tiles of head h in shared memory. */
	static __device__ int query_offset(int h)
	{
		return h % 2 * QUERIES;
	}
	static __device__ int key_offset(const params_of<Traits> &p, int h)
	{
		return 2 * QUERIES + (is_shared(p) ? 0 : h % 2 * KEY_STAGE);
	}
};

template <typename Traits>
static __device__ void load_head(const params_of<Traits> &p, int b, int h, int first, int j0,
				 bool in_band, uint32_t start)
{
	typedef route_smem<Traits> Smem;
	const int head = b * p.H + h;
	const typename Smem::query_tiles queries(start + Smem::query_offset(h));
	const uint32_t stage = start + Smem::key_offset(p, h);
	const typename Smem::key_tiles keys(stage);

	queries.copy(queries_of<Traits>(p, head), first, in_band);
	if (h == 0 || !Smem::is_shared(p)) {
		keys.copy(keys_of<Traits>(p, head), j0, in_band);
		if (Traits::HAS_BIAS)
			load_bias<Traits>(p, head, j0, stage + Smem::KEYS);
	}
	cp_async_commit();
}

/* Loads lse * log2(e) of the thread's rows; i: query of the warp's first row. */
template <typename Traits>
static __device__ __forceinline__ void load_lse_log2(const params_of<Traits> &p, int head, int i,
						     const typename Traits::real *lse,
						     typename Traits::row_scalars &lse_log2)
{
#pragma unroll
	for (int m = 0; m < Traits::M_TILES; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int at = i + 16 * m + fragment_row(2 * half);

			lse_log2[m][half] = lse[(int64_t)head * p.T + (at < p.T ? at : p.T - 1)] *
					    (typename Traits::real)M_LOG2E;
		}
}

template <typename Traits>
static __global__ void __launch_bounds__(Traits::THREADS, Traits::MIN_BLOCKS_PER_SM)
	routing_combine_kernel(
		struct replicas replicas, const __grid_constant__ params_of<Traits> given,
		const typename Traits::real *lse,
		const __grid_constant__ routing_scores<typename Traits::real> given_route,
		struct query_block x, bool maximum)
{
	replicas.to_own(lse);
	const auto &route = replicas.own(given_route);
	const auto &p = replicas.own(given);
	typedef typename Traits::real real;
	typedef route_smem<Traits> Smem;

	pdl_wait();
	char *shared = dynamic_smem();
	const uint32_t start = smem_address(shared);
	const int row = 16 * Traits::M_TILES * (int)(threadIdx.x / 32);
	const int b = (int)replicas.block_z(),
		  first = (int)x.first + (int)blockIdx.y * Traits::BLOCK_M;
	const int j0 = (int)blockIdx.x * Traits::BLOCK_N, i0 = p.past + first + row;
	const bool in_band = Traits::HAS_BAND && p.band_window >= 0 &&
			     j0 + Traits::BLOCK_N - 1 + p.band_window >= i0 - row;
	const real share = 1 / (real)p.H;
	typename Traits::score_acc s, combined;
	typename Traits::cross_acc cross;
	typename Traits::row_scalars lse_log2;

	if (!Traits::is_supported() || j0 > i0 - row + Traits::BLOCK_M - 1)
		return; /* the tile is fully masked */
	clear(combined);
	load_head<Traits>(p, b, 0, first, j0, in_band, start);
	for (int h = 0; h < p.H; h++) {
		const int key_offset = Smem::key_offset(p, h);
		const typename Smem::query_tiles queries(start + Smem::query_offset(h));
		const typename Smem::key_tiles keys(start + key_offset);
		const real *bias = (const real *)(shared + key_offset + Smem::KEYS);
		const score_terms_of<Traits> t = make_score_terms(p, b * p.H + h);

		cp_async_wait_block<Traits>();
		if (h + 1 < p.H)
			load_head<Traits>(p, b, h + 1, first, j0, in_band, start);
		if (j0 > i0 - row + Traits::first_mma_row() + Traits::MMA_ROWS - 1)
			continue; /* fully masked for these rows */
		load_lse_log2<Traits>(p, b * p.H + h, first + row, lse, lse_log2);
		product_nt(s, queries.score, row, keys.score);
		clear(cross);
		if constexpr (Traits::HAS_BAND)
			if (in_band)
				product_nt(cross, queries.cross, row, keys.cross);
		/* Routing has no window. */
		apply_score_terms<Traits, true>(
			t, in_band, cross, [=](int, int, int c) { return bias[c]; }, i0 - j0, s);
		each_number(s, [&](real &y, int m, int n, int e, int, int) {
			const real probability = softmax_exp2<Traits>(y * scale_log2_of<Traits>(t) -
								      lse_log2[m][e / 2]);

			combined[m][n][e] = maximum ? fmax(combined[m][n][e], probability)
						    : combined[m][n][e] + probability * share;
		});
	}
	each_number(combined, [&](real &y, int m, int n, int e, int r, int c) {
		const int64_t query = first - x.first + row + r;
		real *to = route.at + ((b * route.rows + query) * route.pitch + j0 + c);

		if (query >= x.n || e % 2 == 1)
			return;
		if (j0 + c + 1 <= i0 + r)
			write_pair(output_view<typename Traits::P>{ to, false }, y,
				   combined[m][n][e + 1]);
		else if (j0 + c <= i0 + r)
			*to = y;
	});
}

#endif
