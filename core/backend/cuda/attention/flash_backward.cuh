/*
 * flash_backward - backward kernels of flash attention.
 *
 *     S = scale QK^T + terms    P = exp(S - lse)    dP = dO V^T * dropout
 *     D_i = rowsum(dO_i * O_i)  dS = P * (dP - D)
 *     dQ = scale dS K           dK = scale dS^T Q   dV = (P * dropout)^T dO    dbias = colsum(dS)
 *
 * flash_backward_dq_kernel keeps a query tile resident and streams key tiles.
 * flash_backward_dkdv_kernel keeps a key tile resident and streams query tiles. Both recompute S
 * and dP: 7 GEMMs per tile instead of 5, but no block adds to another block's output, so the
 * kernels need no atomics and results are deterministic. Tensor cores bound them in bfloat16.
 *
 * In float and double, arithmetic bounds them. There the dK/dV kernel runs first and stores dS, and
 * flash_backward_dq_stored_kernel reads it: dQ then takes one GEMM.
 */
#ifndef CUDA_ATTENTION_FLASH_BACKWARD_CUH
#define CUDA_ATTENTION_FLASH_BACKWARD_CUH

#include "core/backend/cuda/attention/flash_forward.cuh"

/* --------------------------------------------------------------------------- dQ */

/*
 * Computes s = QK^T and, with WGMMA, starts dP = dO V^T. prefetch_next() issues the copies of the
 * next stage while the tensor cores work.
 */
template <typename Traits, typename Resident, typename Stage, typename PrefetchNext>
static __device__ __forceinline__ void
begin_s_and_dp(const Resident &resident, int row, const Stage &stage, PrefetchNext prefetch_next,
	       typename Traits::score_acc &s, typename Traits::score_acc &dp)
{
	if constexpr (Traits::WGMMA) {
		begin_product_nt(s, resident.score, 64 * warpgroup(), stage.score);
		begin_product_nt(dp, resident.value, 64 * warpgroup(), stage.value);
		prefetch_next();
		wgmma_wait<1>(s);
	} else {
		prefetch_next();
		product_nt(s, resident.score, row, stage.score);
	}
}

/* Completes dP = dO V^T. */
template <typename Traits, typename Resident, typename Stage>
static __device__ __forceinline__ void finish_dp(const Resident &resident, int row,
						 const Stage &stage, typename Traits::score_acc &dp)
{
	if constexpr (Traits::WGMMA)
		wgmma_wait<0>(dp);
	else
		product_nt(dp, resident.value, row, stage.value);
}

/*
 * s becomes dS = P * (dP - delta), with queries as rows. Masked scores are -inf, so their dS is 0.
 * i0, j0: first query and key of the warp's tile.
 */
template <typename Traits>
static __device__ __forceinline__ void
compute_ds(const params_of<Traits> &p, const score_terms_of<Traits> &t, int head, int i0, int j0,
	   const typename Traits::row_scalars &lse_log2, const typename Traits::row_scalars &delta,
	   typename Traits::score_acc &dp, typename Traits::score_acc &s)
{
	typedef typename Traits::real real;
	const real scale_log2 = scale_log2_of<Traits>(t);

	if (Traits::HAS_TERMS && p.dropout.factor != 0)
		apply_dropout<Traits>(p, head, i0, j0, dp);
	if (Traits::HAS_TERMS && t.softcap > 0) {
		each_number(s, [&](real &x, int m, int n, int e, int, int) {
			x = softmax_exp2<Traits>(x - lse_log2[m][e / 2]) *
			    (dp[m][n][e] - delta[m][e / 2]) *
			    formulas<typename Traits::P>::score_cap_slope(x, t.inverse_softcap);
		});
		return;
	}
	each_number(s, [&](real &x, int m, int n, int e, int, int) {
		x = softmax_exp2<Traits>(x * scale_log2 - lse_log2[m][e / 2]) *
		    (dp[m][n][e] - delta[m][e / 2]);
	});
}

/*
 * Returns the sum of x over the block, valid in all threads. warp_sums: WARPS doubles of shared
 * memory.
 */
template <int WARPS> static __device__ double block_sum_of_doubles(double x, double *warp_sums)
{
	for (int step = 16; step > 0; step /= 2)
		x += __shfl_xor_sync(0xffffffffu, x, step);
	if (threadIdx.x % 32 == 0)
		warp_sums[threadIdx.x / 32] = x;
	__syncthreads();
	x = 0;
	for (int i = 0; i < WARPS; i++)
		x += warp_sums[i];
	return x;
}

/* Loads lse and delta of the thread's queries from global memory. */
template <typename Traits>
static __device__ __forceinline__ void
load_row_scalars(const params_of<Traits> &p, const query_block_loop<Traits> &loop, int row,
		 typename Traits::row_scalars &lse_log2, typename Traits::row_scalars &delta)
{
#pragma unroll
	for (int m = 0; m < Traits::M_TILES; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int64_t at = (int64_t)loop.head * p.padded_T + loop.first + row +
					   16 * m + fragment_row(2 * half);

			lse_log2[m][half] = p.lse_log2[at];
			delta[m][half] = p.delta[at];
		}
}

/* Shared memory of the WGMMA dQ kernel after its stages: lse and delta of the resident queries. */
template <typename Traits> struct resident_scalars {
	static constexpr int AT = smem_layout<Traits, true>::BYTES;
	static constexpr int BYTES =
		Traits::WGMMA ? 2 * Traits::BLOCK_M * (int)sizeof(typename Traits::real) : 0;
};

/*
 * FlashAttention's preprocess step, fused into the WGMMA dQ kernel: computes lse * log2(e) and
 * delta of the resident queries. dO goes to the shared tile `value`, lse and delta go to `scalars`.
 * All three also go to global memory, where the dK/dV kernel reads them.
 */
template <typename Traits, typename Tile>
static __device__ void preprocess_resident_rows(const params_of<Traits> &p,
						const query_block_loop<Traits> &loop,
						const backward_preprocess<typename Traits::P> &r,
						const Tile &value, typename Traits::real *scalars)
{
	constexpr int VECS = Traits::V_DIM / VEC16<typename Traits::factor>,
		      ROWS_PER_LOAD = Traits::THREADS / VECS;
	constexpr int LOADS = Traits::BLOCK_M / ROWS_PER_LOAD;
	const uint32_t vec = threadIdx.x % VECS, first_row = threadIdx.x / VECS;
	const auto query = [&](int load) -> struct query_vec {
		return { (uint32_t)(loop.head / p.H),
			 (uint32_t)(loop.head % p.H),
			 (uint32_t)p.H,
			 (uint32_t)loop.first + first_row + load *ROWS_PER_LOAD,
			 (uint32_t)p.T,
			 (uint32_t)p.padded_T,
			 vec,
			 VECS };
	};
	const auto put = [&](int load, uint4 d_o, const typename Traits::real(&lse_delta)[2]) {
		const int row = (int)first_row + load * ROWS_PER_LOAD;

		st_shared_vec16(value.vec(row, (int)vec), d_o);
		if (vec == 0) {
			scalars[row] = lse_delta[0];
			scalars[Traits::BLOCK_M + row] = lse_delta[1];
		}
	};
	typename Traits::real lse_delta[2];

	if (r.is_bf16()) {
		typename backward_preprocess<typename Traits::P>::bf16_vecs loaded[LOADS];

#pragma unroll
		for (int load = 0; load < LOADS; load++)
			loaded[load] = r.load_bf16(query(load));
#pragma unroll
		for (int load = 0; load < LOADS; load++)
			put(load, r.preprocess_bf16(query(load), loaded[load], lse_delta),
			    lse_delta);
	} else {
		for (int load = 0; load < LOADS; load++)
			put(load, r.preprocess(query(load), lse_delta), lse_delta);
	}
}

/* Reads lse and delta of the thread's queries from shared memory. */
template <typename Traits>
static __device__ __forceinline__ void
read_row_scalars(const typename Traits::real *scalars, int row,
		 typename Traits::row_scalars &lse_log2, typename Traits::row_scalars &delta)
{
#pragma unroll
	for (int m = 0; m < Traits::M_TILES; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int at = row + 16 * m + fragment_row(2 * half);

			lse_log2[m][half] = scalars[at];
			delta[m][half] = scalars[Traits::BLOCK_M + at];
		}
}

/*
 * dQ = scale dS K. One block per BLOCK_M queries of a head; it streams tiles of BLOCK_N keys.
 *
 * IN_BAND: computes the band's share of dK instead, dk_i = scale band sum_j dS_ij q_j over keys j
 * in the band, and the block's partial sum of dband.
 */
template <typename Traits, bool IN_BAND>
static __global__ void __launch_bounds__(Traits::THREADS, Traits::MIN_BLOCKS_PER_SM)
	flash_backward_dq_kernel(
		struct replicas replicas, const __grid_constant__ params_of<Traits> given_p,
		const __grid_constant__ gmem_output<typename Traits::P> given_out, double *dband,
		const __grid_constant__ backward_preprocess<typename Traits::P> given_rows)
{
	replicas.to_own(dband);
	const auto &p = replicas.own(given_p);
	const auto &out = replicas.own(given_out);
	const auto &rows = replicas.own(given_rows);
	typedef typename Traits::real real;
	typedef smem_layout<Traits, true> Smem;

	pdl_wait();
	char *shared = dynamic_smem();
	const uint32_t start = smem_address(shared);
	query_block_loop<Traits> loop(p);
	const score_terms_of<Traits> t = make_score_terms(p, loop.head);
	const gmem_operands_of<Traits> keys = keys_of<Traits>(p, loop.head);
	const typename Smem::resident_tiles resident(start);
	const int row = 16 * Traits::M_TILES * (int)(threadIdx.x / 32);
	typename Traits::score_acc s, dp;
	typename Traits::cross_acc cross;
	typename Traits::qk_acc d;
	typename Traits::row_scalars lse_log2, delta, factor;
	real dband_sum = 0;

	if (!Traits::is_supported())
		return;
	if (IN_BAND)
		loop.begin = loop.band_begin(p);
	clear(d);
	if constexpr (Traits::WGMMA) {
		real *scalars = (real *)(shared + resident_scalars<Traits>::AT);

		resident.copy_score(queries_of<Traits>(p, loop.head), loop.first);
		load_key_tile<Traits, Smem>(p, loop, keys, start, loop.begin);
		preprocess_resident_rows<Traits>(p, loop, rows, resident.value, scalars);
		__syncthreads();
		read_row_scalars<Traits>(scalars, row, lse_log2, delta);
	} else {
		load_row_scalars<Traits>(p, loop, row, lse_log2, delta);
		resident.copy(queries_of<Traits>(p, loop.head), loop.first, p.band_window >= 0);
		load_key_tile<Traits, Smem>(p, loop, keys, start, loop.begin);
	}
	for (int step = loop.begin; step < loop.end; step++) {
		const typename Smem::stage_tiles stage(Smem::stage(start, step));
		const int i0 = loop.position + row, j0 = loop.first_key(step);
		const auto prefetch_next = [&] {
			if (step + 1 < loop.end)
				load_key_tile<Traits, Smem>(p, loop, keys, start, step + 1);
		};

		cp_async_wait_block<Traits>();
		if (j0 > loop.position + Traits::first_mma_row() + Traits::MMA_ROWS - 1) {
			prefetch_next();
			continue;
		}
		begin_s_and_dp<Traits>(resident, row, stage, prefetch_next, s, dp);
		query_scores<Traits, Smem>(p, loop, t, resident, stage, Smem::scalars(shared, step),
					   step, s, cross);
		finish_dp<Traits>(resident, row, stage, dp);
		compute_ds<Traits>(p, t, loop.head, i0, j0, lse_log2, delta, dp, s);
		if constexpr (IN_BAND) {
			each_number(s, [&](real &x, int m, int n, int e, int r, int c) {
				x = i0 + r - j0 - c <= t.band_window ? x : 0;
				dband_sum += x * cross[m][n][e];
			});
			product_nn(d, s, stage.cross);
		} else {
			product_nn(d, s, stage.score);
		}
	}
	fill(factor, IN_BAND ? p.scale * p.band() : p.scale);
	if (out.to.at)
		store_rows(out, out.rows(loop.head, p.H), loop.first + row, p.T, d, factor);
	if (IN_BAND) {
		__syncthreads();
		const double sum =
			block_sum_of_doubles<Traits::WARPS>((double)dband_sum, (double *)shared);

		if (threadIdx.x == 0)
			dband[blockIdx.x] = sum * (double)p.scale;
	}
}

/*
 * Loads the stored dS of the warp's queries and one key tile. Only visible entries (j <= i) are
 * guaranteed to be stored, so only pairs whose first key is visible are read. The second key of
 * such a pair lies in the same MMA tile; if it is masked, a 0 was stored for it.
 */
template <typename Traits>
static __device__ __forceinline__ void load_ds(const params_of<Traits> &p,
					       const query_block_loop<Traits> &loop, int row,
					       int step, typename Traits::score_acc &ds)
{
	typedef aligned_pair<typename Traits::real> pair;
	const int i0 = loop.first + row, j0 = step * Traits::BLOCK_N;
	const bool all_visible = j0 + Traits::BLOCK_N - 1 <= i0 && i0 + 16 * Traits::M_TILES <= p.T;

#pragma unroll
	for (int m = 0; m < Traits::M_TILES; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int i = i0 + 16 * m + fragment_row(2 * half),
				  j = j0 + fragment_column(0);
			const typename Traits::real *from = p.ds_at(loop.head, i, j);

#pragma unroll
			for (int n = 0; n < Traits::N_TILES; n++) {
				const bool visible = all_visible || (i < p.T && j + 8 * n <= i);
				const pair x =
					visible ? *(const pair *)(from + 8 * n) : pair{ 0, 0 };

				ds[m][n][2 * half] = x.x;
				ds[m][n][2 * half + 1] = x.y;
			}
		}
}

/* Shared memory of flash_backward_dq_stored_kernel: two stages of key tiles. */
template <typename Traits> struct stored_ds_smem {
	typedef smem_tiles<Traits, Traits::BLOCK_N, false> stage_tiles;
	static constexpr int BYTES = 2 * stage_tiles::SCORE;

	/* Issues the copies of one key tile. */
	static __device__ void copy(const gmem_operands_of<Traits> &keys, uint32_t start, int step)
	{
		stage(start, step).copy_score(keys, step * Traits::BLOCK_N);
		cp_async_commit();
	}
	static __device__ stage_tiles stage(uint32_t start, int step)
	{
		return stage_tiles(start + step % 2 * stage_tiles::SCORE);
	}
};

/*
 * dQ = scale dS K with the dS that flash_backward_dkdv_kernel stored. dS is loaded one step ahead,
 * so no product waits for it.
 */
template <typename Traits>
static __global__ void __launch_bounds__(Traits::THREADS, Traits::MIN_BLOCKS_PER_SM)
	flash_backward_dq_stored_kernel(
		struct replicas replicas, const __grid_constant__ params_of<Traits> given_p,
		const __grid_constant__ gmem_output<typename Traits::P> given_out)
{
	const auto &p = replicas.own(given_p);
	const auto &out = replicas.own(given_out);
	typedef stored_ds_smem<Traits> Smem;

	pdl_wait();
	const uint32_t start = smem_address(dynamic_smem());
	const query_block_loop<Traits> loop(p);
	const gmem_operands_of<Traits> keys = keys_of<Traits>(p, loop.head);
	const int row = 16 * Traits::M_TILES * (int)(threadIdx.x / 32);
	typename Traits::score_acc ds, next;
	typename Traits::qk_acc d;
	typename Traits::row_scalars factor;

	clear(d);
	Smem::copy(keys, start, loop.begin);
	load_ds<Traits>(p, loop, row, loop.begin, next);
	for (int step = loop.begin; step < loop.end; step++) {
		each_number(ds, [&](auto &x, int m, int n, int e, int, int) { x = next[m][n][e]; });
		cp_async_wait_block<Traits>();
		if (step + 1 < loop.end) {
			Smem::copy(keys, start, step + 1);
			load_ds<Traits>(p, loop, row, step + 1, next);
		}
		/* Otherwise the tile is fully masked. */
		if (step * Traits::BLOCK_N < loop.first + row + 16 * Traits::M_TILES)
			product_nn(d, ds, Smem::stage(start, step).score);
	}
	fill(factor, p.scale);
	store_rows(out, out.rows(loop.head, p.H), loop.first + row, p.T, d, factor);
}

/* ---------------------------------------------------------------- dK, dV, dbias */

/*
 * The loop of one key block over the query tiles that see it, for heads_per_block heads in turn.
 * The backward pass has no past, so query i has position i.
 */
template <typename Traits> struct key_block_loop {
	int group;	 /* index of the group of heads_per_block heads */
	int head, first; /* first key */
	int begin, end;	 /* range of query tiles */

	__device__ explicit key_block_loop(const params_of<Traits> &p)
	{
		const int blocks = (p.S + Traits::BLOCK_M - 1) / Traits::BLOCK_M;
		const struct tile_order order(blocks);

		group = p.first_head / p.heads_per_block + order.head;
		head = group * p.heads_per_block;
		first = order.tile * Traits::BLOCK_M;
		begin = first / Traits::BLOCK_N;
		end = (p.T + Traits::BLOCK_N - 1) / Traits::BLOCK_N;
		if (p.window > 0 && first >= p.sinks)
			end = end_within(p.window - 1);
	}
	/* End of the query tiles that are at most `reach` tokens behind the keys. */
	__device__ int end_within(int reach) const
	{
		const int64_t last =
			((int64_t)first + Traits::BLOCK_M - 1 + reach) / Traits::BLOCK_N;

		return last + 1 < end ? (int)last + 1 : end;
	}
	__device__ bool in_band(const params_of<Traits> &p, int step) const
	{
		return Traits::HAS_BAND && p.band_window >= 0 &&
		       step * Traits::BLOCK_N <= first + Traits::BLOCK_M - 1 + p.band_window;
	}
};

/* Issues the copies of one query tile: Q, dO, lse and delta. */
template <typename Traits, typename Smem>
static __device__ void
load_query_tile(const params_of<Traits> &p, const key_block_loop<Traits> &loop,
		const gmem_operands_of<Traits> &queries, uint32_t start, int step)
{
	const typename Smem::stage_tiles to(Smem::stage(start, step));
	constexpr int N = VEC16<typename Traits::real>;
	const uint32_t scalars = Smem::stage(start, step) + Smem::stage_tiles::BYTES;
	const int64_t first = (int64_t)loop.head * p.padded_T + step * Traits::BLOCK_N;
	const int n = (int)threadIdx.x;

	to.copy(queries, step * Traits::BLOCK_N, loop.in_band(p, step));
	static_assert(Traits::BLOCK_N / N <= Traits::THREADS, "one vector per thread");
	if (n < Traits::BLOCK_N / N) {
		cp_async_vec16(scalars + n * 16, p.lse_log2 + first + n * N, true);
		cp_async_vec16(scalars + (Traits::BLOCK_N / N + n) * 16, p.delta + first + n * N,
			       true);
	}
	cp_async_commit();
}

/* s = KQ^T becomes P^T = exp2(s - lse), with keys as rows. Masked entries become 0. */
template <typename Traits, typename Smem>
static __device__ void
key_probabilities(const params_of<Traits> &p, const key_block_loop<Traits> &loop,
		  const score_terms_of<Traits> &t, const typename Smem::resident_tiles &resident,
		  const typename Smem::stage_tiles &queries, const typename Traits::real *lse_log2,
		  const typename Traits::row_scalars &bias, int step, typename Traits::score_acc &s)
{
	typedef typename Traits::real real;
	const int row = 16 * Traits::M_TILES * (int)(threadIdx.x / 32);
	const int j0 = loop.first + row, i0 = step * Traits::BLOCK_N;
	const bool in_band = loop.in_band(p, step);
	typename Traits::cross_acc cross;

	clear(cross);
	if constexpr (Traits::HAS_BAND)
		if (in_band)
			product_nt(cross, resident.cross, row, queries.cross);
	apply_score_terms<Traits, false>(
		t, in_band, cross, [&](int m, int e, int) { return bias[m][e / 2]; }, i0 - j0, s);
	each_number(s, [&](real &x, int, int, int, int, int c) {
		x = softmax_exp2<Traits>(x * scale_log2_of<Traits>(t) - lse_log2[c]);
	});
	if (i0 < j0 + 16 * Traits::M_TILES - 1) /* the tile crosses the diagonal */
		each_number(s, [&](real &x, int, int, int, int r, int c) {
			x = j0 + r <= i0 + c ? x : 0;
		});
	if constexpr (Traits::HAS_TERMS)
		if (t.hides(i0 + Traits::BLOCK_N - 1, j0))
			each_number(s, [&](real &x, int, int, int, int r, int c) {
				x = t.sees(i0 + c, j0 + r) ? x : 0;
			});
}

/* Loads the bias of the thread's keys. */
template <typename Traits>
static __device__ void load_key_bias(const params_of<Traits> &p, const key_block_loop<Traits> &loop,
				     int row, typename Traits::row_scalars &bias)
{
#pragma unroll
	for (int m = 0; m < Traits::M_TILES; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int j = loop.first + row + 16 * m + fragment_row(2 * half);

			bias[m][half] = 0;
			if (Traits::HAS_BIAS && p.key_bias && j < p.S)
				bias[m][half] = p.key_bias[p.bias_layout.at(loop.head / p.H,
									    loop.head % p.H, j)];
		}
}

/* Accumulators of the resident keys. dk sums over all heads of the block, dv and dbias over one. */
template <typename Traits> struct dkdv_accumulators {
	typename Traits::qk_acc dk;
	typename Traits::v_acc dv;
	typename Traits::row_scalars dbias;
};

/* ds *= cap'(score). The score follows from P; where P is 0, so is dS. Keys are rows. */
template <typename Traits>
static __device__ __forceinline__ void
apply_cap_slope(const score_terms_of<Traits> &t, const typename Traits::real *lse_log2,
		const typename Traits::score_acc &probabilities, typename Traits::score_acc &ds)
{
	typedef typename Traits::real real;

	if (!Traits::HAS_TERMS || !(t.softcap > 0))
		return;
	each_number(ds, [&](real &x, int m, int n, int e, int, int c) {
		x *= formulas<typename Traits::P>::score_cap_slope(
			log2(probabilities[m][n][e]) + lse_log2[c], t.inverse_softcap);
	});
}

/*
 * dp becomes dS^T, s becomes (P * dropout)^T, and dS is added to dbias. Keys are rows, queries are
 * columns.
 */
template <typename Traits>
static __device__ __forceinline__ void
compute_ds_of_keys(const params_of<Traits> &p, const key_block_loop<Traits> &loop,
		   const score_terms_of<Traits> &t, int row, int step,
		   const typename Traits::real *lse_log2, bool needs_dbias,
		   typename Traits::score_acc &s, typename Traits::score_acc &dp,
		   dkdv_accumulators<Traits> &sums)
{
	typedef typename Traits::real real;
	const typename Traits::real *delta = lse_log2 + Traits::BLOCK_N;
	const int j0 = loop.first + row, i0 = step * Traits::BLOCK_N;

	if (Traits::HAS_TERMS && p.dropout.factor != 0) {
		const dropout_bits<Traits> k(
			p, loop.head, [=](int, int c) { return i0 + c; },
			[=](int r, int) { return j0 + r; });

		each_number(dp, [&](real &x, int m, int n, int e, int, int c) {
			x = s[m][n][e] * (x * k.at(m, n, e) - delta[c]);
		});
		apply_cap_slope<Traits>(t, lse_log2, s, dp);
		each_number(s, [&](real &x, int m, int n, int e, int, int) { x *= k.at(m, n, e); });
	} else {
		each_number(dp, [&](real &x, int m, int n, int e, int, int c) {
			x = s[m][n][e] * (x - delta[c]);
		});
		apply_cap_slope<Traits>(t, lse_log2, s, dp);
	}
	if (Traits::HAS_BIAS && needs_dbias)
		each_number(dp, [&](real &x, int m, int, int e, int, int) {
			sums.dbias[m][e / 2] += x;
		});
}

/*
 * dV += P^T dO and dK += dS^T Q with WGMMA. The dP product may still be in flight. Without dropout
 * P is final, so the dV product starts before dS is computed and overlaps with it.
 */
template <typename Traits, typename Stage>
static __device__ __forceinline__ void
accumulate_dkdv_wgmma(const params_of<Traits> &p, const key_block_loop<Traits> &loop,
		      const score_terms_of<Traits> &t, int row, int step, const Stage &queries,
		      const typename Traits::real *lse_log2, bool needs_dbias,
		      typename Traits::score_acc &s, typename Traits::score_acc &dp,
		      dkdv_accumulators<Traits> &sums)
{
	uint32_t p_rounded[Traits::N_TILES / 2][4], ds_rounded[Traits::N_TILES / 2][4];

	if constexpr (Traits::HAS_TERMS) {
		wgmma_wait<0>(dp);
		compute_ds_of_keys<Traits>(p, loop, t, row, step, lse_log2, needs_dbias, s, dp,
					   sums);
		round_fragments<Traits::N_TILES>(p_rounded, s);
		begin_product_nn<Traits::N_TILES>(sums.dv, p_rounded, queries.value);
	} else {
		round_fragments<Traits::N_TILES>(p_rounded, s);
		begin_product_nn<Traits::N_TILES>(sums.dv, p_rounded, queries.value);
		wgmma_wait<1>(dp);
		compute_ds_of_keys<Traits>(p, loop, t, row, step, lse_log2, needs_dbias, s, dp,
					   sums);
	}
	round_fragments<Traits::N_TILES>(ds_rounded, dp);
	begin_product_nn<Traits::N_TILES>(sums.dk, ds_rounded, queries.score);
	wgmma_wait<0>(sums.dv);
	wgmma_wait<0>(sums.dk);
}

/* Stores dS of one tile for flash_backward_dq_stored_kernel. */
template <typename Traits>
static __device__ __forceinline__ void store_ds(const params_of<Traits> &p,
						const key_block_loop<Traits> &loop, int row,
						int step, typename Traits::score_acc &ds)
{
	typename Traits::real *to = p.ds_at(loop.head, step * Traits::BLOCK_N, loop.first + row);

	each_number(ds, [&](auto &x, int, int, int, int r, int c) { to[c * p.padded_T + r] = x; });
}

/* Adds the contribution of one query tile to dK, dV and dbias of the warp's keys. */
template <typename Traits, typename Smem, bool IN_BAND, typename PrefetchNext>
static __device__ __forceinline__ void
accumulate_dkdv(const params_of<Traits> &p, const key_block_loop<Traits> &loop,
		const score_terms_of<Traits> &t, const typename Smem::resident_tiles &resident,
		const typename Smem::stage_tiles &queries, const typename Traits::real *lse_log2,
		const typename Traits::row_scalars &bias, int step, bool needs_dbias,
		PrefetchNext prefetch_next, dkdv_accumulators<Traits> &sums)
{
	typedef typename Traits::real real;
	const int row = 16 * Traits::M_TILES * (int)(threadIdx.x / 32);
	const int j0 = loop.first + row, i0 = step * Traits::BLOCK_N;
	typename Traits::score_acc s, dp;

	begin_s_and_dp<Traits>(resident, row, queries, prefetch_next, s, dp);
	key_probabilities<Traits, Smem>(p, loop, t, resident, queries, lse_log2, bias, step, s);
	if constexpr (Traits::WGMMA) {
		accumulate_dkdv_wgmma<Traits>(p, loop, t, row, step, queries, lse_log2, needs_dbias,
					      s, dp, sums);
	} else {
		finish_dp<Traits>(resident, row, queries, dp);
		compute_ds_of_keys<Traits>(p, loop, t, row, step, lse_log2, needs_dbias, s, dp,
					   sums);
		if constexpr (IN_BAND) {
			each_number(dp, [&](real &x, int, int, int, int r, int c) {
				x = i0 + c - j0 - r <= t.band_window ? x : 0;
			});
			product_nn(sums.dk, dp, queries.cross);
		} else {
			if (!ROUNDS<typename Traits::P> && p.ds)
				store_ds<Traits>(p, loop, row, step, dp);
			product_nn(sums.dv, s, queries.value);
			product_nn(sums.dk, dp, queries.score);
		}
	}
}

/* Writes dbias_j = sum_i dS_ij of the thread's keys to [B,H,S]. */
template <typename Traits>
static __device__ void store_dbias(const params_of<Traits> &p, const key_block_loop<Traits> &loop,
				   int row, const typename Traits::row_scalars &sums,
				   typename Traits::real *dbias)
{
#pragma unroll
	for (int m = 0; m < Traits::M_TILES; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const typename Traits::real sum = quad_sum(sums[m][half]);
			const int j = loop.first + row + 16 * m + fragment_row(2 * half);

			if (j < p.S && threadIdx.x % 4 == 0)
				dbias[(int64_t)loop.head * p.S + j] = sum;
		}
}

/*
 * dK = scale dS^T Q, dV = (P * dropout)^T dO, dbias_j = sum_i dS_ij (dbias [B,H,S] or NULL). One
 * block per BLOCK_M keys; it streams tiles of BLOCK_N queries. A block sums dK over
 * p.heads_per_block heads that share keys, so dk has H / p.heads_per_block heads. dS is stored if
 * p.ds is set.
 *
 * IN_BAND: computes the band's share of dQ instead, dq_j = scale band sum_i dS_ij k_i over queries
 * i in the band, into dk.
 */
template <typename Traits, bool IN_BAND>
static __global__ void __launch_bounds__(Traits::THREADS, Traits::MIN_BLOCKS_PER_SM)
	flash_backward_dkdv_kernel(struct replicas replicas,
				   const __grid_constant__ params_of<Traits> given_p,
				   const __grid_constant__ gmem_output<typename Traits::P> given_dk,
				   const __grid_constant__ gmem_output<typename Traits::P> given_dv,
				   typename Traits::real *dbias)
{
	replicas.to_own(dbias);
	const auto &p = replicas.own(given_p);
	const auto &dk = replicas.own(given_dk);
	const auto &dv = replicas.own(given_dv);
	typedef typename Traits::real real;
	typedef smem_layout<Traits, true> Smem;

	pdl_wait();
	char *shared = dynamic_smem();
	const uint32_t start = smem_address(shared);
	key_block_loop<Traits> loop(p);
	const typename Smem::resident_tiles resident(start);
	const int row = 16 * Traits::M_TILES * (int)(threadIdx.x / 32),
		  last = loop.head + p.heads_per_block - 1;
	dkdv_accumulators<Traits> sums;
	typename Traits::row_scalars bias, factor;

	if (!Traits::is_supported())
		return;
	clear(sums.dk);
	if (IN_BAND)
		loop.end = loop.end_within(p.band_window);
	for (; loop.head <= last; loop.head++) {
		const score_terms_of<Traits> t = make_score_terms(p, loop.head);
		const gmem_operands_of<Traits> queries = queries_of<Traits>(p, loop.head);

		load_key_bias<Traits>(p, loop, row, bias);
		fill(sums.dbias, (real)0);
		clear(sums.dv);
		resident.copy(keys_of<Traits>(p, loop.head), loop.first, p.band_window >= 0);
		load_query_tile<Traits, Smem>(p, loop, queries, start, loop.begin);
		for (int step = loop.begin; step < loop.end; step++) {
			const typename Smem::stage_tiles stage(Smem::stage(start, step));
			const auto prefetch_next = [&] {
				if (step + 1 < loop.end)
					load_query_tile<Traits, Smem>(p, loop, queries, start,
								      step + 1);
			};

			cp_async_wait_block<Traits>();
			if (step * Traits::BLOCK_N + Traits::BLOCK_N - 1 <
			    loop.first + Traits::first_mma_row()) {
				prefetch_next();
				continue; /* the tile is fully masked */
			}
			accumulate_dkdv<Traits, Smem, IN_BAND>(p, loop, t, resident, stage,
							       Smem::scalars(shared, step), bias,
							       step, dbias, prefetch_next, sums);
		}
		if constexpr (!IN_BAND) {
			fill(factor, (real)1);
			if (dv.to.at)
				store_rows(dv, dv.rows(loop.head, p.H), loop.first + row, p.S,
					   sums.dv, factor);
			if (Traits::HAS_BIAS && dbias)
				store_dbias<Traits>(p, loop, row, sums.dbias, dbias);
		}
		if (loop.head < last)
			__syncthreads(); /* all warps have read the resident tiles */
	}
	fill(factor, IN_BAND ? p.scale * p.band() : p.scale);
	if (dk.to.at)
		store_rows(dk, dk.rows(loop.group, p.H / p.heads_per_block), loop.first + row, p.S,
			   sums.dk, factor);
}

/* ------------------------------------------------------------- distance bias */

/*
 * Shared memory of flash_backward_distance_kernel: one tile of queries, one of keys, and the key
 * biases. At the end all of it holds the sums of dS.
 */
template <typename Traits> struct distance_smem {
	typedef smem_tiles<Traits, Traits::BLOCK_M, true> resident_tiles;
	typedef smem_tiles<Traits, Traits::BLOCK_N, true> stage_tiles;

	static constexpr int TILES = resident_tiles::BYTES + stage_tiles::BYTES;
	static constexpr int PITCH = Traits::BLOCK_N + 1;
	static constexpr int SUMS = Traits::BLOCK_M * PITCH * (int)sizeof(typename Traits::real);
	static constexpr int LOADED = TILES + Traits::BLOCK_N * (int)sizeof(typename Traits::real);
	static constexpr int BYTES = LOADED > SUMS ? LOADED : SUMS;
};

/* Tiles of keys that lie `diagonal` tiles before the first query of a tile, for all such tiles. */
template <typename Traits> struct distance_layout {
	static constexpr int RATIO = Traits::BLOCK_M / Traits::BLOCK_N;
	static constexpr int SUMS = Traits::BLOCK_M + Traits::BLOCK_N - 1; /* distances of a tile */

	/* Diagonals are numbered from -(RATIO - 1). */
	static __host__ __device__ int64_t diagonals(int64_t T)
	{
		return (T + Traits::BLOCK_N - 1) / Traits::BLOCK_N + RATIO - 1;
	}
};

/*
 * The gradient of the distance bias, ddistance_d = sum of dS_ij over i - j = d. A block takes the
 * tiles of one head that have the same distance of query and key tile: the elements of their dS at
 * (r, c) belong to the same distance, so they are added up in registers. At the end the block
 * sums its BLOCK_M + BLOCK_N - 1 diagonals, in fixed order, to sums [heads,diagonals,SUMS].
 */
template <typename Traits>
static __global__ void __launch_bounds__(Traits::THREADS, Traits::MIN_BLOCKS_PER_SM)
	flash_backward_distance_kernel(struct replicas replicas,
				       const __grid_constant__ params_of<Traits> given,
				       typename Traits::real *sums)
{
	replicas.to_own(sums);
	const auto &p = replicas.own(given);
	typedef typename Traits::real real;
	typedef distance_smem<Traits> Smem;
	typedef distance_layout<Traits> Layout;

	pdl_wait();
	char *shared = dynamic_smem();
	const uint32_t start = smem_address(shared);
	const typename Smem::resident_tiles resident(start);
	const typename Smem::stage_tiles stage(start + Smem::resident_tiles::BYTES);
	const real *bias = (const real *)(shared + Smem::TILES);
	const int row = 16 * Traits::M_TILES * (int)(threadIdx.x / 32);
	const int diagonal = (int)blockIdx.x - (Layout::RATIO - 1);
	query_block_loop<Traits> loop(p, (int)blockIdx.y);
	const score_terms_of<Traits> t = make_score_terms(p, loop.head);
	typename Traits::score_acc s, dp, total;
	typename Traits::cross_acc cross;
	typename Traits::row_scalars lse_log2, delta;

	clear(total);
	for (; loop.first < p.T; loop.first += Traits::BLOCK_M, loop.position = loop.first) {
		const int j0 = loop.first - diagonal * Traits::BLOCK_N;
		const int step = j0 / Traits::BLOCK_N;

		if (j0 < 0 || j0 >= p.S ||
		    (t.window > 0 && j0 >= t.sinks &&
		     j0 + Traits::BLOCK_N <= loop.first - t.window + 1))
			continue;
		__syncthreads(); /* all warps have read the previous tiles */
		resident.copy(queries_of<Traits>(p, loop.head), loop.first, p.band_window >= 0);
		stage.copy(keys_of<Traits>(p, loop.head), j0, p.band_window >= 0);
		load_bias<Traits>(p, loop.head, j0, start + Smem::TILES);
		cp_async_commit();
		load_row_scalars<Traits>(p, loop, row, lse_log2, delta);
		cp_async_wait_block<Traits>();
		product_nt(s, resident.score, row, stage.score);
		query_scores<Traits, Smem>(p, loop, t, resident, stage, bias, step, s, cross);
		product_nt(dp, resident.value, row, stage.value);
		compute_ds<Traits>(p, t, loop.head, loop.position + row, j0, lse_log2, delta, dp,
				   s);
		each_number(total,
			    [&](real &x, int m, int n, int e, int, int) { x += s[m][n][e]; });
	}
	__syncthreads();
	real *tile = (real *)shared;

	each_number(total, [&](real &x, int, int, int, int r, int c) {
		tile[(row + r) * Smem::PITCH + c] = x;
	});
	__syncthreads();
	for (int n = (int)threadIdx.x; n < Layout::SUMS; n += Traits::THREADS) {
		const int distance = n - (Traits::BLOCK_N - 1); /* r - c */
		real sum = 0;

		for (int r = distance > 0 ? distance : 0;
		     r < Traits::BLOCK_M && r - distance < Traits::BLOCK_N; r++)
			sum += tile[r * Smem::PITCH + r - distance];
		sums[((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * Layout::SUMS + n] = sum;
	}
}

#endif
