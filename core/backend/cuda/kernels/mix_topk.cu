/*
 * Both passes add weighted rows: forward those that a token chose, backward those of the tokens
 * that chose a source, in the order of tokens.  Backward finds these by a counting sort.
 */
#include "core/backend/cuda/primitives/packed_load.cuh"

enum { X, INDEX, WEIGHT };

#define WARPS (BLOCK / WARP)
#define LONG 32 /* entries; the warps of a block share a longer list */
#define BATCH 2 /* rows that a thread reads at a time; with more, fewer threads fit */

/* ------------------------------------------------------------- weighted rows */

/* For every row of the result of an example a list of entries: a row of x, or -1, and its weight.
 */
template <typename R> struct routes {
	int64_t lists, rows, entries; /* of an example; rows are those of x */
	int64_t k;		      /* entries of each list, or .. */
	const int32_t *first;	      /* .. [B,lists + 1], where lists begin */
	const int32_t *row;	      /* [B,entries] */
	const R *weight;

	__device__ int64_t begin(int64_t b, int64_t list) const
	{
		return b * entries + (first ? first[b * (lists + 1) + list] : list * k);
	}
};

/* The sum of a warp's entries [begin, end), in order, for N channels of x per lane. */
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

/* How many channels a row has, and how far rows of x and of y are apart. */
struct widths {
	int64_t row, x_pitch, y_pitch;
};

/*
 * A block serves WARPS lists of example z, a warp each, for the channels of slice y.  Its lists are
 * far apart: early tokens are chosen by many.
 */
template <typename P, typename T, int N>
static __global__ void mix_kernel(routes<typename P::real> r, const T *x, struct widths width,
				  gradient_view<P> y)
{
	typedef typename P::real real;
	__shared__ real part[WARPS][WARP * N];
	const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
	const int64_t b = blockIdx.z, slice = (int64_t)blockIdx.y * WARP * N;
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

		launch_pdl(context_of(c)->pdl, mix_kernel<P, T, N>, grid, BLOCK, 0, stream_of(c), r,
			   (const T *)x.at, width, y);
		note_launch(c);
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

#define VEC16 256	    /* entries of index that a warp sorts, or more, if .. */
#define MAX_TOKEN_BLOCKS 32 /* .. an example would have more pieces than this */
#define PLACES 8	    /* of pieces that a thread reads at a time */

/* An example's entries of index, cut into pieces, and how they are sorted by source. */
template <typename R> struct sorting {
	int64_t B, T, k, token_blocks;
	int32_t *place; /* [B,pieces,T]: how many entries of the piece name a source; then their
			   place */
	int32_t *first; /* [B,T + 1]: how many name it in all; then where its list begins */
	int32_t *token; /* [B,T k] */
	R *weight;

	__device__ int64_t begin(int64_t token_block) const
	{
		return T * k * token_block / token_blocks;
	}
};

template <typename P>
static sorting<typename P::real> alloc_sorting(struct scratch *m, const struct node *n,
					       enum pass pass)
{
	const int64_t *dim = n->in[INDEX]->dim, entries = dim[1] * dim[2];
	const int64_t token_blocks = (entries + VEC16 - 1) / VEC16;
	sorting<typename P::real> s = { dim[0], dim[1], dim[2],
					token_blocks < MAX_TOKEN_BLOCKS ? token_blocks
									: MAX_TOKEN_BLOCKS };

	if (pass != PASS_BACKWARD)
		return s;
	s.place = m->alloc<int32_t>(s.B * s.token_blocks * s.T);
	s.first = m->alloc<int32_t>(s.B * (s.T + 1));
	s.token = m->alloc<int32_t>(s.B * entries);
	s.weight = m->alloc<typename P::real>(s.B * entries);
	return s;
}

/* Lanes of the warp with this key: all, and those before the own one. */
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
 * A warp takes the entries of a piece in order: put(entry, place of the entry's source, how many
 * entries of the warp have that source before this one), and advances the place.
 */
template <typename R, typename F>
static __device__ void walk(const sorting<R> &s, const int32_t *index, int64_t b,
			    int64_t token_block, F put)
{
	const int lane = threadIdx.x % WARP;
	int32_t *place = s.place + (b * s.token_blocks + token_block) * s.T;

	for (int64_t e = s.begin(token_block); e < s.begin(token_block + 1); e += WARP) {
		const int source =
			e + lane < s.begin(token_block + 1) ? index[b * s.T * s.k + e + lane] : -1;
		const struct equals n = count_equals(source);
		const int32_t at = source < 0 ? 0 : place[source];

		__syncwarp();
		if (source >= 0) {
			put(e + lane, source, at + n.before);
			if (n.before == 0)
				place[source] = at + n.all;
		}
		__syncwarp();
	}
}

/* By a warp: how many entries of the piece name each source. */
template <typename R>
static __device__ void count_token_block(const sorting<R> &s, const int32_t *index, int64_t b,
					 int64_t token_block)
{
	for (int64_t source = threadIdx.x % WARP; source < s.T; source += WARP)
		s.place[(b * s.token_blocks + token_block) * s.T + source] = 0;
	__syncwarp();
	walk(s, index, b, token_block, [](int64_t, int, int32_t) {});
}

/* By a thread: the place of each piece among the entries of a source, and their number. */
template <typename R>
static __device__ void add_vecs(const sorting<R> &s, int64_t b, int64_t source)
{
	int32_t *place = s.place + b * s.token_blocks * s.T + source, sum = 0;

	for (int64_t token_block = 0; token_block < s.token_blocks; token_block += PLACES) {
		int32_t n[PLACES];

#pragma unroll
		for (int u = 0; u < PLACES; u++)
			n[u] = token_block + u < s.token_blocks ? place[(token_block + u) * s.T]
								: 0;
#pragma unroll
		for (int u = 0; u < PLACES && token_block + u < s.token_blocks; u++) {
			place[(token_block + u) * s.T] = sum;
			sum += n[u];
		}
	}
	s.first[b * (s.T + 1) + source] = sum;
}

/* By a block: first[s] = the number of entries before source s of the example, from the number that
 * name each. */
template <typename R> static __device__ void add_counts(const sorting<R> &s, int64_t b)
{
	__shared__ int32_t until[BLOCK]; /* the end of each thread's share */
	int32_t *first = s.first + b * (s.T + 1), sum = 0;
	const int64_t begin = s.T * threadIdx.x / BLOCK, end = s.T * (threadIdx.x + 1) / BLOCK;

	for (int64_t i = begin; i < end; i++)
		sum += first[i];
	until[threadIdx.x] = sum;
	for (int step = 1; step < BLOCK; step *= 2) {
		__syncthreads();
		const int32_t before = (int)threadIdx.x < step ? 0 : until[threadIdx.x - step];

		__syncthreads();
		until[threadIdx.x] += before;
	}
	sum = until[threadIdx.x] - sum;
	for (int64_t i = begin; i < end; i++) {
		const int32_t n = first[i];

		first[i] = sum;
		sum += n;
	}
	if (end == s.T && begin < end)
		first[s.T] = sum;
}

/* By a warp: the entries of the piece go to the lists of their sources. */
template <typename R>
static __device__ void put_vec(const sorting<R> &s, const int32_t *index, const R *weight,
			       int64_t b, int64_t token_block)
{
	const int64_t list = b * s.T * s.k;

	walk(s, index, b, token_block, [&](int64_t entry, int source, int32_t place) {
		const int64_t at = list + s.first[b * (s.T + 1) + source] + place;

		s.token[at] = (int32_t)(entry / s.k);
		s.weight[at] = weight[list + entry];
	});
}

/* Entries of an example that one block sorts: a launch takes longer than a few of them. */
#define SORTED_AT_ONCE 4096

template <typename R>
static void sort_entries(const struct call *c, const sorting<R> &given, const int32_t *index,
			 const R *weight)
{
	const sorting<R> s = given;

	if (s.T * s.k <= SORTED_AT_ONCE) {
		each_row(c, s.B, [=] __device__(int64_t b) {
			const int warp = threadIdx.x / WARP;

			for (int64_t token_block = warp; token_block < s.token_blocks;
			     token_block += WARPS)
				count_token_block(s, index, b, token_block);
			__syncthreads();
			for (int64_t source = threadIdx.x; source < s.T; source += BLOCK)
				add_vecs(s, b, source);
			__syncthreads();
			add_counts(s, b);
			__syncthreads();
			for (int64_t token_block = warp; token_block < s.token_blocks;
			     token_block += WARPS)
				put_vec(s, index, weight, b, token_block);
		});
		return;
	}
	each(c, s.B * s.token_blocks * WARP, [=] __device__(int64_t i) {
		count_token_block(s, index, i / WARP / s.token_blocks, i / WARP % s.token_blocks);
	});
	each(c, s.B * s.T, [=] __device__(int64_t i) { add_vecs(s, i / s.T, i % s.T); });
	each_row(c, s.B, [=] __device__(int64_t b) { add_counts(s, b); });
	each(c, s.B * s.token_blocks * WARP, [=] __device__(int64_t i) {
		put_vec(s, index, weight, i / WARP / s.token_blocks, i / WARP % s.token_blocks);
	});
}

/* dx_s = sum of weight_tn dy_t over the (t, n) with index_tn = s */
template <typename P> static void backward(const struct call *c)
{
	typedef typename P::real real;
	const int64_t *dim = c->node->in[X]->dim;
	struct scratch m = { (char *)c->work, 0 };
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

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>, NULL, NULL, workspace_of<alloc_sorting<P>> };
}
KERNELS(mix_topk, set)
