/*
 * grouped_attention - forward of fused_attention.cuh where four warps multiply together
 * (groups.cuh): tensor cores multiply while a group of warps takes powers.
 *
 * The product that adds up results is begun one step late, after the scores of the next step:
 *
 *     begin S_j, O += P_j-1 V_j-1, then make P_j
 *
 * P_j-1 waits in registers, rounded.  Nothing is under way at the end of a step.  The stage of step
 * j-1 is read until then, so copies go to the one of step j-2.
 *
 * On an H200 the same did not pay for the gradients: its registers leave room for fewer groups. Nor
 * did blocks of three groups: those that meet at every step do the same things at the same time.
 *
 * (J. Shah et al., "FlashAttention-3", 2024.)
 */
#ifndef CUDA_ATTENTION_FLASH_WGMMA_CUH
#define CUDA_ATTENTION_FLASH_WGMMA_CUH

#include "core/backend/cuda/attention/flash_forward.cuh"

/* Steps that copies are begun ahead. */
template <typename X> static constexpr int AHEAD = X::STAGES - 2;

/* Until the copies of a step are there, and no group reads those of two steps before. */
template <typename X> static __device__ __forceinline__ void step_arrives()
{
	static_assert(X::STAGES >= 3, "one is copied, two are read");
	cp_async_wait<AHEAD<X> - 1>();
	fence_proxy_async();
	__syncthreads();
}

/* A left factor of a product, rounded, until it is begun. */
template <typename X> using waiting_factor = uint32_t[X::COLUMNS / 2][4];

/* The panels of a step. */
template <typename M>
static __device__ __forceinline__ typename M::step_tiles stage_of(uint32_t start, int step)
{
	return typename M::step_tiles(M::stage(start, step));
}

template <bool FIRST> using is_first = std::integral_constant<bool, FIRST>;

/* No query of the group sees keys of this step and later ones. */
template <typename X> static __device__ int end_of_warpgroup(const query_walk<X> &w, int group)
{
	const int end = (w.position + 64 * group + 63) / X::STEP + 1;

	return end < w.end ? end : w.end;
}

template <typename X, typename M>
static __device__ void copy_keys_ahead(const problem_of<X> &p, const query_walk<X> &w,
				       const side_of<X> &keys, uint32_t start, int step)
{
	if (step < w.end)
		copy_keys<X, M>(p, w, keys, start, step);
	else
		cp_async_commit();
}

/* f(is_first, step, meanwhile) for steps before `end`; it calls meanwhile() when products are
 * begun. */
template <typename X, typename M, typename F>
static __device__ __forceinline__ void
walk_over_keys(const problem_of<X> &p, const query_walk<X> &w, int end, uint32_t start, F f)
{
	const side_of<X> keys = keys_of<X>(p, w.head);

	for (int step = w.begin; step < w.begin + AHEAD<X>; step++)
		copy_keys_ahead<X, M>(p, w, keys, start, step);
	for (int step = w.begin; step < w.end; step++) {
		const auto meanwhile = [&] {
			copy_keys_ahead<X, M>(p, w, keys, start, step + AHEAD<X>);
		};

		step_arrives<X>();
		if (step == w.begin)
			f(is_first<true>(), step, meanwhile);
		else if (step < end)
			f(is_first<false>(), step, meanwhile);
		else
			meanwhile();
	}
}

/* Powers of up to 2 to this are summed up before a row takes a new largest score. */
#define LARGEST_POWER 8

/*
 * A row's powers are relative to a score that is its largest, or was.  A row takes another one only
 * if it has to, which is rare after the first steps, and does not depend on other rows.  FIRST: all
 * do. Returns whether sums are to be shrunk; otherwise `shrink` is not set.
 */
template <typename X, bool FIRST>
static __device__ __forceinline__ bool take_references(typename X::real unit, running<X> &r,
						       const typename X::scores &s,
						       typename X::row_numbers &shrink)
{
	typename X::row_numbers most;
	bool stays = true;

	largest_of_thread<X>(s, most);
#pragma unroll
	for (int half = 0; half < 2; half++)
		stays &= (most[0][half] - r.largest[0][half]) * unit <= LARGEST_POWER;
	if (!FIRST && __all_sync(0xffffffffu, stays))
		return false;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const typename X::real before = r.largest[0][half];

		most[0][half] = row_largest(most[0][half]);
		if (FIRST || !((most[0][half] - before) * unit <= LARGEST_POWER))
			r.largest[0][half] = most[0][half];
		shrink[0][half] = power_of_two<X>((before - r.largest[0][half]) * unit);
		r.sum[0][half] *= shrink[0][half];
	}
	return true;
}

template <typename X>
static __global__ void __launch_bounds__(X::THREADS, X::BLOCKS)
	flash_forward_wgmma_kernel(const __grid_constant__ problem_of<X> p,
				   const __grid_constant__ attention_results<typename X::P> out)
{
	typedef typename X::real real;
	typedef memory<X, false> M;

	pdl_wait();
	char *shared = dynamic_smem();
	const uint32_t start = smem_address(shared);
	const int group = warpgroup(), row = 16 * (int)(threadIdx.x / 32);
	const query_walk<X> w(p);
	const int end = end_of_warpgroup(w, group);
	const terms_with<X> t = terms_of(p, w.head);
	const typename M::own_tiles own(start);
	typename X::scores s;
	typename X::crosses cross;
	typename X::value_sums o;
	typename X::row_numbers shrink;
	waiting_factor<X> probabilities;
	running<X> r;

	if (!X::runs())
		return;
	clear(o);
	fill(r.largest, (real)-INFINITY);
	fill(r.sum, (real)0);
	own.copy(queries_of<X>(p, w.head), w.first, false);
	walk_over_keys<X, M>(p, w, end, start, [&](auto first, int step, auto meanwhile) {
		const typename M::step_tiles at = stage_of<M>(start, step);

		begin_product_nt(s, own.score, 64 * group, at.score);
		if constexpr (!first.value)
			begin_product_nn<X::COLUMNS>(o, probabilities,
						     stage_of<M>(start, step - 1).value);
		meanwhile();
		wgmma_wait<first.value ? 0 : 1>(s);
		query_scores<X, M>(p, w, t, own, at, M::numbers(shared, step), step, s, cross);
		const bool shrinks = take_references<X, first.value>(unit_of<X>(t), r, s, shrink);

		add_powers<X>(unit_of<X>(t), r, s);
		if (X::MORE && p.mask.factor != 0)
			drop<X>(p, w.head, w.first + row, step * X::STEP, s);
		if constexpr (!first.value) {
			wgmma_wait<0>(o);
			if (shrinks)
				shrink_rows<X>(shrink, o);
		}
		round_fragments<X::COLUMNS>(probabilities, s);
	});
	begin_product_nn<X::COLUMNS>(o, probabilities, stage_of<M>(start, end - 1).value);
	wgmma_wait<0>(o);
	put_forward<X>(p, w, unit_of<X>(t), row, r, o, out);
}

#endif
