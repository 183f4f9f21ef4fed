/*
 * flash_launch - host side of flash attention: operand copies, workspace, choice of kernel traits,
 * and kernel launches. One .cu file per precision includes this header, so that they compile in
 * parallel.
 */
#ifndef CUDA_ATTENTION_FLASH_LAUNCH_CUH
#define CUDA_ATTENTION_FLASH_LAUNCH_CUH

#include "core/backend/cuda/attention/flash_backward.cuh"
#include "core/backend/cuda/attention/flash_routing.cuh"
#include "core/backend/cuda/attention/flash_wgmma.cuh"

/* ---------------------------------------------------------------- operand copies */

/* Copies the first `tokens` tokens of x [B,T,n,width] to [B,n,T,W], rounded and zero-padded. */
template <typename P> struct head_copy {
	int64_t before; /* 16-byte vectors of the preceding copies */
	struct heads x;
	input_view<P> from;
	bool aligned;
	uint32_t T, n, vecs;
	int64_t tokens, W;
	typename P::factor *out;

	__device__ void copy(uint32_t item) const
	{
		constexpr int N = VEC16<typename P::factor>;
		const uint32_t rest = item / vecs, vec = item % vecs;
		const uint32_t head = rest % n, token = rest / n, b = token / T, i = token % T;
		const int64_t to = ((int64_t)(b * n + head) * T + i) * W + vec * N;
		typename P::real y[N];

		if (i >= tokens)
			return;
		load_elements<N, P>(y, from + (x.at(b, head, i) + vec * N), x.width - vec * N,
				    aligned);
		*(decltype(as_vec(y)) *)(out + to) = as_vec(y);
	}
};

/* All operand copies of a node: Q, K, V and RECENT. */
template <typename P> struct head_copies {
	head_copy<P> list[4];
	int n;
	int64_t total; /* 16-byte vectors */

	__device__ int64_t before(int i) const
	{
		return list[i].before;
	}
	void add(const struct tensor *t, const void *data, int64_t W, int64_t tokens,
		 typename P::factor *out)
	{
		constexpr int N = VEC16<typename P::factor>;
		const struct heads x = heads_of(t, t->dim[2]);
		const input_view<P> from = { data, is_bf16(t) };

		list[n++] = { total,
			      x,
			      from,
			      is_aligned<N, P>(x, from),
			      (uint32_t)t->dim[1],
			      (uint32_t)t->dim[2],
			      (uint32_t)W / N,
			      tokens,
			      W,
			      out };
		total += t->dim[0] * t->dim[1] * t->dim[2] * (W / N);
	}
};

/* One thread per 16-byte vector, all tensors in one launch. */
template <typename P> static void copy_heads(const struct call *c, const head_copies<P> &copies)
{
	each_of_buffers(c, copies, copies.total,
			[=] __device__(const head_copies<P> &all, int at, int64_t i) {
				all.list[at].copy((uint32_t)(i - all.list[at].before));
			});
}

/* Arguments of the backward preprocess: lse * log2(e), delta = rowsum(dO * O), and dO rounded. */
template <typename P>
static backward_preprocess<P> preprocess_of(const struct call *c, typename P::real *lse_log2,
					    typename P::real *delta, typename P::factor *out)
{
	constexpr int N = VEC16<typename P::factor>;
	const struct tensor *t = c->node->out[O];
	const struct heads x = heads_of(t, t->dim[2]);
	const input_view<P> o = output<P>(c, O), rounding_error = output<P>(c, LOST);
	const input_view<P> d_o = output_gradient<P>(c, O);

	return { x,
		 o,
		 rounding_error,
		 d_o,
		 is_aligned<N, P>(x, o) && is_aligned<N, P>(x, rounding_error) &&
			 is_aligned<N, P>(x, d_o),
		 real_output<P>(c, LSE),
		 lse_log2,
		 delta,
		 out };
}

/* Runs the preprocess for rows of W elements. The WGMMA dQ kernel does this itself. */
template <typename P>
static void launch_preprocess(const struct call *c, int64_t W, int64_t padded_T,
			      const backward_preprocess<P> &r)
{
	constexpr int N = VEC16<typename P::factor>;
	const struct tensor *t = c->node->out[O];
	const uint32_t T = (uint32_t)t->dim[1], H = (uint32_t)t->dim[2], vecs = (uint32_t)W / N;
	const uint32_t rows = (uint32_t)padded_T;

	each(c, t->dim[0] * H * padded_T * vecs, [=] __device__(int64_t item) {
		const uint32_t rest = (uint32_t)item / vecs, vec = (uint32_t)item % vecs;
		const uint32_t h = rest % H, token = rest / H, b = token / rows, i = token % rows;
		const struct query_vec q = { b, h, H, i, T, rows, vec, vecs };
		typename P::real lse_delta[2];

		if (r.is_bf16())
			r.preprocess_bf16(q, r.load_bf16(q), lse_delta);
		else
			r.preprocess(q, lse_delta);
	});
}

/* ------------------------------------------------------------------- workspace */

template <typename P> struct flash_buffers {
	typename P::factor *q, *k, *v, *recent, *d_o; /* packed copies; NULL: read in place */
	aligned_pair<typename P::real> *distance_pairs;
	routing_scores<typename P::real> route;
	int64_t padded_T;
	typename P::real *lse_log2, *delta;
	typename P::real *dk;	 /* [B,H / heads_per_block,S,width] */
	typename P::real *dv;	 /* [B,H,S,width] */
	typename P::real *dbias; /* [B,H,S] */
	typename P::real *ds;	 /* dS [ds_heads,padded_T,padded_T]; NULL: not stored */
	int64_t ds_heads;
	typename P::real *ddistance; /* sums of flash_backward_distance_kernel */
	double *dband, *sum_work;
};

/* Largest head dimension that fits into shared memory: 64 for double, else 128. */
template <typename P> static constexpr int max_head_dim()
{
	return sizeof(typename P::factor) == sizeof(double) ? 64 : 128;
}

static bool has_band(const struct node *n)
{
	const struct attention_attr *a = (const struct attention_attr *)n->attr;

	return a->band_window >= 0;
}

static bool has_window(const struct node *n)
{
	const struct attention_attr *a = (const struct attention_attr *)n->attr;

	return a->window > 0;
}

/*
 * Head dimensions after padding. Few variants keep compile time low: V up to 64 with QK 64 or 128,
 * and one variant for everything else.
 */
struct widths {
	int64_t score, value;
};

template <typename P> static struct widths widths_of(const struct node *n)
{
	const int64_t score = n->in[Q]->dim[3], value = n->in[V]->dim[3];

	if (has_band(n) || value > 64)
		return { max_head_dim<P>(), max_head_dim<P>() };
	return { score <= 64 ? 64 : 128, 64 };
}

/* Can kernels read the tensor in place, as 16-byte aligned rows of whole 16-byte vectors? */
template <typename P> static bool can_read_in_place(const struct tensor *t)
{
	const int64_t elements_per_vec = VEC16<typename P::factor>;

	return is_factor<P>(t) && t->dim[3] % elements_per_vec == 0 &&
	       heads_of(t, t->dim[2]).pitch % elements_per_vec == 0 &&
	       t->offset % elements_per_vec == 0;
}

template <typename P>
static typename P::factor *alloc_copy(struct scratch *m, const struct tensor *t, int64_t W)
{
	if (!t || can_read_in_place<P>(t))
		return NULL;
	return m->alloc<typename P::factor>(tensor_count(t) / t->dim[3] * W);
}

/* The tensor as a kernel operand: in place, or its packed copy. */
template <typename P>
static head_matrix<const typename P::factor *> as_operand(const struct tensor *t, const void *data,
							  int64_t H, int64_t W,
							  const typename P::factor *copy)
{
	const struct heads x = heads_of(t, H);

	if (!copy)
		return from_token((const typename P::factor *)data, x, 0);
	return { copy, W, t->dim[2] * x.T * W, x.T * W, x.group_size };
}

/* The same for input i with `tokens` valid tokens; schedules the copy if there is one. */
template <typename P>
static head_matrix<const typename P::factor *>
input_operand(const struct call *c, int i, int64_t W, int64_t tokens, typename P::factor *copy,
	      head_copies<P> *copies)
{
	if (copy)
		copies->add(c->node->in[i], c->in[i], W, tokens, copy);
	return as_operand<P>(c->node->in[i], c->in[i], c->node->in[Q]->dim[2], W, copy);
}

/* Grid size with `block_rows` queries (or keys) per block. */
static int64_t blocks_of(const struct node *n, int64_t block_rows)
{
	const struct tensor *q = n->in[Q];

	return q->dim[0] * q->dim[2] * ((q->dim[1] + block_rows - 1) / block_rows);
}

#ifndef FLASH_BLOCKS_PER_SM
#define FLASH_BLOCKS_PER_SM 4 /* of 64 keys, to fill a GPU; the emulation uses fewer */
#endif

/*
 * Number of query heads that share keys and whose dK one block sums: the largest of 4, 3, 2 that
 * still leaves blocks to fill the GPU.
 */
static int64_t heads_per_block_of(int sms, const struct node *n)
{
	const int64_t group_size = n->in[Q]->dim[2] / n->in[K]->dim[2];

	for (int64_t heads = 4; heads > 1 && !has_band(n); heads--)
		if (group_size % heads == 0 &&
		    blocks_of(n, 64) / heads >= blocks_to_fill(sms, FLASH_BLOCKS_PER_SM))
			return heads;
	return 1;
}

static int64_t padded_query_count(const struct node *n)
{
	return (n->in[Q]->dim[1] + MAX_BLOCK_ROWS - 1) / MAX_BLOCK_ROWS * MAX_BLOCK_ROWS;
}

#ifndef STORED_BYTES
#define STORED_BYTES ((int64_t)256 << 20) /* of dS at most; the emulation uses less */
#endif

/*
 * Is one tensor both Q and K or V? Its gradients must accumulate in input order, and with stored dS
 * dQ would come last.
 */
static bool q_aliases_kv(const struct node *n)
{
	return n->in[Q] == n->in[K] || n->in[Q] == n->in[V];
}

/*
 * Number of heads per launch whose dS is stored, or 0 if dS is recomputed. Heads that share a dK
 * block stay in one launch, and launches are of about equal size. dS is recomputed if a launch
 * would have too few blocks to fill the GPU.
 */
template <typename P> static int64_t heads_with_stored_ds(int sms, const struct node *n)
{
	const int64_t heads = n->in[Q]->dim[0] * n->in[Q]->dim[2],
		      heads_per_block = heads_per_block_of(sms, n);
	const int64_t bytes =
		padded_query_count(n) * padded_query_count(n) * (int64_t)sizeof(typename P::real);
	const int64_t max_heads = STORED_BYTES / bytes / heads_per_block * heads_per_block;
	const int64_t launches_needed = max_heads ? (heads + max_heads - 1) / max_heads : 0;

	if (ROUNDS<P> || has_band(n) || has_window(n) || q_aliases_kv(n) || max_heads == 0)
		return 0;
	if (launches_needed > 1 && blocks_of(n, 64) / heads_per_block / launches_needed <
					   blocks_to_fill(sms, FLASH_BLOCKS_PER_SM))
		return 0;
	return (heads / heads_per_block + launches_needed - 1) / launches_needed * heads_per_block;
}

/* Buffer for dK or dV of each query head, or NULL: heads share nothing, and no sum is needed. */
template <typename P>
static typename P::real *alloc_head_gradients(struct scratch *m, const struct tensor *t,
					      int64_t heads)
{
	if (t->dim[2] == heads)
		return NULL;
	return m->alloc<typename P::real>(t->dim[0] * heads * t->dim[1] * t->dim[3]);
}

/* Elements of one block of routing rows. Its causal half fits into the L2 of a large GPU. */
#define ROUTE_ELEMENTS ((int64_t)1 << 24)

/* Queries per block of routing rows. */
static int64_t route_rows(int64_t B, int64_t T, int64_t S)
{
	const int64_t rows = ROUTE_ELEMENTS / (B * S) / ROW_STEP * ROW_STEP;

	return rows > T ? T : rows > ROW_STEP ? rows : ROW_STEP < T ? ROW_STEP : T;
}

static int64_t pairs_per_head(int64_t S)
{
	return S + 2 * MAX_BLOCK_ROWS;
}

/* The table that score_terms::distance_pairs points into, [H,pairs_per_head]. */
template <typename P>
static void fill_distance_pairs(const struct call *c, aligned_pair<typename P::real> *out)
{
	typedef typename P::real real;
	const struct tensor *t = c->node->in[DISTANCE_BIAS];
	const int64_t S = t->dim[1], pairs = pairs_per_head(S);
	const real *bias = real_input<P>(c, DISTANCE_BIAS);

	each(c, t->dim[0] * pairs, [=] __device__(int64_t item) {
		const int64_t d = item % pairs - MAX_BLOCK_ROWS;
		const real *head = bias + item / pairs * S;

		out[item] = { d >= 0 && d < S ? head[d] * (real)M_LOG2E : 0,
			      d >= 1 && d <= S ? head[d - 1] * (real)M_LOG2E : 0 };
	});
}

/* Upper bound of the sums of flash_backward_distance_kernel over all traits. */
static int64_t max_distance_sums(int64_t heads, int64_t T)
{
	return heads * (T / 16 + MAX_BLOCK_ROWS / 16 + 1) * 2 * MAX_BLOCK_ROWS;
}

template <typename P>
static flash_buffers<P> alloc_flash(struct scratch *m, const struct node *n, enum pass pass)
{
	typedef typename P::real real;
	const struct attention_attr *a = (const struct attention_attr *)n->attr;
	const int64_t B = n->in[Q]->dim[0], T = n->in[Q]->dim[1], H = n->in[Q]->dim[2];
	const int64_t S = n->in[K]->dim[1];
	const struct widths w = widths_of<P>(n);
	flash_buffers<P> f = {};

	f.q = alloc_copy<P>(m, n->in[Q], w.score);
	f.k = alloc_copy<P>(m, n->in[K], w.score);
	f.v = alloc_copy<P>(m, n->in[V], w.value);
	f.recent = alloc_copy<P>(m, n->in[RECENT], w.score);
	if (n->in[DISTANCE_BIAS])
		f.distance_pairs = m->alloc<aligned_pair<real>>(H * pairs_per_head(S));
	if (pass == PASS_FORWARD) {
		f.route = { NULL, route_rows(B, T, S), (S + 15) / 16 * 16 };
		if (a->route.mode == ROUTE_TOPK)
			f.route.at = m->alloc<real>(B * f.route.rows * f.route.pitch);
		return f;
	}
	f.padded_T = padded_query_count(n);
	f.d_o = alloc_copy<P>(m, n->out[O], w.value);
	f.lse_log2 = m->alloc<real>(B * H * f.padded_T);
	f.delta = m->alloc<real>(B * H * f.padded_T);
	f.dk = alloc_head_gradients<P>(m, n->in[K], H / heads_per_block_of(m->sms, n));
	f.dv = alloc_head_gradients<P>(m, n->in[V], H);
	f.dbias = n->in[KEY_BIAS] ? m->alloc<real>(B * H * S) : NULL;
	f.ds_heads = heads_with_stored_ds<P>(m->sms, n);
	f.ds = f.ds_heads ? m->alloc<real>(f.ds_heads * f.padded_T * f.padded_T) : NULL;
	f.ddistance = n->in[DISTANCE_BIAS] ? m->alloc<real>(max_distance_sums(B * H, T)) : NULL;
	f.dband = m->alloc<double>(blocks_of(n, 16));
	f.sum_work = m->alloc<double>(SUM_PARTS);
	return f;
}

/* Kernel parameters of a call; launches the operand copies. */
template <typename P>
static flash_params<P> make_params(const struct call *c, const flash_buffers<P> &f)
{
	const struct node *n = c->node;
	const struct attention_attr *a = (const struct attention_attr *)n->attr;
	const int64_t T = n->in[Q]->dim[1], H = n->in[Q]->dim[2];
	const int64_t elements_per_vec = VEC16<typename P::factor>;
	const struct widths w = widths_of<P>(n);
	head_copies<P> copies = {};
	flash_params<P> p = {};

	p.H = (int)H;
	p.T = (int)T;
	p.heads = (int)(n->in[Q]->dim[0] * H);
	p.past = (int)c->run->past;
	p.S = p.past + p.T;
	p.q = input_operand<P>(c, Q, w.score, T, f.q, &copies);
	p.k = input_operand<P>(c, K, w.score, p.S, f.k, &copies);
	p.v = input_operand<P>(c, V, w.value, p.S, f.v, &copies);
	p.score_vecs = (int)((n->in[Q]->dim[3] + elements_per_vec - 1) / elements_per_vec);
	p.value_vecs = (int)((n->in[V]->dim[3] + elements_per_vec - 1) / elements_per_vec);
	p.recent = p.q;
	p.recent_n = p.T;
	if (n->in[RECENT]) {
		p.recent_n = (int)n->in[RECENT]->dim[1];
		p.recent = input_operand<P>(c, RECENT, w.score, p.recent_n, f.recent, &copies);
	}
	copy_heads<P>(c, copies);
	p.recent_first = p.past + p.T - p.recent_n;
	p.d_o.group_size = 1; /* d_o is set by the backward pass only */
	p.scale = (typename P::real)a->scale;
	p.key_bias = real_input<P>(c, KEY_BIAS);
	if (p.key_bias)
		p.bias_layout = heads_of(n->in[KEY_BIAS], p.H);
	if (f.distance_pairs)
		fill_distance_pairs<P>(c, f.distance_pairs);
	p.distance_pairs = f.distance_pairs;
	p.distances = (int)pairs_per_head(n->in[K]->dim[1]);
	p.window = a->window < p.S ? (int)a->window : 0;
	p.sinks = (int)(a->sinks < p.S ? a->sinks : p.S);
	p.softcap = (typename P::real)a->softcap;
	p.band_window = a->band_window < p.S ? (int)a->band_window : p.S;
	p.constant_band = (typename P::real)a->band;
	p.learned_band = real_input<P>(c, BAND);
	p.dropout = dropout_mask_of(c);
	return p;
}

/* The same for the backward pass. preprocesses: the dQ kernel runs the preprocess itself. */
template <typename P>
static flash_params<P> make_backward_params(const struct call *c, const flash_buffers<P> &f,
					    const backward_preprocess<P> &rows, bool preprocesses)
{
	const struct tensor *o = c->node->out[O];
	const int64_t W = widths_of<P>(c->node).value;
	flash_params<P> p = make_params<P>(c, f);

	if (!preprocesses)
		launch_preprocess<P>(c, W, f.padded_T, rows);
	p.d_o = as_operand<P>(o, c->dout[O], p.H, W, f.d_o);
	p.padded_T = (int)f.padded_T;
	p.lse_log2 = f.lse_log2;
	p.delta = f.delta;
	p.heads_per_block = (int)heads_per_block_of(context_of(c)->sm_count, c->node);
	return p;
}

/* --------------------------------------------------------------------- kernel traits */

/* Traits of the routing kernel, which reads no values. The generic variant always has HAS_TERMS. */
template <typename P, int QK_DIM, bool HAS_TERMS, bool HAS_BAND> struct combine_traits {
	static constexpr int ROW_BYTES = QK_DIM * (int)sizeof(typename P::factor);
	static constexpr int WARPS = ROW_BYTES == 512 && HAS_BAND ? 2 : 4;
	static constexpr int BLOCK_N = ROW_BYTES <= 256 && !HAS_BAND  ? 64
				       : ROW_BYTES == 512 && HAS_BAND ? 16
								      : 32;

	typedef kernel_traits<P, QK_DIM, 64, 1, WARPS, BLOCK_N, 2, true, HAS_BAND> type;
};

template <int QK_DIM, bool HAS_TERMS>
struct combine_traits<bfloat16_products, QK_DIM, HAS_TERMS, false> {
	typedef kernel_traits<bfloat16_products, QK_DIM, 64, 1, 4, 64, 3, HAS_TERMS, false> type;
};

/*
 * Kernel traits by precision, head dimensions and terms. The bfloat16 shapes with V_DIM 64 and
 * without terms are the fastest of four to nine measured on an H200. All fit into the 99 KiB of
 * shared memory per block of compute capability 8.6 and newer.
 */
template <typename P, int QK_DIM, int V_DIM, bool HAS_TERMS, bool HAS_BAND> struct flash_traits {
	static constexpr int ROW_BYTES = QK_DIM * (int)sizeof(typename P::factor); /* of Q or K */
	static constexpr int WARPS = ROW_BYTES == 512 && HAS_BAND ? 2 : 4;
	static constexpr int BLOCK_N = ROW_BYTES == 128 ? 64 : ROW_BYTES == 256 ? 32 : 16;

	typedef kernel_traits<P, QK_DIM, V_DIM, 1, WARPS, BLOCK_N, 2, HAS_TERMS, HAS_BAND> forward,
		dq, dkdv;
	typedef typename combine_traits<P, QK_DIM, HAS_TERMS, HAS_BAND>::type combine;
};

template <bool HAS_TERMS> struct flash_traits<bfloat16_products, 64, 64, HAS_TERMS, false> {
	typedef kernel_traits<bfloat16_products, 64, 64, 2, 4, 64, 2, HAS_TERMS, false> forward, dq;
	typedef kernel_traits<bfloat16_products, 64, 64, HAS_TERMS ? 1 : 2, 4, HAS_TERMS ? 64 : 32,
			      2, HAS_TERMS, false>
		dkdv;
	typedef typename combine_traits<bfloat16_products, 64, HAS_TERMS, false>::type combine;
};

template <bool HAS_TERMS> struct flash_traits<bfloat16_products, 128, 64, HAS_TERMS, false> {
	typedef kernel_traits<bfloat16_products, 128, 64, 2, 4, 64, 2, HAS_TERMS, false> forward;
	typedef kernel_traits<bfloat16_products, 128, 64, 2, 4, 32, 2, HAS_TERMS, false> dq;
	typedef kernel_traits<bfloat16_products, 128, 64, 1, 4, 64, 2, HAS_TERMS, false> dkdv;
	typedef typename combine_traits<bfloat16_products, 128, HAS_TERMS, false>::type combine;
};

template <bool HAS_TERMS> struct flash_traits<single_precision, 64, 64, HAS_TERMS, false> {
	typedef kernel_traits<single_precision, 64, 64, 2, 4, 32, 2, HAS_TERMS, false> forward, dq;
	typedef kernel_traits<single_precision, 64, 64, 2, 4, 16, 2, HAS_TERMS, false> dkdv;
	typedef typename combine_traits<single_precision, 64, HAS_TERMS, false>::type combine;
};

/*
 * WGMMA needs fewer registers per thread, so more blocks fit on an SM. These shapes are the fastest
 * of three to eight measured on an H200. A forward pass with more than two stages uses
 * flash_forward_wgmma_kernel.
 */
template <int QK_DIM, bool HAS_TERMS, bool HAS_BIAS> struct wgmma_traits {
	template <int WARPS, int MIN_BLOCKS_PER_SM, int STAGES = 2>
	using wgmma_kernel_traits =
		kernel_traits<bfloat16_products, QK_DIM, 64, 1, WARPS, 64, MIN_BLOCKS_PER_SM,
			      HAS_TERMS, false, true, STAGES, HAS_BIAS>;

	typedef wgmma_kernel_traits<8, 2,
				    QK_DIM == 64 ? (HAS_TERMS ? 3 : 4)
				    : HAS_TERMS	 ? 2
						 : 3>
		forward;
	typedef wgmma_kernel_traits<4, QK_DIM == 64 && !HAS_TERMS ? 4 : 3> dq;
	typedef wgmma_kernel_traits<4, QK_DIM == 64 && !HAS_TERMS ? 3 : 2> dkdv;
	typedef wgmma_kernel_traits<4, 3> combine;
	/* A whole head is one tile of queries and one of keys: small blocks, of which many fit. */
	typedef wgmma_kernel_traits<4, QK_DIM == 64 && !HAS_TERMS ? 4 : 3> forward_of_one_tile;
};

/* Traits without a kernel of its own for short sequences. */
template <typename KernelTraits, typename = void> struct short_forward_of {
	typedef void type;
};

template <typename KernelTraits>
struct short_forward_of<KernelTraits, std::void_t<typename KernelTraits::forward_of_one_tile>> {
	typedef typename KernelTraits::forward_of_one_tile type;
};

/* -------------------------------------------------------------------- launches */

template <typename Kernel, typename... Arguments>
static void launch(const struct call *c, Kernel *kernel, dim3 blocks, int threads, int bytes,
		   const Arguments &...arguments)
{
	set_max_dynamic_smem(c, kernel, bytes);
	launch_pdl(context_of(c)->pdl, kernel, blocks, threads, bytes, stream_of(c), arguments...);
	note_launch(c, cuda_attention_length);
}

/* Grid for p.heads heads with `block_rows` queries (or keys) per block. */
template <typename P> static dim3 blocks_for(const flash_params<P> &p, int block_rows)
{
	return dim3((unsigned)p.heads * (unsigned)((p.T + block_rows - 1) / block_rows));
}

template <typename Traits> static constexpr auto forward_kernel_of()
{
	if constexpr (Traits::STAGES > 2)
		return flash_forward_wgmma_kernel<Traits>;
	else
		return flash_forward_kernel<Traits>;
}

/* An output tensor with the layout of O. */
template <typename P> static gmem_output<P> output_of(const struct call *c, int index)
{
	const struct heads o = heads_of(c->node->out[O], c->node->in[Q]->dim[2]);

	return gmem_output_of(from_token(output<P>(c, index), o, 0), o.width, false);
}

template <typename P, int QK_DIM, int V_DIM, bool HAS_TERMS, bool HAS_BAND,
	  typename KernelTraits = flash_traits<P, QK_DIM, V_DIM, HAS_TERMS, HAS_BAND>>
struct launches {
	typedef typename P::real real;

	static constexpr bool has_band = HAS_BAND;
	static constexpr int64_t dq_block_m = KernelTraits::dq::BLOCK_M;
	static constexpr bool dq_preprocesses = KernelTraits::dq::WGMMA;

	template <typename Traits>
	static void forward_by(const struct call *c, const flash_params<P> &p, int bytes)
	{
		launch(c, forward_kernel_of<Traits>(), blocks_for(p, Traits::BLOCK_M),
		       Traits::THREADS, bytes, p,
		       forward_outputs<P>{ output_of<P>(c, O), output_of<P>(c, LOST),
					   real_output<P>(c, LSE) });
	}
	static void forward(const struct call *c, const flash_params<P> &p)
	{
		typedef typename KernelTraits::forward Traits;
		typedef typename short_forward_of<KernelTraits>::type Short;

		if constexpr (!std::is_void_v<Short>)
			if (p.S <= Short::BLOCK_N) {
				forward_by<Short>(c, p, smem_layout<Short, false>::FIRST_BYTES);
				return;
			}
		forward_by<Traits>(c, p, smem_layout<Traits, false>::BYTES);
	}
	static void combine(const struct call *c, const flash_params<P> &p,
			    routing_scores<real> route, struct query_block x, bool maximum)
	{
		typedef typename KernelTraits::combine Traits;
		const dim3 blocks((unsigned)((x.keys + Traits::BLOCK_N - 1) / Traits::BLOCK_N),
				  (unsigned)((x.n + Traits::BLOCK_M - 1) / Traits::BLOCK_M),
				  (unsigned)c->node->in[Q]->dim[0]);

		launch(c, routing_combine_kernel<Traits>, blocks, Traits::THREADS,
		       route_smem<Traits>::bytes(p), p, (const real *)real_output<P>(c, LSE), route,
		       x, maximum);
	}
	template <bool IN_BAND>
	static void dq(const struct call *c, const flash_params<P> &p, gmem_output<P> out,
		       double *dband, const backward_preprocess<P> &rows)
	{
		typedef typename KernelTraits::dq Traits;

		launch(c, flash_backward_dq_kernel<Traits, IN_BAND>, blocks_for(p, Traits::BLOCK_M),
		       Traits::THREADS,
		       smem_layout<Traits, true>::BYTES + resident_scalars<Traits>::BYTES, p, out,
		       dband, rows);
	}
	static void dq_from_stored_ds(const struct call *c, const flash_params<P> &p,
				      gmem_output<P> out)
	{
		typedef typename KernelTraits::dq Traits;

		if constexpr (!ROUNDS<P>)
			launch(c, flash_backward_dq_stored_kernel<Traits>,
			       blocks_for(p, Traits::BLOCK_M), Traits::THREADS,
			       stored_ds_smem<Traits>::BYTES, p, out);
	}
	/* Writes the gradient of the distance bias. */
	static void distances(const struct call *c, const flash_params<P> &p, real *sums)
	{
		typedef typename flash_traits<P, QK_DIM, V_DIM, true, HAS_BAND>::dkdv Traits;
		typedef distance_layout<Traits> Layout;
		const int64_t diagonals = Layout::diagonals(p.T), H = p.H;
		const int64_t S = c->node->in[DISTANCE_BIAS]->dim[1];
		const int64_t B = p.heads / H;
		const auto d = input_gradient<P>(c, DISTANCE_BIAS);

		launch(c, flash_backward_distance_kernel<Traits>,
		       dim3((unsigned)diagonals, (unsigned)p.heads), Traits::THREADS,
		       distance_smem<Traits>::BYTES, p, sums);
		each(c, H * S, [=] __device__(int64_t item) {
			const int64_t h = item / S, distance = item % S;
			real sum = 0;

			for (int64_t b = 0; b < B; b++)
				for (int64_t n = 0; n < diagonals; n++) {
					const int64_t at =
						distance + Traits::BLOCK_N - 1 -
						(n - (Layout::RATIO - 1)) * Traits::BLOCK_N;

					if (at >= 0 && at < Layout::SUMS)
						sum += sums[((b * H + h) * diagonals + n) *
								    Layout::SUMS +
							    at];
				}
			d.put(item, sum);
		});
	}
	template <bool IN_BAND>
	static void dkdv(const struct call *c, const flash_params<P> &p, gmem_output<P> dk,
			 gmem_output<P> dv, real *dbias)
	{
		typedef typename KernelTraits::dkdv Traits;

		launch(c, flash_backward_dkdv_kernel<Traits, IN_BAND>,
		       dim3(blocks_for(p, Traits::BLOCK_M).x / (unsigned)p.heads_per_block),
		       Traits::THREADS, smem_layout<Traits, true>::BYTES, p, dk, dv, dbias);
	}
};

template <int QK_DIM, bool HAS_TERMS, bool HAS_BIAS>
using wgmma_launches = launches<bfloat16_products, QK_DIM, 64, HAS_TERMS, false,
				wgmma_traits<QK_DIM, HAS_TERMS, HAS_BIAS>>;

template <int QK_DIM, typename F>
static void dispatch_wgmma_traits(bool has_terms, bool has_bias, F f)
{
	if (has_terms)
		f(wgmma_launches<QK_DIM, true, true>());
	else if (has_bias)
		f(wgmma_launches<QK_DIM, false, true>());
	else
		f(wgmma_launches<QK_DIM, false, false>());
}

/*
 * Calls f(launches) with the kernel traits for the node. Rare features share the kernels of a more
 * general variant.
 */
template <typename P, typename F> static void dispatch_traits(const struct call *c, F f)
{
	const struct node *n = c->node;
	const struct attention_attr *a = (const struct attention_attr *)n->attr;
	constexpr bool is_bf16 = sizeof(typename P::factor) < sizeof(typename P::real);
	constexpr bool is_double = sizeof(typename P::factor) == sizeof(double);
	const bool has_bias = n->in[KEY_BIAS], needs_terms = n->in[DISTANCE_BIAS] ||
							     has_window(n) || a->softcap > 0 ||
							     a->dropout > 0 || !(a->scale > 0);
	const bool has_terms = has_bias || needs_terms;

	if constexpr (is_bf16)
		if (context_of(c)->has_wgmma && widths_of<P>(n).value == 64)
			return widths_of<P>(n).score == 64
				       ? dispatch_wgmma_traits<64>(needs_terms, has_bias, f)
				       : dispatch_wgmma_traits<128>(needs_terms, has_bias, f);
	if constexpr (!is_double) {
		if (widths_of<P>(n).value == 64 && widths_of<P>(n).score == 64)
			return has_terms || !is_bf16 ? f(launches<P, 64, 64, true, false>())
						     : f(launches<P, 64, 64, !is_bf16, false>());
		if (widths_of<P>(n).value == 64)
			return has_terms || !is_bf16 ? f(launches<P, 128, 64, true, false>())
						     : f(launches<P, 128, 64, !is_bf16, false>());
	}
	f(launches<P, max_head_dim<P>(), max_head_dim<P>(), true, true>());
}

/* ---------------------------------------------------------------------- passes */

/*
 * A block loops over all keys of its queries, so a single query (decoding) would leave the GPU
 * idle.
 */
template <typename P> bool flash<P>::takes(const struct node *n)
{
	const struct tensor *q = n->in[Q], *v = n->in[V];

	return q->dim[1] > 1 && q->dim[3] <= max_head_dim<P>() && v->dim[3] <= max_head_dim<P>();
}

template <typename P>
static void route_queries(const struct call *c, const flash_params<P> &p,
			  routing_scores<typename P::real> route)
{
	const struct attention_attr *a = (const struct attention_attr *)c->node->attr;

	for (int64_t first = 0; first < p.T; first += route.rows) {
		const int64_t n = p.T - first < route.rows ? p.T - first : route.rows;
		const struct query_block x = { first, n, p.past + first + n, 0 };

		dispatch_traits<P>(c, [&](auto launcher) {
			launcher.combine(c, p, route, x, a->route.head_maximum);
		});
		write_routes<P>(c, route, p.past, x);
	}
}

template <typename P> void flash<P>::forward(const struct call *c)
{
	struct scratch m = scratch_of(c);
	const flash_buffers<P> f = alloc_flash<P>(&m, c->node, PASS_FORWARD);
	const flash_params<P> p = make_params<P>(c, f);

	dispatch_traits<P>(c, [&](auto launcher) { launcher.forward(c, p); });
	if (f.route.at)
		route_queries<P>(c, p, f.route);
}

/*
 * Destination of dK or dV with H heads: the input gradient itself, or the buffer `sums` that
 * put_shared() reduces.
 */
template <typename P>
static gmem_output<P> dkdv_output(const struct call *c, int input, typename P::real *sums,
				  int64_t H)
{
	const struct tensor *t = c->node->in[input];
	const auto d = input_gradient<P>(c, input);

	if (sums && d)
		return gmem_output_of(from_buffer(real_view<P>(sums), H, t->dim[1], t->dim[3]),
				      t->dim[3], false);
	return gmem_output_of(from_token(d.to, heads_of(t, H), 0), t->dim[3], d.add);
}

/* Adds the band's gradients to dq and dk, which hold the other terms already, and writes dband. */
template <typename P>
static void add_band(const struct call *c, const flash_params<P> &p, const flash_buffers<P> &f,
		     gmem_output<P> dq, gmem_output<P> dk)
{
	typedef typename P::real real;
	const auto dband = input_gradient<P>(c, BAND);
	double *block_sums = f.dband;
	int64_t blocks = 0;

	dq.add = dk.add = true;
	dispatch_traits<P>(c, [&](auto launcher) {
		typedef decltype(launcher) L;

		blocks = blocks_of(c->node, L::dq_block_m);
		if constexpr (L::has_band) {
			if (dk.to.at || dband)
				L::template dq<true>(c, p, dk, f.dband, {});
			if (dq.to.at)
				L::template dkdv<true>(c, p, dq, dq, NULL);
		}
	});
	if (dband)
		sum_all(
			c, blocks, [=] __device__(int64_t i) { return block_sums[i]; }, f.sum_work,
			[=] __device__(double sum) { dband.put(0, (real)sum); });
}

/* Does the call need an output of the dK/dV kernel? */
static bool needs_dkdv(const struct call *c)
{
	return c->din[K] || c->din[V] || c->din[KEY_BIAS];
}

/* Backward with stored dS, ds_heads heads at a time: dK, dV, dbias and dS, then dQ from dS. */
template <typename P>
static void backward_with_stored_ds(const struct call *c, flash_params<P> p,
				    const flash_buffers<P> &f, gmem_output<P> dq, gmem_output<P> dk,
				    gmem_output<P> dv)
{
	const int heads = p.heads, max_heads = (int)f.ds_heads;

	p.ds = f.ds;
	for (p.first_head = 0; p.first_head < heads; p.first_head += max_heads) {
		p.heads = heads - p.first_head < max_heads ? heads - p.first_head : max_heads;
		dispatch_traits<P>(c, [&](auto launcher) {
			launcher.template dkdv<false>(c, p, dk, dv, f.dbias);
			launcher.dq_from_stored_ds(c, p, dq);
		});
	}
}

/* Backward with recomputed scores; each kernel runs only if its outputs are needed. */
template <typename P>
static void backward_recomputing_scores(const struct call *c, const flash_params<P> &p,
					const flash_buffers<P> &f,
					const backward_preprocess<P> &rows, gmem_output<P> dq,
					gmem_output<P> dk, gmem_output<P> dv)
{
	dispatch_traits<P>(c, [&](auto launcher) {
		if (dq.to.at)
			launcher.template dq<false>(c, p, dq, NULL, rows);
		if (needs_dkdv(c))
			launcher.template dkdv<false>(c, p, dk, dv, f.dbias);
	});
}

template <typename P> void flash<P>::backward(const struct call *c)
{
	struct scratch m = scratch_of(c);
	const flash_buffers<P> f = alloc_flash<P>(&m, c->node, PASS_BACKWARD);
	const backward_preprocess<P> rows = preprocess_of<P>(c, f.lse_log2, f.delta, f.d_o);
	const struct tensor *q = c->node->in[Q];
	const auto d = input_gradient<P>(c, Q);
	bool preprocesses = false;

	dispatch_traits<P>(
		c, [&](auto launcher) { preprocesses = d && decltype(launcher)::dq_preprocesses; });
	const flash_params<P> p = make_backward_params<P>(c, f, rows, preprocesses);
	const auto dq = gmem_output_of(from_token(d.to, heads_of(q, p.H), 0), q->dim[3], d.add);
	const int64_t key_heads = p.H / p.heads_per_block;
	const auto dk = dkdv_output<P>(c, K, f.dk, key_heads), dv = dkdv_output<P>(c, V, f.dv, p.H);

	if (f.ds && d && needs_dkdv(c))
		backward_with_stored_ds<P>(c, p, f, dq, dk, dv);
	else
		backward_recomputing_scores<P>(c, p, f, rows, dq, dk, dv);
	if (c->din[DISTANCE_BIAS])
		dispatch_traits<P>(c,
				   [&](auto launcher) { launcher.distances(c, p, f.ddistance); });
	if (has_band(c->node))
		add_band<P>(c, p, f, dq, dk);
	if (f.dk)
		put_shared<P>(c, K, f.dk, key_heads);
	if (f.dv)
		put_shared<P>(c, V, f.dv, p.H);
	if (f.dbias)
		put_shared<P>(c, KEY_BIAS, f.dbias, p.H);
}

template <typename P> size_t flash<P>::workspace(const struct node *n, enum pass pass, int sms)
{
	struct scratch m = count_scratch(sms);

	alloc_flash<P>(&m, n, pass);
	return m.used;
}

#endif
