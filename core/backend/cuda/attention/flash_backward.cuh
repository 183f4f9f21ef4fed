/*
 * fused_gradients - the kernels of fused attention for dQ, and for dK, dV and dkey_bias.
 * fused_attention.cuh says how they divide the work.
 */
#ifndef CUDA_ATTENTION_FLASH_BACKWARD_CUH
#define CUDA_ATTENTION_FLASH_BACKWARD_CUH

#include "core/backend/cuda/attention/flash_forward.cuh"

/* ---------------------------------------------------------- gradient of queries */

/*
 * The products s of scores.  Where warps multiply in groups, they are made while meanwhile() is
 * called, and those of dP go on afterwards.
 */
template <typename X, typename Own, typename Step, typename Meanwhile>
static __device__ __forceinline__ void begin_products(const Own &own, int row, const Step &step,
						      Meanwhile meanwhile, typename X::scores &s,
						      typename X::scores &dp)
{
	if constexpr (X::WGMMA) {
		begin_product_nt(s, own.score, 64 * warpgroup(), step.score);
		begin_product_nt(dp, own.value, 64 * warpgroup(), step.value);
		meanwhile();
		wgmma_wait<1>(s);
	} else {
		meanwhile();
		product_nt(s, own.score, row, step.score);
	}
}

/* The products dP are there. */
template <typename X, typename Own, typename Step>
static __device__ __forceinline__ void end_products(const Own &own, int row, const Step &step,
						    typename X::scores &dp)
{
	if constexpr (X::WGMMA)
		wgmma_wait<0>(dp);
	else
		product_nt(dp, own.value, row, step.value);
}

/* dS from scores and dP, of the queries' rows; outside the keys they see it is 0. */
template <typename X>
static __device__ __forceinline__ void
d_scores(const problem_of<X> &p, typename X::real unit, int head, int i0, int j0,
	 const typename X::row_numbers &lse2, const typename X::row_numbers &delta,
	 typename X::scores &dp, typename X::scores &s)
{
	typedef typename X::real real;

	if (X::MORE && p.mask.factor != 0)
		drop<X>(p, head, i0, j0, dp);
	each_number(s, [&](real &x, int m, int n, int e, int, int) {
		x = power_of_two<X>(x * unit - lse2[m][e / 2]) * (dp[m][n][e] - delta[m][e / 2]);
	});
}

/* The sum of x over a block of threads, in the thread 0; `room` has a number for each warp. */
template <int WARPS> static __device__ double sum_of_threads(double x, double *buffers)
{
	for (int step = 16; step > 0; step /= 2)
		x += __shfl_xor_sync(0xffffffffu, x, step);
	if (threadIdx.x % 32 == 0)
		buffers[threadIdx.x / 32] = x;
	__syncthreads();
	x = 0;
	for (int i = 0; i < WARPS; i++)
		x += buffers[i];
	return x;
}

/* lse and delta of the thread's queries. */
template <typename X>
static __device__ __forceinline__ void
row_numbers_of(const problem_of<X> &p, const query_walk<X> &w, int row,
	       typename X::row_numbers &lse2, typename X::row_numbers &delta)
{
#pragma unroll
	for (int m = 0; m < X::ROWS; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int64_t at = (int64_t)w.head * p.padded + w.first + row + 16 * m +
					   fragment_row(2 * half);

			lse2[m][half] = p.lse2[at];
			delta[m][half] = p.delta[at];
		}
}

/* Shared memory of dQ's kernel after its stages: lse and delta of the block's queries. */
template <typename X> struct own_numbers {
	static constexpr int AT = memory<X, true>::BYTES;
	static constexpr int BYTES = X::WGMMA ? 2 * X::OWN * (int)sizeof(typename X::real) : 0;
};

/*
 * Where warps multiply in groups, the kernel of dQ prepares its queries' rows itself, for that of
 * dK, too: dO goes to `value`, lse and delta to `numbers`.
 */
template <typename X, typename Panel>
static __device__ void prepare_own(const problem_of<X> &p, const query_walk<X> &w,
				   const row_source<typename X::P> &r, const Panel &value,
				   typename X::real *numbers)
{
	constexpr int VECS = X::DW / VEC16<typename X::factor>, AT_ONCE = X::THREADS / VECS;
	constexpr int LOADS = X::OWN / AT_ONCE;
	const uint32_t vec = threadIdx.x % VECS, own = threadIdx.x / VECS;
	const auto query = [&](int tile_order) -> struct query_vec {
		return { (uint32_t)(w.head / p.H),
			 (uint32_t)(w.head % p.H),
			 (uint32_t)p.H,
			 (uint32_t)w.first + own + tile_order *AT_ONCE,
			 (uint32_t)p.T,
			 (uint32_t)p.padded,
			 vec,
			 VECS };
	};
	const auto put = [&](int tile_order, uint4 d_o, const typename X::real(&two)[2]) {
		const int row = (int)own + tile_order * AT_ONCE;

		st_shared_vec16(value.vec(row, (int)vec), d_o);
		if (vec == 0) {
			numbers[row] = two[0];
			numbers[X::OWN + row] = two[1];
		}
	};
	typename X::real two[2];

	if (r.is_bf16()) {
		typename row_source<typename X::P>::bf16_vecs given[LOADS];

#pragma unroll
		for (int tile_order = 0; tile_order < LOADS; tile_order++)
			given[tile_order] = r.load_bf16(query(tile_order));
#pragma unroll
		for (int tile_order = 0; tile_order < LOADS; tile_order++)
			put(tile_order, r.prepare_bf16(query(tile_order), given[tile_order], two),
			    two);
	} else {
		for (int tile_order = 0; tile_order < LOADS; tile_order++)
			put(tile_order, r.prepare(query(tile_order), two), two);
	}
}

/* lse and delta of the thread's queries, from `numbers`. */
template <typename X>
static __device__ __forceinline__ void own_numbers_of(const typename X::real *numbers, int row,
						      typename X::row_numbers &lse2,
						      typename X::row_numbers &delta)
{
#pragma unroll
	for (int m = 0; m < X::ROWS; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int at = row + 16 * m + fragment_row(2 * half);

			lse2[m][half] = numbers[at];
			delta[m][half] = numbers[X::OWN + at];
		}
}

/*
 * dQ = scale dS K.  IN_BAND: dk_i = scale band sum_j dS_ij q_j inside the band instead, and
 * the block's part of dband.
 */
template <typename X, bool IN_BAND>
static __global__ void __launch_bounds__(X::THREADS, X::BLOCKS)
	flash_backward_dq_kernel(const __grid_constant__ problem_of<X> p,
				 const __grid_constant__ target<typename X::P> out, double *dband,
				 const __grid_constant__ row_source<typename X::P> rows)
{
	typedef typename X::real real;
	typedef memory<X, true> M;

	pdl_wait();
	char *shared = dynamic_smem();
	const uint32_t start = smem_address(shared);
	query_walk<X> w(p);
	const terms_with<X> t = terms_of(p, w.head);
	const side_of<X> keys = keys_of<X>(p, w.head);
	const typename M::own_tiles own(start);
	const int row = 16 * X::ROWS * (int)(threadIdx.x / 32);
	typename X::scores s, dp;
	typename X::crosses cross;
	typename X::score_sums d;
	typename X::row_numbers lse2, delta, factor;
	real dband_sum = 0;

	if (!X::runs())
		return;
	if (IN_BAND)
		w.begin = w.band_begin(p);
	clear(d);
	if constexpr (X::WGMMA) {
		real *numbers = (real *)(shared + own_numbers<X>::AT);

		own.copy_score(queries_of<X>(p, w.head), w.first);
		copy_keys<X, M>(p, w, keys, start, w.begin);
		prepare_own<X>(p, w, rows, own.value, numbers);
		__syncthreads();
		own_numbers_of<X>(numbers, row, lse2, delta);
	} else {
		row_numbers_of<X>(p, w, row, lse2, delta);
		own.copy(queries_of<X>(p, w.head), w.first, p.band_window >= 0);
		copy_keys<X, M>(p, w, keys, start, w.begin);
	}
	for (int step = w.begin; step < w.end; step++) {
		const typename M::step_tiles at(M::stage(start, step));
		const int i0 = w.position + row, j0 = step * X::STEP;
		const auto meanwhile = [&] {
			if (step + 1 < w.end)
				copy_keys<X, M>(p, w, keys, start, step + 1);
		};

		cp_async_arrive<X>();
		if (j0 > w.position + X::first_together() + X::TOGETHER - 1) {
			meanwhile();
			continue;
		}
		begin_products<X>(own, row, at, meanwhile, s, dp);
		query_scores<X, M>(p, w, t, own, at, M::numbers(shared, step), step, s, cross);
		end_products<X>(own, row, at, dp);
		d_scores<X>(p, unit_of<X>(t), w.head, i0, j0, lse2, delta, dp, s);
		if constexpr (IN_BAND) {
			each_number(s, [&](real &x, int m, int n, int e, int r, int c) {
				x = i0 + r - j0 - c <= t.window ? x : 0;
				dband_sum += x * cross[m][n][e];
			});
			product_nn(d, s, at.cross);
		} else {
			product_nn(d, s, at.score);
		}
	}
	fill(factor, IN_BAND ? p.scale * p.band() : p.scale);
	if (out.to.at)
		put_rows(out, out.rows(w.head, p.H), w.first + row, p.T, d, factor);
	if (IN_BAND) {
		__syncthreads();
		const double sum = sum_of_threads<X::WARPS>((double)dband_sum, (double *)shared);

		if (threadIdx.x == 0)
			dband[blockIdx.x] = sum * (double)p.scale;
	}
}

/* Two numbers that are read at once. */
template <typename R> struct alignas(2 * sizeof(R)) two_numbers {
	R x, y;
};

/*
 * dS of the warp's queries and the keys of a step, as it was stored.  Only what queries see was
 * stored for certain, so only pairs that begin with it are read.  Their second key may be one that
 * the query does not see, but it is of the same tile, and there stored as 0.
 */
template <typename X>
static __device__ __forceinline__ void read_d_scores(const problem_of<X> &p, const query_walk<X> &w,
						     int row, int step, typename X::scores &ds)
{
	typedef two_numbers<typename X::real> two;
	const int i0 = w.first + row, j0 = step * X::STEP;
	const bool all = j0 + X::STEP - 1 <= i0 && i0 + 16 * X::ROWS <= p.T;

#pragma unroll
	for (int m = 0; m < X::ROWS; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int i = i0 + 16 * m + fragment_row(2 * half),
				  j = j0 + fragment_column(0);
			const typename X::real *from = p.d_scores_at(w.head, i, j);

#pragma unroll
			for (int n = 0; n < X::COLUMNS; n++) {
				const bool seen = all || (i < p.T && j + 8 * n <= i);
				const two x = seen ? *(const two *)(from + 8 * n) : two{ 0, 0 };

				ds[m][n][2 * half] = x.x;
				ds[m][n][2 * half + 1] = x.y;
			}
		}
}

/* Shared memory of the kernel below: only keys. */
template <typename X> struct given_memory {
	typedef tiles<X, X::STEP, false> step_tiles;
	static constexpr int BYTES = 2 * step_tiles::SCORE;

	/* Begin to copy the keys of a step. */
	static __device__ void copy(const side_of<X> &keys, uint32_t start, int step)
	{
		at(start, step).copy_score(keys, step * X::STEP);
		cp_async_commit();
	}
	static __device__ step_tiles at(uint32_t start, int step)
	{
		return step_tiles(start + step % 2 * step_tiles::SCORE);
	}
};

/* dQ = scale dS K, of dS that flash_backward_dkdv_kernel stored.  It is read a step ahead, so that
 * no product waits. */
template <typename X>
static __global__ void __launch_bounds__(X::THREADS, X::BLOCKS)
	flash_backward_dq_stored_kernel(const __grid_constant__ problem_of<X> p,
					const __grid_constant__ target<typename X::P> out)
{
	typedef given_memory<X> M;

	pdl_wait();
	const uint32_t start = smem_address(dynamic_smem());
	const query_walk<X> w(p);
	const side_of<X> keys = keys_of<X>(p, w.head);
	const int row = 16 * X::ROWS * (int)(threadIdx.x / 32);
	typename X::scores ds, next;
	typename X::score_sums d;
	typename X::row_numbers factor;

	clear(d);
	M::copy(keys, start, w.begin);
	read_d_scores<X>(p, w, row, w.begin, next);
	for (int step = w.begin; step < w.end; step++) {
		each_number(ds, [&](auto &x, int m, int n, int e, int, int) { x = next[m][n][e]; });
		cp_async_arrive<X>();
		if (step + 1 < w.end) {
			M::copy(keys, start, step + 1);
			read_d_scores<X>(p, w, row, step + 1, next);
		}
		if (step * X::STEP <
		    w.first + row + 16 * X::ROWS) /* else no query sees these keys */
			product_nn(d, ds, M::at(start, step).score);
	}
	fill(factor, p.scale);
	put_rows(out, out.rows(w.head, p.H), w.first + row, p.T, d, factor);
}

/* ------------------------------------------------------------- gradient of keys */

/*
 * The walk of a block of keys over the queries that see them, of some heads one after the other.
 * Only forward has a past.
 */
template <typename X> struct key_walk {
	int group;	 /* of heads */
	int head, first; /* key */
	int begin, end;	 /* steps */

	__device__ explicit key_walk(const problem_of<X> &p)
	{
		const int blocks = (p.S + X::OWN - 1) / X::OWN;
		const struct tile_order tile_order(blocks);

		group = p.first_head / p.together + tile_order.head;
		head = group * p.together;
		first = tile_order.number * X::OWN;
		begin = first / X::STEP;
		end = (p.T + X::STEP - 1) / X::STEP;
	}
	__device__ bool in_band(const problem_of<X> &p, int step) const
	{
		return X::BANDED && p.band_window >= 0 &&
		       step * X::STEP <= first + X::OWN - 1 + p.band_window;
	}
	__device__ int band_end(const problem_of<X> &p) const
	{
		const int64_t last = ((int64_t)first + X::OWN - 1 + p.band_window) / X::STEP;

		return last + 1 < end ? (int)last + 1 : end;
	}
};

/* Begin to copy the queries of a step, their lse and their delta. */
template <typename X, typename M>
static __device__ void copy_queries(const problem_of<X> &p, const key_walk<X> &w,
				    const side_of<X> &queries, uint32_t start, int step)
{
	const typename M::step_tiles to(M::stage(start, step));
	constexpr int N = VEC16<typename X::real>;
	const uint32_t numbers = M::stage(start, step) + M::step_tiles::BYTES;
	const int64_t first = (int64_t)w.head * p.padded + step * X::STEP;
	const int n = (int)threadIdx.x;

	to.copy(queries, step * X::STEP, w.in_band(p, step));
	static_assert(X::STEP / N <= X::THREADS, "one vec for a thread");
	if (n < X::STEP / N) {
		cp_async_vec16(numbers + n * 16, p.lse2 + first + n * N, true);
		cp_async_vec16(numbers + (X::STEP / N + n) * 16, p.delta + first + n * N, true);
	}
	cp_async_commit();
}

/* Products s of the warp's keys with the queries of a step become probabilities. */
template <typename X, typename M>
static __device__ void
key_probabilities(const problem_of<X> &p, const key_walk<X> &w, const terms_with<X> &t,
		  const typename M::own_tiles &own, const typename M::step_tiles &queries,
		  const typename X::real *lse2, const typename X::row_numbers &bias, int step,
		  typename X::scores &s)
{
	typedef typename X::real real;
	const int row = 16 * X::ROWS * (int)(threadIdx.x / 32);
	const int j0 = w.first + row, i0 = step * X::STEP;
	const bool in_band = w.in_band(p, step);
	typename X::crosses cross;

	clear(cross);
	if constexpr (X::BANDED)
		if (in_band)
			product_nt(cross, own.cross, row, queries.cross);
	finish_scores<X>(
		t, in_band, cross, [&](int m, int e, int) { return bias[m][e / 2]; },
		[=](int r, int c) { return i0 + c - j0 - r; }, s);
	each_number(s, [&](real &x, int, int, int, int, int c) {
		x = power_of_two<X>(x * unit_of<X>(t) - lse2[c]);
	});
	if (i0 < j0 + 16 * X::ROWS - 1) /* some queries come before some keys */
		each_number(s, [&](real &x, int, int, int, int r, int c) {
			x = j0 + r <= i0 + c ? x : 0;
		});
}

/* The bias of the thread's keys. */
template <typename X>
static __device__ void own_bias(const problem_of<X> &p, const key_walk<X> &w, int row,
				typename X::row_numbers &bias)
{
#pragma unroll
	for (int m = 0; m < X::ROWS; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int j = w.first + row + 16 * m + fragment_row(2 * half);

			bias[m][half] = 0;
			if (X::BIASED && p.key_bias && j < p.S)
				bias[m][half] =
					p.key_bias[p.bias_layout.at(w.head / p.H, w.head % p.H, j)];
		}
}

/* One head's part of dK, dV and dbias. */
template <typename X> struct key_sums {
	typename X::score_sums score;
	typename X::value_sums value;
	typename X::row_numbers bias;
};

/* dP become dS, of the keys' rows, and probabilities s what multiplies dO; dbias is summed up. */
template <typename X>
static __device__ __forceinline__ void
key_d_scores(const problem_of<X> &p, const key_walk<X> &w, int row, int step,
	     const typename X::real *delta, bool wants_bias, typename X::scores &s,
	     typename X::scores &dp, key_sums<X> &sums)
{
	typedef typename X::real real;
	const int j0 = w.first + row, i0 = step * X::STEP;

	if (X::MORE && p.mask.factor != 0) {
		const kept<X> k(
			p, w.head, [=](int, int c) { return i0 + c; },
			[=](int r, int) { return j0 + r; });

		each_number(dp, [&](real &x, int m, int n, int e, int, int c) {
			x = s[m][n][e] * (x * k.at(m, n, e) - delta[c]);
			s[m][n][e] *= k.at(m, n, e);
		});
	} else {
		each_number(dp, [&](real &x, int m, int n, int e, int, int c) {
			x = s[m][n][e] * (x - delta[c]);
		});
	}
	if (X::BIASED && wants_bias)
		each_number(dp, [&](real &x, int m, int, int e, int, int) {
			sums.bias[m][e / 2] += x;
		});
}

/*
 * Where warps multiply in groups: dV and dK from probabilities s and the products dP, which may be
 * under way still.  Without dropout those of dV are begun before dS is made.
 */
template <typename X, typename Step>
static __device__ __forceinline__ void
add_wgmma(const problem_of<X> &p, const key_walk<X> &w, int row, int step, const Step &queries,
	  const typename X::real *delta, bool wants_bias, typename X::scores &s,
	  typename X::scores &dp, key_sums<X> &sums)
{
	uint32_t p_rounded[X::COLUMNS / 2][4], ds_rounded[X::COLUMNS / 2][4];

	if constexpr (X::MORE) {
		wgmma_wait<0>(dp);
		key_d_scores<X>(p, w, row, step, delta, wants_bias, s, dp, sums);
		round_fragments<X::COLUMNS>(p_rounded, s);
		begin_product_nn<X::COLUMNS>(sums.value, p_rounded, queries.value);
	} else {
		round_fragments<X::COLUMNS>(p_rounded, s);
		begin_product_nn<X::COLUMNS>(sums.value, p_rounded, queries.value);
		wgmma_wait<1>(dp);
		key_d_scores<X>(p, w, row, step, delta, wants_bias, s, dp, sums);
	}
	round_fragments<X::COLUMNS>(ds_rounded, dp);
	begin_product_nn<X::COLUMNS>(sums.score, ds_rounded, queries.score);
	wgmma_wait<0>(sums.value);
	wgmma_wait<0>(sums.score);
}

/* dS of the warp's keys and the queries of a step into memory, for flash_backward_dq_stored_kernel.
 */
template <typename X>
static __device__ __forceinline__ void store_d_scores(const problem_of<X> &p, const key_walk<X> &w,
						      int row, int step, typename X::scores &ds)
{
	typename X::real *to = p.d_scores_at(w.head, step * X::STEP, w.first + row);

	each_number(ds, [&](auto &x, int, int, int, int r, int c) { to[c * p.padded + r] = x; });
}

/* Of a step: what queries i0 .. add to the sums of the warp's keys j0 .. */
template <typename X, typename M, bool IN_BAND, typename Meanwhile>
static __device__ __forceinline__ void
add_queries(const problem_of<X> &p, const key_walk<X> &w, const terms_with<X> &t,
	    const typename M::own_tiles &own, const typename M::step_tiles &queries,
	    const typename X::real *lse2, const typename X::row_numbers &bias, int step,
	    bool wants_bias, Meanwhile meanwhile, key_sums<X> &sums)
{
	typedef typename X::real real;
	const int row = 16 * X::ROWS * (int)(threadIdx.x / 32);
	const int j0 = w.first + row, i0 = step * X::STEP;
	typename X::scores s, dp;

	begin_products<X>(own, row, queries, meanwhile, s, dp);
	key_probabilities<X, M>(p, w, t, own, queries, lse2, bias, step, s);
	if constexpr (X::WGMMA) {
		add_wgmma<X>(p, w, row, step, queries, lse2 + X::STEP, wants_bias, s, dp, sums);
	} else {
		end_products<X>(own, row, queries, dp);
		key_d_scores<X>(p, w, row, step, lse2 + X::STEP, wants_bias, s, dp, sums);
		if constexpr (IN_BAND) {
			each_number(dp, [&](real &x, int, int, int, int r, int c) {
				x = i0 + c - j0 - r <= t.window ? x : 0;
			});
			product_nn(sums.score, dp, queries.cross);
		} else {
			if (!ROUNDS<typename X::P> && p.ds)
				store_d_scores<X>(p, w, row, step, dp);
			product_nn(sums.value, s, queries.value);
			product_nn(sums.score, dp, queries.score);
		}
	}
}

/* dbias_j = sum_i dS_ij of the thread's keys, into [B,H,S]. */
template <typename X>
static __device__ void put_bias(const problem_of<X> &p, const key_walk<X> &w, int row,
				const typename X::row_numbers &sums, typename X::real *dbias)
{
#pragma unroll
	for (int m = 0; m < X::ROWS; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const typename X::real sum = row_sum(sums[m][half]);
			const int j = w.first + row + 16 * m + fragment_row(2 * half);

			if (j < p.S && threadIdx.x % 4 == 0)
				dbias[(int64_t)w.head * p.S + j] = sum;
		}
}

/*
 * dK = scale dS' Q, dV = (P kept)' dO, dbias_j = sum_i dS_ij [B,H,S] or NULL.  A block sums up dK
 * of p.together heads, so that dk has H / p.together.  dS is stored, if there is a place for it.
 * IN_BAND: dq_j = scale band sum_i dS_ij k_i inside the band instead, into dk.
 */
template <typename X, bool IN_BAND>
static __global__ void __launch_bounds__(X::THREADS, X::BLOCKS)
	flash_backward_dkdv_kernel(const __grid_constant__ problem_of<X> p,
				   const __grid_constant__ target<typename X::P> dk,
				   const __grid_constant__ target<typename X::P> dv,
				   typename X::real *dbias)
{
	typedef typename X::real real;
	typedef memory<X, true> M;

	pdl_wait();
	char *shared = dynamic_smem();
	const uint32_t start = smem_address(shared);
	key_walk<X> w(p);
	const typename M::own_tiles own(start);
	const int row = 16 * X::ROWS * (int)(threadIdx.x / 32), last = w.head + p.together - 1;
	key_sums<X> sums;
	typename X::row_numbers bias, factor;

	if (!X::runs())
		return;
	clear(sums.score);
	if (IN_BAND)
		w.end = w.band_end(p);
	for (; w.head <= last; w.head++) {
		const terms_with<X> t = terms_of(p, w.head);
		const side_of<X> queries = queries_of<X>(p, w.head);

		own_bias<X>(p, w, row, bias);
		fill(sums.bias, (real)0);
		clear(sums.value);
		own.copy(keys_of<X>(p, w.head), w.first, p.band_window >= 0);
		copy_queries<X, M>(p, w, queries, start, w.begin);
		for (int step = w.begin; step < w.end; step++) {
			const typename M::step_tiles at(M::stage(start, step));
			const auto meanwhile = [&] {
				if (step + 1 < w.end)
					copy_queries<X, M>(p, w, queries, start, step + 1);
			};

			cp_async_arrive<X>();
			if (step * X::STEP + X::STEP - 1 < w.first + X::first_together()) {
				meanwhile();
				continue; /* no query of this step sees these keys */
			}
			add_queries<X, M, IN_BAND>(p, w, t, own, at, M::numbers(shared, step), bias,
						   step, dbias, meanwhile, sums);
		}
		if constexpr (!IN_BAND) {
			fill(factor, (real)1);
			if (dv.to.at)
				put_rows(dv, dv.rows(w.head, p.H), w.first + row, p.S, sums.value,
					 factor);
			if (X::BIASED && dbias)
				put_bias<X>(p, w, row, sums.bias, dbias);
		}
		if (w.head < last)
			__syncthreads(); /* the tiles are no longer read */
	}
	fill(factor, IN_BAND ? p.scale * p.band() : p.scale);
	if (dk.to.at)
		put_rows(dk, dk.rows(w.group, p.H / p.together), w.first + row, p.S, sums.score,
			 factor);
}

#endif
