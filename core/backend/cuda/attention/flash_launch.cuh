/*
 * fused_passes - the passes of fused attention: copies, buffers, and launches of its kernels.
 *
 * A file for each precision includes this one, so that they are compiled side by side.
 */
#ifndef CUDA_ATTENTION_FLASH_LAUNCH_CUH
#define CUDA_ATTENTION_FLASH_LAUNCH_CUH

#include "core/backend/cuda/attention/flash_backward.cuh"
#include "core/backend/cuda/attention/flash_routing.cuh"
#include "core/backend/cuda/attention/flash_wgmma.cuh"

/* --------------------------------------------------------- copies of the factors */

/* The first `tokens` tokens of x [B,T,n,width] as [B,n,T,W], rounded where P says so. */
template <typename P> struct head_copy {
	int64_t before; /* pieces of the copies before */
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
		read_numbers<N, P>(y, from + (x.at(b, head, i) + vec * N), x.width - vec * N,
				   aligned);
		*(decltype(as_vec(y)) *)(out + to) = as_vec(y);
	}
};

/* All copies of a node: of Q, K, V and RECENT. */
template <typename P> struct head_copies {
	head_copy<P> list[4];
	int n;
	int64_t total; /* pieces */

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

/* A thread for every piece. */
template <typename P> static void copy_heads(const struct call *c, const head_copies<P> &copies)
{
	each_of_buffers(c, copies, copies.total,
			[=] __device__(const head_copies<P> &all, int at, int64_t i) {
				all.list[at].copy((uint32_t)(i - all.list[at].before));
			});
}

/* Where what gradients need of every query comes from and goes to. */
template <typename P>
static row_source<P> rows_to_prepare(const struct call *c, typename P::real *lse2,
				     typename P::real *delta, typename P::factor *out)
{
	constexpr int N = VEC16<typename P::factor>;
	const struct tensor *t = c->node->out[O];
	const struct heads x = heads_of(t, t->dim[2]);
	const input_view<P> o = output<P>(c, O), lost = output<P>(c, LOST);
	const input_view<P> d_o = output_gradient<P>(c, O);

	return { x,
		 o,
		 lost,
		 d_o,
		 is_aligned<N, P>(x, o) && is_aligned<N, P>(x, lost) && is_aligned<N, P>(x, d_o),
		 real_output<P>(c, LSE),
		 lse2,
		 delta,
		 out };
}

/* All of it, of rows of W numbers, where the kernel of dQ does not prepare its own. */
template <typename P>
static void prepare_rows(const struct call *c, int64_t W, int64_t padded, const row_source<P> &r)
{
	constexpr int N = VEC16<typename P::factor>;
	const struct tensor *t = c->node->out[O];
	const uint32_t T = (uint32_t)t->dim[1], H = (uint32_t)t->dim[2], vecs = (uint32_t)W / N;
	const uint32_t rows = (uint32_t)padded;

	each(c, t->dim[0] * H * padded * vecs, [=] __device__(int64_t item) {
		const uint32_t rest = (uint32_t)item / vecs, vec = (uint32_t)item % vecs;
		const uint32_t h = rest % H, token = rest / H, b = token / rows, i = token % rows;
		const struct query_vec q = { b, h, H, i, T, rows, vec, vecs };
		typename P::real two[2];

		if (r.is_bf16())
			r.prepare_bf16(q, r.load_bf16(q), two);
		else
			r.prepare(q, two);
	});
}

/* --------------------------------------------------------------------- buffers */

/* Of all shapes: rows that a block owns, columns of a step. */
#define MAX_ROWS_OF_BLOCK 128

template <typename P> struct flash_buffers {
	typename P::factor *q, *k, *v, *recent, *d_o; /* copies, or NULL: read in place */
	combined<typename P::real> route;
	int64_t padded;
	typename P::real *lse2, *delta;
	typename P::real *dk, *dv, *dbias; /* [B,H / together,S,width], [B,H,S,width], [B,H,S] */
	typename P::real *ds;		   /* [ds_heads,padded,padded], or NULL: it is not stored */
	int64_t ds_heads;
	double *dband, *sum_work;
};

/* The widest rows that fit: doubles of 64, others of 128. */
template <typename P> static constexpr int widest()
{
	return sizeof(typename P::factor) == sizeof(double) ? 64 : 128;
}

static bool has_band(const struct node *n)
{
	const struct attention_attr *a = (const struct attention_attr *)n->attr;

	return a->band_window >= 0;
}

/*
 * Widths to which scores and values are filled up.  Kernels take long to compile, so there are
 * few: for the common values of up to 64, and one for everything else.
 */
struct widths {
	int64_t score, value;
};

template <typename P> static struct widths widths_of(const struct node *n)
{
	const int64_t score = n->in[Q]->dim[3], value = n->in[V]->dim[3];

	if (has_band(n) || value > 64)
		return { widest<P>(), widest<P>() };
	return { score <= 64 ? 64 : 128, 64 };
}

/* Can kernels read the tensor where it is, as rows of whole pieces that start on 16 bytes? */
template <typename P> static bool is_ready(const struct tensor *t)
{
	const int64_t in_piece = VEC16<typename P::factor>;

	return is_factor<P>(t) && t->dim[3] % in_piece == 0 &&
	       heads_of(t, t->dim[2]).pitch % in_piece == 0 && t->offset % in_piece == 0;
}

template <typename P>
static typename P::factor *alloc_copy(struct scratch *m, const struct tensor *t, int64_t W)
{
	if (!t || is_ready<P>(t))
		return NULL;
	return m->alloc<typename P::factor>(tensor_count(t) / t->dim[3] * W);
}

/* The tensor as kernels read it: in place, or the copy, if there is one. */
template <typename P>
static head_matrix<const typename P::factor *> ready(const struct tensor *t, const void *data,
						     int64_t H, int64_t W,
						     const typename P::factor *copy)
{
	const struct heads x = heads_of(t, H);

	if (!copy)
		return from_token((const typename P::factor *)data, x, 0);
	return { copy, W, t->dim[2] * x.T * W, x.T * W, x.sharing };
}

/* The same of an input, of which the first `tokens` are there; its copy is to be made. */
template <typename P>
static head_matrix<const typename P::factor *> ready_input(const struct call *c, int i, int64_t W,
							   int64_t tokens, typename P::factor *copy,
							   head_copies<P> *copies)
{
	if (copy)
		copies->add(c->node->in[i], c->in[i], W, tokens, copy);
	return ready<P>(c->node->in[i], c->in[i], c->node->in[Q]->dim[2], W, copy);
}

/* Blocks that own `own` queries, or keys, of a head. */
static int64_t blocks_of(const struct node *n, int64_t own)
{
	const struct tensor *q = n->in[Q];

	return q->dim[0] * q->dim[2] * ((q->dim[1] + own - 1) / own);
}

#ifndef MANY_BLOCKS
#define MANY_BLOCKS 512 /* of 64 keys: enough for a large GPU; fewer where it is emulated */
#endif

/* Heads that share keys and whose dK one block sums up: as many as leave many blocks. */
static int64_t heads_together(const struct node *n)
{
	const int64_t sharing = n->in[Q]->dim[2] / n->in[K]->dim[2];

	for (int64_t heads = 4; heads > 1 && !has_band(n); heads--)
		if (sharing % heads == 0 && blocks_of(n, 64) / heads >= MANY_BLOCKS)
			return heads;
	return 1;
}

static int64_t padded_queries(const struct node *n)
{
	return (n->in[Q]->dim[1] + MAX_ROWS_OF_BLOCK - 1) / MAX_ROWS_OF_BLOCK * MAX_ROWS_OF_BLOCK;
}

#ifndef STORED_BYTES
#define STORED_BYTES ((int64_t)256 << 20) /* of dS at most; less where it is emulated */
#endif

/* Gradients of one tensor that is read twice are added in the order of inputs; dQ would come last.
 */
static bool queries_are_keys(const struct node *n)
{
	return n->in[Q] == n->in[K] || n->in[Q] == n->in[V];
}

/*
 * Heads whose dS is stored at once, or 0: it is not.  Those whose dK one block sums up stay
 * together, and the last launch has about as many as the others.  Where there is room for so few
 * that a large GPU would idle, scores are made again.
 */
template <typename P> static int64_t heads_stored(const struct node *n)
{
	const int64_t heads = n->in[Q]->dim[0] * n->in[Q]->dim[2], together = heads_together(n);
	const int64_t bytes =
		padded_queries(n) * padded_queries(n) * (int64_t)sizeof(typename P::real);
	const int64_t most = STORED_BYTES / bytes / together * together;
	const int64_t times = most ? (heads + most - 1) / most : 0;

	if (ROUNDS<P> || has_band(n) || queries_are_keys(n) || most == 0)
		return 0;
	if (times > 1 && blocks_of(n, 64) / together / times < MANY_BLOCKS)
		return 0;
	return (heads / together + times - 1) / times * together;
}

/* Of dK or dV, made for so many heads: those that share need their sums apart first. */
template <typename P>
static typename P::real *alloc_sums(struct scratch *m, const struct tensor *t, int64_t heads)
{
	if (t->dim[2] == heads)
		return NULL;
	return m->alloc<typename P::real>(t->dim[0] * heads * t->dim[1] * t->dim[3]);
}

/* Of all examples.  The part of these rows that queries see, a half, stays in the cache of a large
 * GPU. */
#define ROUTE_NUMBERS ((int64_t)1 << 24)

/* Queries whose routes are made at once. */
static int64_t route_rows(int64_t B, int64_t T, int64_t S)
{
	const int64_t rows = ROUTE_NUMBERS / (B * S) / ROW_STEP * ROW_STEP;

	return rows > T ? T : rows > ROW_STEP ? rows : ROW_STEP < T ? ROW_STEP : T;
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
	if (pass == PASS_FORWARD) {
		f.route = { NULL, route_rows(B, T, S), (S + 15) / 16 * 16 };
		if (a->route.mode == ROUTE_TOPK)
			f.route.at = m->alloc<real>(B * f.route.rows * f.route.pitch);
		return f;
	}
	f.padded = padded_queries(n);
	f.d_o = alloc_copy<P>(m, n->out[O], w.value);
	f.lse2 = m->alloc<real>(B * H * f.padded);
	f.delta = m->alloc<real>(B * H * f.padded);
	f.dk = alloc_sums<P>(m, n->in[K], H / heads_together(n));
	f.dv = alloc_sums<P>(m, n->in[V], H);
	f.dbias = n->in[KEY_BIAS] ? m->alloc<real>(B * H * S) : NULL;
	f.ds_heads = heads_stored<P>(n);
	f.ds = f.ds_heads ? m->alloc<real>(f.ds_heads * f.padded * f.padded) : NULL;
	f.dband = m->alloc<double>(blocks_of(n, 16));
	f.sum_work = m->alloc<double>(SUM_PARTS);
	return f;
}

/* Copies what has to be copied. */
template <typename P>
static problem<P> open_problem(const struct call *c, const flash_buffers<P> &f)
{
	const struct node *n = c->node;
	const struct attention_attr *a = (const struct attention_attr *)n->attr;
	const int64_t T = n->in[Q]->dim[1], H = n->in[Q]->dim[2];
	const int64_t in_piece = VEC16<typename P::factor>;
	const struct widths w = widths_of<P>(n);
	head_copies<P> copies = {};
	problem<P> p = {};

	p.H = (int)H;
	p.T = (int)T;
	p.heads = (int)(n->in[Q]->dim[0] * H);
	p.past = (int)c->run->past;
	p.S = p.past + p.T;
	p.q = ready_input<P>(c, Q, w.score, T, f.q, &copies);
	p.k = ready_input<P>(c, K, w.score, p.S, f.k, &copies);
	p.v = ready_input<P>(c, V, w.value, p.S, f.v, &copies);
	p.score_vecs = (int)((n->in[Q]->dim[3] + in_piece - 1) / in_piece);
	p.value_vecs = (int)((n->in[V]->dim[3] + in_piece - 1) / in_piece);
	p.recent = p.q;
	p.recent_n = p.T;
	if (n->in[RECENT]) {
		p.recent_n = (int)n->in[RECENT]->dim[1];
		p.recent = ready_input<P>(c, RECENT, w.score, p.recent_n, f.recent, &copies);
	}
	copy_heads<P>(c, copies);
	p.recent_first = p.past + p.T - p.recent_n;
	p.d_o.sharing = 1; /* it is there only for gradients */
	p.scale = (typename P::real)a->scale;
	p.key_bias = real_input<P>(c, KEY_BIAS);
	if (p.key_bias)
		p.bias_layout = heads_of(n->in[KEY_BIAS], p.H);
	p.alibi = a->alibi;
	p.band_window = a->band_window < p.S ? (int)a->band_window : p.S;
	p.constant_band = (typename P::real)a->band;
	p.learned_band = real_input<P>(c, BAND);
	p.mask = dropout_mask_of(c);
	return p;
}

/* The same with what only the gradients need.  prepares: the kernel of dQ prepares rows. */
template <typename P>
static problem<P> open_gradients(const struct call *c, const flash_buffers<P> &f,
				 const row_source<P> &rows, bool prepares)
{
	const struct tensor *o = c->node->out[O];
	const int64_t W = widths_of<P>(c->node).value;
	problem<P> p = open_problem<P>(c, f);

	if (!prepares)
		prepare_rows<P>(c, W, f.padded, rows);
	p.d_o = ready<P>(o, c->dout[O], p.H, W, f.d_o);
	p.padded = (int)f.padded;
	p.lse2 = f.lse2;
	p.delta = f.delta;
	p.together = (int)heads_together(c->node);
	return p;
}

/* ---------------------------------------------------------------------- shapes */

/* Routing reads no values, and a kernel with extras also does without. */
template <typename P, int KW, bool MORE, bool BANDED> struct combine_shape {
	static constexpr int LINE = KW * (int)sizeof(typename P::factor);
	static constexpr int WARPS = LINE == 512 && BANDED ? 2 : 4;
	static constexpr int STEP = LINE <= 256 && !BANDED ? 64 : LINE == 512 && BANDED ? 16 : 32;

	typedef shape<P, KW, 64, 1, WARPS, STEP, 2, true, BANDED> type;
};

template <int KW, bool MORE> struct combine_shape<bfloat16_products, KW, MORE, false> {
	typedef shape<bfloat16_products, KW, 64, 1, 4, 64, 3, MORE, false> type;
};

/*
 * Shapes of the kernels by precision, widths and extras.  Those of bfloat16 with values of 64 and
 * without extras were the fastest of four to nine tried on an H200; all keep within the 99 KiB of
 * shared memory that every GPU since compute capability 8.6 has.
 */
template <typename P, int KW, int DW, bool MORE, bool BANDED> struct shapes {
	static constexpr int LINE = KW * (int)sizeof(typename P::factor); /* bytes */
	static constexpr int WARPS = LINE == 512 && BANDED ? 2 : 4;
	static constexpr int STEP = LINE == 128 ? 64 : LINE == 256 ? 32 : 16;

	typedef shape<P, KW, DW, 1, WARPS, STEP, 2, MORE, BANDED> forward, d_queries, d_keys;
	typedef typename combine_shape<P, KW, MORE, BANDED>::type combine;
};

template <bool MORE> struct shapes<bfloat16_products, 64, 64, MORE, false> {
	typedef shape<bfloat16_products, 64, 64, 2, 4, 64, 2, MORE, false> forward, d_queries;
	typedef shape<bfloat16_products, 64, 64, MORE ? 1 : 2, 4, MORE ? 64 : 32, 2, MORE, false>
		d_keys;
	typedef typename combine_shape<bfloat16_products, 64, MORE, false>::type combine;
};

template <bool MORE> struct shapes<bfloat16_products, 128, 64, MORE, false> {
	typedef shape<bfloat16_products, 128, 64, 2, 4, 64, 2, MORE, false> forward;
	typedef shape<bfloat16_products, 128, 64, 2, 4, 32, 2, MORE, false> d_queries;
	typedef shape<bfloat16_products, 128, 64, 1, 4, 64, 2, MORE, false> d_keys;
	typedef typename combine_shape<bfloat16_products, 128, MORE, false>::type combine;
};

template <bool MORE> struct shapes<single_precision, 64, 64, MORE, false> {
	typedef shape<single_precision, 64, 64, 2, 4, 32, 2, MORE, false> forward, d_queries;
	typedef shape<single_precision, 64, 64, 2, 4, 16, 2, MORE, false> d_keys;
	typedef typename combine_shape<single_precision, 64, MORE, false>::type combine;
};

/*
 * Where warps multiply in groups, they need fewer registers, and more blocks fit.  Of three to
 * eight tried of each on an H200 these were the fastest.  Forward with more than two stages is that
 * of grouped_attention.cuh.
 */
template <int KW, bool MORE, bool BIASED> struct wgmma_shapes {
	template <int WARPS, int BLOCKS, int STAGES = 2>
	using wgmma_shape = shape<bfloat16_products, KW, 64, 1, WARPS, 64, BLOCKS, MORE, false,
				  true, STAGES, BIASED>;

	typedef wgmma_shape<8, 2, KW == 64 ? (MORE ? 3 : 4) : MORE ? 2 : 3> forward;
	typedef wgmma_shape<4, KW == 64 && !MORE ? 4 : 3> d_queries;
	typedef wgmma_shape<4, KW == 64 && !MORE ? 3 : 2> d_keys;
	typedef wgmma_shape<4, 3> combine;
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

/* For p.heads heads of T queries, or keys. */
template <typename P> static dim3 blocks_for(const problem<P> &p, int own)
{
	return dim3((unsigned)p.heads * (unsigned)((p.T + own - 1) / own));
}

template <typename X> static constexpr auto forward_by()
{
	if constexpr (X::STAGES > 2)
		return flash_forward_wgmma_kernel<X>;
	else
		return flash_forward_kernel<X>;
}

/* An output of the shape of o. */
template <typename P> static target<P> written(const struct call *c, int number)
{
	const struct heads o = heads_of(c->node->out[O], c->node->in[Q]->dim[2]);

	return target_of(from_token(output<P>(c, number), o, 0), o.width, false);
}

template <typename P, int KW, int DW, bool MORE, bool BANDED,
	  typename Shapes = shapes<P, KW, DW, MORE, BANDED>>
struct launches {
	typedef typename P::real real;

	static constexpr bool banded = BANDED;
	static constexpr int64_t own_queries = Shapes::d_queries::OWN;
	static constexpr bool prepares_rows = Shapes::d_queries::WGMMA;

	static void forward(const struct call *c, const problem<P> &p)
	{
		typedef typename Shapes::forward X;

		launch(c, forward_by<X>(), blocks_for(p, X::OWN), X::THREADS,
		       memory<X, false>::BYTES, p,
		       attention_results<P>{ written<P>(c, O), written<P>(c, LOST),
					     real_output<P>(c, LSE) });
	}
	static void combine(const struct call *c, const problem<P> &p, combined<real> route,
			    struct query_block x, bool maximum)
	{
		typedef typename Shapes::combine X;
		const dim3 blocks((unsigned)((x.keys + X::STEP - 1) / X::STEP),
				  (unsigned)((x.n + X::OWN - 1) / X::OWN),
				  (unsigned)c->node->in[Q]->dim[0]);

		launch(c, routing_combine_kernel<X>, blocks, X::THREADS, route_memory<X>::bytes(p),
		       p, (const real *)real_output<P>(c, LSE), route, x, maximum);
	}
	template <bool IN_BAND>
	static void d_queries(const struct call *c, const problem<P> &p, target<P> out,
			      double *dband, const row_source<P> &rows)
	{
		typedef typename Shapes::d_queries X;

		launch(c, flash_backward_dq_kernel<X, IN_BAND>, blocks_for(p, X::OWN), X::THREADS,
		       memory<X, true>::BYTES + own_numbers<X>::BYTES, p, out, dband, rows);
	}
	static void given_d_queries(const struct call *c, const problem<P> &p, target<P> out)
	{
		typedef typename Shapes::d_queries X;

		if constexpr (!ROUNDS<P>)
			launch(c, flash_backward_dq_stored_kernel<X>, blocks_for(p, X::OWN),
			       X::THREADS, given_memory<X>::BYTES, p, out);
	}
	template <bool IN_BAND>
	static void d_keys(const struct call *c, const problem<P> &p, target<P> dk, target<P> dv,
			   real *dbias)
	{
		typedef typename Shapes::d_keys X;

		launch(c, flash_backward_dkdv_kernel<X, IN_BAND>,
		       dim3(blocks_for(p, X::OWN).x / (unsigned)p.together), X::THREADS,
		       memory<X, true>::BYTES, p, dk, dv, dbias);
	}
};

template <int KW, bool MORE, bool BIASED>
using wgmma_launches =
	launches<bfloat16_products, KW, 64, MORE, false, wgmma_shapes<KW, MORE, BIASED>>;

template <int KW, typename F> static void with_wgmma(bool more, bool biased, F f)
{
	if (more)
		f(wgmma_launches<KW, true, true>());
	else if (biased)
		f(wgmma_launches<KW, false, true>());
	else
		f(wgmma_launches<KW, false, false>());
}

/* f(launches) for the node.  What is rare shares kernels with what has more. */
template <typename P, typename F> static void with_shapes(const struct call *c, F f)
{
	const struct node *n = c->node;
	const struct attention_attr *a = (const struct attention_attr *)n->attr;
	constexpr bool is_bf16 = sizeof(typename P::factor) < sizeof(typename P::real);
	constexpr bool is_double = sizeof(typename P::factor) == sizeof(double);
	const bool biased = n->in[KEY_BIAS], rare = a->alibi || a->dropout > 0 || !(a->scale > 0);
	const bool more = biased || rare;

	if constexpr (is_bf16)
		if (context_of(c)->has_wgmma && widths_of<P>(n).value == 64)
			return widths_of<P>(n).score == 64 ? with_wgmma<64>(rare, biased, f)
							   : with_wgmma<128>(rare, biased, f);
	if constexpr (!is_double) {
		if (widths_of<P>(n).value == 64 && widths_of<P>(n).score == 64)
			return more || !is_bf16 ? f(launches<P, 64, 64, true, false>())
						: f(launches<P, 64, 64, !is_bf16, false>());
		if (widths_of<P>(n).value == 64)
			return more || !is_bf16 ? f(launches<P, 128, 64, true, false>())
						: f(launches<P, 128, 64, !is_bf16, false>());
	}
	f(launches<P, widest<P>(), widest<P>(), true, true>());
}

/* ---------------------------------------------------------------------- passes */

/* A block walks over all keys of its queries: a single query would leave the GPU idle. */
template <typename P> bool flash<P>::takes(const struct node *n)
{
	const struct tensor *q = n->in[Q], *v = n->in[V];

	return q->dim[1] > 1 && q->dim[3] <= widest<P>() && v->dim[3] <= widest<P>();
}

template <typename P>
static void route_queries(const struct call *c, const problem<P> &p,
			  combined<typename P::real> route)
{
	const struct attention_attr *a = (const struct attention_attr *)c->node->attr;

	for (int64_t first = 0; first < p.T; first += route.rows) {
		const int64_t n = p.T - first < route.rows ? p.T - first : route.rows;
		const struct query_block x = { first, n, p.past + first + n, 0 };

		with_shapes<P>(c,
			       [&](auto by) { by.combine(c, p, route, x, a->route.head_maximum); });
		write_routes<P>(c, route, p.past, x);
	}
}

template <typename P> void flash<P>::forward(const struct call *c)
{
	struct scratch m = { (char *)c->work, 0 };
	const flash_buffers<P> f = alloc_flash<P>(&m, c->node, PASS_FORWARD);
	const problem<P> p = open_problem<P>(c, f);

	with_shapes<P>(c, [&](auto by) { by.forward(c, p); });
	if (f.route.at)
		route_queries<P>(c, p, f.route);
}

/* Where the sums of the keys or values of H heads go: into the gradient, or first into `sums`. */
template <typename P>
static target<P> sums_of(const struct call *c, int input, typename P::real *sums, int64_t H)
{
	const struct tensor *t = c->node->in[input];
	const auto d = input_gradient<P>(c, input);

	if (sums && d)
		return target_of(from_buffer(real_view<P>(sums), H, t->dim[1], t->dim[3]),
				 t->dim[3], false);
	return target_of(from_token(d.to, heads_of(t, H), 0), t->dim[3], d.add);
}

/* More of dq and dk, and dband, of what is wanted: dq and dk hold the rest already. */
template <typename P>
static void add_band(const struct call *c, const problem<P> &p, const flash_buffers<P> &f,
		     target<P> dq, target<P> dk)
{
	typedef typename P::real real;
	const auto dband = input_gradient<P>(c, BAND);
	double *parts = f.dband;
	int64_t blocks = 0;

	dq.add = dk.add = true;
	with_shapes<P>(c, [&](auto by) {
		typedef decltype(by) L;

		blocks = blocks_of(c->node, L::own_queries);
		if constexpr (L::banded) {
			if (dk.to.at || dband)
				L::template d_queries<true>(c, p, dk, f.dband, {});
			if (dq.to.at)
				L::template d_keys<true>(c, p, dq, dq, NULL);
		}
	});
	if (dband)
		sum_all(
			c, blocks, [=] __device__(int64_t i) { return parts[i]; }, f.sum_work,
			[=] __device__(double sum) { dband.put(0, (real)sum); });
}

/* Is anything wanted that d_keys makes? */
static bool wants_keys(const struct call *c)
{
	return c->din[K] || c->din[V] || c->din[KEY_BIAS];
}

/* Some heads after the other: dK, dV and dbias, with dS into f.ds, and from that dQ. */
template <typename P>
static void gradients_by_stored(const struct call *c, problem<P> p, const flash_buffers<P> &f,
				target<P> dq, target<P> dk, target<P> dv)
{
	const int heads = p.heads, most = (int)f.ds_heads;

	p.ds = f.ds;
	for (p.first_head = 0; p.first_head < heads; p.first_head += most) {
		p.heads = heads - p.first_head < most ? heads - p.first_head : most;
		with_shapes<P>(c, [&](auto by) {
			by.template d_keys<false>(c, p, dk, dv, f.dbias);
			by.given_d_queries(c, p, dq);
		});
	}
}

/* The same by kernels that both make scores again, or one of them, if only that is wanted. */
template <typename P>
static void gradients_by_scores(const struct call *c, const problem<P> &p,
				const flash_buffers<P> &f, const row_source<P> &rows, target<P> dq,
				target<P> dk, target<P> dv)
{
	with_shapes<P>(c, [&](auto by) {
		if (dq.to.at)
			by.template d_queries<false>(c, p, dq, NULL, rows);
		if (wants_keys(c))
			by.template d_keys<false>(c, p, dk, dv, f.dbias);
	});
}

template <typename P> void flash<P>::backward(const struct call *c)
{
	struct scratch m = { (char *)c->work, 0 };
	const flash_buffers<P> f = alloc_flash<P>(&m, c->node, PASS_BACKWARD);
	const row_source<P> rows = rows_to_prepare<P>(c, f.lse2, f.delta, f.d_o);
	const struct tensor *q = c->node->in[Q];
	const auto d = input_gradient<P>(c, Q);
	bool prepares = false;

	with_shapes<P>(c, [&](auto by) { prepares = d && decltype(by)::prepares_rows; });
	const problem<P> p = open_gradients<P>(c, f, rows, prepares);
	const auto dq = target_of(from_token(d.to, heads_of(q, p.H), 0), q->dim[3], d.add);
	const int64_t key_heads = p.H / p.together;
	const auto dk = sums_of<P>(c, K, f.dk, key_heads), dv = sums_of<P>(c, V, f.dv, p.H);

	if (f.ds && d && wants_keys(c))
		gradients_by_stored<P>(c, p, f, dq, dk, dv);
	else
		gradients_by_scores<P>(c, p, f, rows, dq, dk, dv);
	if (has_band(c->node))
		add_band<P>(c, p, f, dq, dk);
	if (f.dk)
		put_shared<P>(c, K, f.dk, key_heads);
	if (f.dv)
		put_shared<P>(c, V, f.dv, p.H);
	if (f.dbias)
		put_shared<P>(c, KEY_BIAS, f.dbias, p.H);
}

template <typename P> size_t flash<P>::workspace(const struct node *n, enum pass pass)
{
	struct scratch m = { NULL, 0 };

	alloc_flash<P>(&m, n, pass);
	return m.used;
}

#endif
