/*
 * fused_routes - the kernel that makes the probabilities of all heads again, for routes.
 */
#ifndef CUDA_ATTENTION_FLASH_ROUTING_CUH
#define CUDA_ATTENTION_FLASH_ROUTING_CUH

#include "core/backend/cuda/attention/flash_forward.cuh"

/*
 * Rows of routing: the heads' probabilities of queries first .. first + n - 1, combined.  A block
 * of threads makes OWN rows and STEP columns of one example, a head at a time.  Keys that all heads
 * share are copied once.
 */
template <typename X> struct route_memory {
	typedef tiles<X, X::OWN, false> query_tiles;
	typedef tiles<X, X::STEP, false> key_tiles;

	static constexpr int QUERIES = query_tiles::BYTES, KEYS = key_tiles::BYTES;
	static constexpr int KEY_STAGE = X::aligned(KEYS + X::STEP * (int)sizeof(typename X::real));

	static __host__ __device__ bool is_shared(const problem_of<X> &p)
	{
		return !X::BANDED && !p.key_bias && p.k.sharing == p.H;
	}
	static int bytes(const problem_of<X> &p)
	{
		return 2 * QUERIES + (is_shared(p) ? 1 : 2) * KEY_STAGE;
	}
	/* Where the queries and keys of head h are, from the start of shared memory. */
	static __device__ int queries_at(int h)
	{
		return h % 2 * QUERIES;
	}
	static __device__ int keys_at(const problem_of<X> &p, int h)
	{
		return 2 * QUERIES + (is_shared(p) ? 0 : h % 2 * KEY_STAGE);
	}
};

template <typename X>
static __device__ void copy_head(const problem_of<X> &p, int b, int h, int first, int j0,
				 bool in_band, uint32_t start)
{
	typedef route_memory<X> M;
	const int head = b * p.H + h;
	const typename M::query_tiles queries(start + M::queries_at(h));
	const uint32_t stage = start + M::keys_at(p, h);
	const typename M::key_tiles keys(stage);

	queries.copy(queries_of<X>(p, head), first, in_band);
	if (h == 0 || !M::is_shared(p)) {
		keys.copy(keys_of<X>(p, head), j0, in_band);
		if (X::BIASED)
			copy_bias<X>(p, head, j0, stage + M::KEYS);
	}
	cp_async_commit();
}

/* lse of the thread's rows, of which the first is query i, in powers of two. */
template <typename X>
static __device__ __forceinline__ void read_lse2(const problem_of<X> &p, int head, int i,
						 const typename X::real *lse,
						 typename X::row_numbers &lse2)
{
#pragma unroll
	for (int m = 0; m < X::ROWS; m++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int at = i + 16 * m + fragment_row(2 * half);

			lse2[m][half] = lse[(int64_t)head * p.T + (at < p.T ? at : p.T - 1)] *
					(typename X::real)M_LOG2E;
		}
}

template <typename X>
static __global__ void __launch_bounds__(X::THREADS, X::BLOCKS)
	routing_combine_kernel(const __grid_constant__ problem_of<X> p, const typename X::real *lse,
			       combined<typename X::real> route, struct query_block x, bool maximum)
{
	typedef typename X::real real;
	typedef route_memory<X> M;

	pdl_wait();
	char *shared = dynamic_smem();
	const uint32_t start = smem_address(shared);
	const int row = 16 * X::ROWS * (int)(threadIdx.x / 32);
	const int b = blockIdx.z, first = (int)x.first + (int)blockIdx.y * X::OWN;
	const int j0 = (int)blockIdx.x * X::STEP, i0 = p.past + first + row;
	const bool in_band =
		X::BANDED && p.band_window >= 0 && j0 + X::STEP - 1 + p.band_window >= i0 - row;
	const real share = 1 / (real)p.H;
	typename X::scores s, joined;
	typename X::crosses cross;
	typename X::row_numbers lse2;

	if (!X::runs() || j0 > i0 - row + X::OWN - 1)
		return; /* no query of this block sees these keys */
	clear(joined);
	copy_head<X>(p, b, 0, first, j0, in_band, start);
	for (int h = 0; h < p.H; h++) {
		const int keys_at = M::keys_at(p, h);
		const typename M::query_tiles queries(start + M::queries_at(h));
		const typename M::key_tiles keys(start + keys_at);
		const real *bias = (const real *)(shared + keys_at + M::KEYS);
		const terms_with<X> t = terms_of(p, b * p.H + h);

		cp_async_arrive<X>();
		if (h + 1 < p.H)
			copy_head<X>(p, b, h + 1, first, j0, in_band, start);
		if (j0 > i0 - row + X::first_together() + X::TOGETHER - 1)
			continue; /* none of these queries sees these keys */
		read_lse2<X>(p, b * p.H + h, first + row, lse, lse2);
		product_nt(s, queries.score, row, keys.score);
		clear(cross);
		if constexpr (X::BANDED)
			if (in_band)
				product_nt(cross, queries.cross, row, keys.cross);
		finish_scores<X>(
			t, in_band, cross, [=](int, int, int c) { return bias[c]; },
			[=](int r, int c) { return i0 + r - j0 - c; }, s);
		each_number(s, [&](real &y, int m, int n, int e, int, int) {
			const real probability =
				power_of_two<X>(y * unit_of<X>(t) - lse2[m][e / 2]);

			joined[m][n][e] = maximum ? fmax(joined[m][n][e], probability)
						  : joined[m][n][e] + probability * share;
		});
	}
	each_number(joined, [&](real &y, int m, int n, int e, int r, int c) {
		const int64_t query = first - x.first + row + r;
		real *to = route.at + ((b * route.rows + query) * route.pitch + j0 + c);

		if (query >= x.n || e % 2 == 1)
			return;
		if (j0 + c + 1 <= i0 + r)
			write_pair(output_view<typename X::P>{ to, false }, y, joined[m][n][e + 1]);
		else if (j0 + c <= i0 + r)
			*to = y;
	});
}

#endif
