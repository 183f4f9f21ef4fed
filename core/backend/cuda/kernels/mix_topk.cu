/*
 * mix_topk: y_t = sum_n weight_tn x[index_tn], k sources per token.
 *
 * Both passes add weighted rows: forward the k rows that a token chose, backward the rows of dy of
 * all tokens that chose a source, in token order.  Backward finds the tokens of each source with a
 * counting sort: count per block of entries, prefix sums, scatter.  No atomics.
 */
#include "core/backend/cuda/primitives/packed_load.cuh"

enum { X, INDEX, WEIGHT };

#define WARPS (BLOCK / WARP)
#define LONG 32 /* entries; all warps of a block share a longer list */
#define BATCH 2 /* rows that a thread loads at a time; more would cost occupancy */

/* ------------------------------------------------------------- weighted rows */

/* A list of entries for every output row of an example: a row of x, or -1, and its weight. */
template <typename R> struct routes {
	int64_t lists, rows, entries; /* per example: lists, rows of x, entries */
	int64_t k;		      /* entries of each list, if `first` is NULL */
	const int32_t *first;	      /* [B,lists + 1]: the first entry of each list; or NULL */
	const int32_t *row;	      /* [B,entries] */
	const R *weight;

	__device__ int64_t begin(int64_t b, int64_t list) const
	{
		return b * entries + (first ? first[b * (lists + 1) + list] : list * k);
	}
};

/* The weighted sum of entries [begin, end), in order, by a warp with N channels per lane. */
template <typename R, typename T, int N>
static __device__ vec<R, N> add_rows(const routes<R> &r, int64_t begin, int64_t end, const T *x,
				     int64_t pitch)
{
	const int lane = threadIdx.x % WARP;
	vec<R, N> sum = {};

	for (int64_t e = begin; e < end; e += WARP) {
		const int n = end - e < WARP ? (int)(end - e) : WARP;
		const int row = lane < n ? r.row[e + lane] : -1;
		const R weight = row < 0 ? 0 : r.weight[e + lane];

		for (int j = 0; j < n; j += BATCH) {
			packed_vec<T, N> v[BATCH] = {};

#pragma unroll
			for (int u = 0; u < BATCH; u++) {
				const int from = __shfl_sync(0xffffffffu, row, j + u);

				if (from >= 0)
					v[u] = load_packed<N>(x + from * pitch);
			}
#pragma unroll
			for (int u = 0; u < BATCH; u++) {
				const R w = __shfl_sync(0xffffffffu, weight, j + u);

#pragma unroll
				for (int i = 0; i < N; i++)
					sum[i] += w * (R)v[u][i];
			}
		}
	}
	return sum;
}

/* Channels of a row, and elements from one row of x, and of y, to the next. */
struct widths {
	int64_t row, x_pitch, y_pitch;
};

/*
 * A block serves WARPS lists of example blockIdx.z, one warp per list, for the channels of slice
 * blockIdx.y.  Its lists lie far apart, because many tokens choose early sources.
 */
template <typename P, typename T, int N>
static __global__ void
mix_topk_kernel(struct replicas replicas, const __grid_constant__ routes<typename P::real> given_r,
		const T *x, struct widths width, const __grid_constant__ gradient_view<P> given_y)
{
	replicas.to_own(x);
	const auto &r = replicas.own(given_r);
	const auto &y = replicas.own(given_y);
	typedef typename P::real real;
	__shared__ real part[WARPS][WARP * N];
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	const int64_t b = replicas.block_z(), slice = (int64_t)blockIdx.y * WARP * N;
	const int64_t channel = slice + lane * N, own = (int64_t)warp * gridDim.x + blockIdx.x;
	const T *from = x + b * r.rows * width.x_pitch + (channel < width.row ? channel : 0);

	pdl_wait();
	if (own < r.lists) {
		const int64_t begin = r.begin(b, own), end = r.begin(b, own + 1);

		if (end - begin <= LONG) {
			const auto sum = add_rows<real, T, N>(r, begin, end, from, width.x_pitch);

			if (channel < width.row)
				y.put(vec_index<N>{ (b * r.lists + own) * width.y_pitch + channel },
				      sum);
		}
	}
	for (int64_t list = blockIdx.x; list < r.lists; list += gridDim.x) {
		const int64_t begin = r.begin(b, list), n = r.begin(b, list + 1) - begin;

		if (n <= LONG)
			continue;
		const auto sum =
			add_rows<real, T, N>(r, begin + n * warp / WARPS,
					     begin + n * (warp + 1) / WARPS, from, width.x_pitch);

		for (int i = 0; i < N; i++)
			part[warp][lane * N + i] = sum[i];
		__syncthreads();
		for (int i = threadIdx.x; i < WARP * N && slice + i < width.row; i += BLOCK) {
			real total = 0;

			for (int w = 0; w < WARPS; w++)
				total += part[w][i];
			y.put((b * r.lists + list) * width.y_pitch + slice + i, total);
		}
		__syncthreads();
	}
}

template <typename P> struct mix {
	const struct call *c;
	routes<typename P::real> r;
	input_view<P> x;
	gradient_view<P> y;
	int64_t batch;
	struct widths width;

	template <typename T, int N> void run() const
	{
		const int64_t slice = WARP * N;
		const dim3 grid((unsigned)((r.lists + WARPS - 1) / WARPS),
				(unsigned)((width.row + slice - 1) / slice), (unsigned)batch);

		launch_for(c, mix_topk_kernel<P, T, N>, grid, BLOCK, 0, r, (const T *)x.at, width,
			   y);
	}
};

/* y_t = sum_n weight_tn x[index_tn] */
template <typename P> static void forward(const struct call *c)
{
	const int64_t *dim = c->node->out[0]->dim, T = dim[1];
	const int64_t S = c->node->in[X]->dim[1], k = c->node->in[INDEX]->dim[2];
	const mix<P> mix = { c,
			     { T, S, T * k, k, NULL, (const int32_t *)c->in[INDEX],
			       real_input<P>(c, WEIGHT) },
			     input<P>(c, X),
			     { output<P>(c, 0), false },
			     dim[0],
			     { dim[2], c->node->in[X]->pitch, dim[2] } };

	with_load_type(mix.x, mix.width.row, mix.width.x_pitch, mix);
}

/* ---------------------------------------------------- the tokens of each source */

#define ENTRY_BLOCK \
	256 /* entries per block, sorted by one warp; more, if an example would have more than */
#define MAX_ENTRY_BLOCKS 32 /* this many blocks of entries */
#define OFFSET_LOADS 8	    /* offsets that a thread loads at a time */

/* The counting sort of an example's entries by source. */
template <typename R> struct sorting {
	int64_t B, T, k, entry_blocks;
	int32_t *offset; /* [B,blocks,T]: entries of the block with this source; then their offset
			    in its list */
	int32_t *first;	 /* [B,T + 1]: entries with this source; then the start of its list */
	int32_t *token;	 /* [B,T k] */
	R *weight;

	__device__ int64_t begin(int64_t block) const
	{
		return T * k * block / entry_blocks;
	}
};

template <typename P>
static sorting<typename P::real> alloc_sorting(struct scratch *m, const struct node *n,
					       enum pass pass)
{
	const int64_t *dim = n->in[INDEX]->dim, entries = dim[1] * dim[2];
	const int64_t entry_blocks = (entries + ENTRY_BLOCK - 1) / ENTRY_BLOCK;
	sorting<typename P::real> s = { dim[0], dim[1], dim[2],
					entry_blocks < MAX_ENTRY_BLOCKS ? entry_blocks
									: MAX_ENTRY_BLOCKS };

	if (pass != PASS_BACKWARD)
		return s;
	s.offset = m->alloc<int32_t>(s.B * s.entry_blocks * s.T);
	s.first = m->alloc<int32_t>(s.B * (s.T + 1));
	s.token = m->alloc<int32_t>(s.B * entries);
	s.weight = m->alloc<typename P::real>(s.B * entries);
	return s;
}

/* Lanes of the warp with the same key: all, and those before this lane. */
struct equals {
	int all, before;
};

static __device__ struct equals count_equals(int key)
{
	const int lane = threadIdx.x % WARP;
	struct equals n = { 0, 0 };

#pragma unroll
	for (int other = 0; other < WARP; other++) {
		const bool equal = __shfl_sync(0xffffffffu, key, other) == key;

		n.all += equal;
		n.before += equal && other < lane;
	}
	return n;
}

/*
 * A warp visits the entries of a block in order.  It calls put(entry, source, offset of the entry
 * in the source's list) and advances the offset.
 */
template <typename R, typename F>
static __device__ void visit_entries(const sorting<R> &s, const int32_t *index, int64_t b,
				     int64_t block, F put)
{
	const int lane = threadIdx.x % WARP;
	int32_t *offset = s.offset + (b * s.entry_blocks + block) * s.T;

	for (int64_t e = s.begin(block); e < s.begin(block + 1); e += WARP) {
		const int source =
			e + lane < s.begin(block + 1) ? index[b * s.T * s.k + e + lane] : -1;
		const struct equals n = count_equals(source);
		const int32_t at = source < 0 ? 0 : offset[source];

		__syncwarp();
		if (source >= 0) {
			put(e + lane, source, at + n.before);
			if (n.before == 0)
				offset[source] = at + n.all;
		}
		__syncwarp();
	}
}

/* By a warp: counts the entries of the block with each source. */
template <typename R>
static __device__ void count_entry_block(const sorting<R> &s, const int32_t *index, int64_t b,
					 int64_t block)
{
	for (int64_t source = threadIdx.x % WARP; source < s.T; source += WARP)
		s.offset[(b * s.entry_blocks + block) * s.T + source] = 0;
	__syncwarp();
	visit_entries(s, index, b, block, [](int64_t, int, int32_t) {});
}

/* By a thread: prefix sums over the blocks of one source, and its total. */
template <typename R>
static __device__ void scan_blocks(const sorting<R> &s, int64_t b, int64_t source)
{
	int32_t *offset = s.offset + b * s.entry_blocks * s.T + source, sum = 0;

	for (int64_t block = 0; block < s.entry_blocks; block += OFFSET_LOADS) {
		int32_t n[OFFSET_LOADS];

#pragma unroll
		for (int u = 0; u < OFFSET_LOADS; u++)
			n[u] = block + u < s.entry_blocks ? offset[(block + u) * s.T] : 0;
#pragma unroll
		for (int u = 0; u < OFFSET_LOADS && block + u < s.entry_blocks; u++) {
			offset[(block + u) * s.T] = sum;
			sum += n[u];
		}
	}
	s.first[b * (s.T + 1) + source] = sum;
}

/*
 * By a thread block: turns the totals of the sources into the starts of their lists, with an
 * exclusive prefix sum.
 */
template <typename R> static __device__ void scan_sources(const sorting<R> &s, int64_t b)
{
	__shared__ int32_t prefix[BLOCK]; /* inclusive prefix sums of the threads' shares */
	int32_t *first = s.first + b * (s.T + 1), sum = 0;
	const int64_t begin = s.T * threadIdx.x / BLOCK, end = s.T * (threadIdx.x + 1) / BLOCK;

	for (int64_t i = begin; i < end; i++)
		sum += first[i];
	prefix[threadIdx.x] = sum;
	for (int step = 1; step < BLOCK; step *= 2) {
		__syncthreads();
		const int32_t before = (int)threadIdx.x < step ? 0 : prefix[threadIdx.x - step];

		__syncthreads();
		prefix[threadIdx.x] += before;
	}
	sum = prefix[threadIdx.x] - sum;
	for (int64_t i = begin; i < end; i++) {
		const int32_t n = first[i];

		first[i] = sum;
		sum += n;
	}
	if (end == s.T && begin < end)
		first[s.T] = sum;
}

/* By a warp: writes the entries of the block to the lists of their sources. */
template <typename R>
static __device__ void scatter_entries(const sorting<R> &s, const int32_t *index, const R *weight,
				       int64_t b, int64_t block)
{
	const int64_t list = b * s.T * s.k;

	visit_entries(s, index, b, block, [&](int64_t entry, int source, int32_t offset) {
		const int64_t at = list + s.first[b * (s.T + 1) + source] + offset;

		s.token[at] = (int32_t)(entry / s.k);
		s.weight[at] = weight[list + entry];
	});
}

/*
 * Up to this many entries of an example are sorted by one thread block: three more launches would
 * take longer.
 */
#define MAX_SORTED_BY_BLOCK 4096

template <typename R>
static void sort_entries(const struct call *c, const sorting<R> &given, const int32_t *index,
			 const R *weight)
{
	const sorting<R> s = given;

	if (s.T * s.k <= MAX_SORTED_BY_BLOCK) {
		each_row(c, s.B, [=] __device__(int64_t b) {
			const int warp = threadIdx.x / WARP;

			for (int64_t block = warp; block < s.entry_blocks; block += WARPS)
				count_entry_block(s, index, b, block);
			__syncthreads();
			for (int64_t source = threadIdx.x; source < s.T; source += BLOCK)
				scan_blocks(s, b, source);
			__syncthreads();
			scan_sources(s, b);
			__syncthreads();
			for (int64_t block = warp; block < s.entry_blocks; block += WARPS)
				scatter_entries(s, index, weight, b, block);
		});
		return;
	}
	each(c, s.B * s.entry_blocks * WARP, [=] __device__(int64_t i) {
		count_entry_block(s, index, i / WARP / s.entry_blocks, i / WARP % s.entry_blocks);
	});
	each(c, s.B * s.T, [=] __device__(int64_t i) { scan_blocks(s, i / s.T, i % s.T); });
	each_row(c, s.B, [=] __device__(int64_t b) { scan_sources(s, b); });
	each(c, s.B * s.entry_blocks * WARP, [=] __device__(int64_t i) {
		scatter_entries(s, index, weight, i / WARP / s.entry_blocks,
				i / WARP % s.entry_blocks);
	});
}

/* dx_s = sum of weight_tn dy_t over the (t, n) with index_tn = s */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const int64_t *dim = c->node->in[X]->dim;
	struct scratch m = scratch_of(c);
	const sorting<real> s = alloc_sorting<P>(&m, c->node, PASS_BACKWARD);
	const mix<P> mix = { c,
			     { s.T, s.T, s.T * s.k, s.k, s.first, s.token, s.weight },
			     output_gradient<P>(c, 0),
			     input_gradient<P>(c, X),
			     s.B,
			     { dim[2], dim[2], c->node->in[X]->pitch } };

	sort_entries(c, s, (const int32_t *)c->in[INDEX], real_input<P>(c, WEIGHT));
	with_load_type(mix.x, mix.width.row, mix.width.x_pitch, mix);
}

KERNELS(mix_topk, forward<P>, backward<P>, NULL, NULL, workspace_of<alloc_sorting<P>>)
