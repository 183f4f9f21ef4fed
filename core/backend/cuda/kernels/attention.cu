/*
 * Forward, per block of queries:  P = softmax(scores), O = dropout(P) V.
 *
 * Backward, per block, with P made again from q, k and lse:
 *
 *     dP_ij = dO_i.v_j * kept_ij,  delta_i = dO_i.o_i,  dS_ij = P_ij (dP_ij - delta_i)
 *     dQ = scale dS K          dK = scale dS' Q       dV = (P kept)' dO
 *     dkey_bias_j = sum_i dS_ij
 *
 * and for the band, with dC = band dS inside it and 0 outside:
 *
 *     dq_j += scale sum_i dC_ij k_i    dk_i += scale sum_j dC_ij q_j
 *     dband = sum_ij dS_ij cross_ij
 *
 * delta_i stands for sum_j P_ij dP_ij, so that sum_j dS_ij = 0: what all keys have in common must
 * cancel in dQ.  So both must see the same dO: where products round it, delta reads it rounded.
 * (T. Dao et al., "FlashAttention", 2022, for delta and the recomputation.)
 * Only forward sees tokens before its first query.
 *
 * fused_attention.cuh does all of it with scores on the chip, decode_attention.cuh what a single
 * query needs of a cache.  This file is for the nodes that they do not take: blocks of scores in
 * memory, and cuBLAS.
 */
#include "core/backend/cuda/attention/attention.cuh"
#include "core/backend/cuda/decode/decode_attention.cuh"

static const struct score_inputs INPUTS = { Q, K, KEY_BIAS, BAND, RECENT };

/* The number of element (b, h, i, j) in the stream. */
template <typename P>
static __device__ uint64_t mask_index(const scores<P> &s, int64_t b, int64_t h, int64_t i,
				      int64_t j)
{
	return (uint64_t)(((b * s.H + h) * s.T + i) * s.T + j);
}

/* --------------------------------------------------------------- buffers */

template <typename P> struct buffers {
	scores<P> s;
	typename P::factor
		*p; /* [B,H,rows,pitch]: what multiplies V; s.score itself if not rounded */
	typename P::real *o;	     /* [B,H,rows,width], or NULL: products write it in place */
	typename P::real *route;     /* [B,rows,pitch] */
	typename P::factor *v, *d_o; /* room for rounded tensors */
	/* Backward. */
	typename P::real *dscore;	   /* [B,H,rows,pitch] */
	typename P::factor *ds;		   /* ... as products read it */
	typename P::factor *dcross;	   /* ... of the band */
	typename P::real *dk, *dv, *dbias; /* [B,H,S,width], [B,H,S]: sums of each query head */
	double *dband;			   /* [B,H,T] */
	double *sum_work;
};

template <typename P>
static buffers<P> alloc_buffers(struct scratch *m, const struct node *n, enum pass pass,
				const scores<P> &s)
{
	typedef typename P::factor factor;
	const struct attention_attr *a = (const struct attention_attr *)n->attr;
	const int64_t all = s.B * s.H * s.rows * s.pitch, lines = s.B * s.H * s.S;
	buffers<P> f;

	f.s = s;
	f.v = m->alloc<factor>(rounded_size<P>(n->in[V], tensor_count(n->in[V])));
	f.p = ROUNDS<P> ? m->alloc<factor>(all) : (factor *)(void *)s.score;
	f.o = NULL;
	f.route = NULL;
	if (pass == PASS_FORWARD) {
		if (is_bf16(n->out[LOST]))
			f.o = m->alloc<typename P::real>(s.B * s.H * s.rows * n->out[O]->dim[3]);
		if (a->route.mode == ROUTE_TOPK)
			f.route = m->alloc<typename P::real>(s.B * s.rows * s.pitch);
		return f;
	}
	f.d_o = m->alloc<factor>(rounded_size<P>(n->out[O], tensor_count(n->out[O])));
	f.dscore = m->alloc<typename P::real>(all);
	f.ds = ROUNDS<P> ? m->alloc<factor>(all) : (factor *)(void *)f.dscore;
	f.dcross = NULL;
	if (a->band_window >= 0)
		f.dcross = ROUNDS<P> ? m->alloc<factor>(all) : (factor *)(void *)s.cross;
	f.dk = m->alloc<typename P::real>(lines * n->in[K]->dim[3]);
	f.dv = m->alloc<typename P::real>(lines * n->in[V]->dim[3]);
	f.dbias = n->in[KEY_BIAS] ? m->alloc<typename P::real>(lines) : NULL;
	f.dband = m->alloc<double>(s.B * s.H * s.T);
	f.sum_work = m->alloc<double>(SUM_PARTS);
	return f;
}

/* --------------------------------------------------------------- forward */

/* Scores become probabilities; keys after a query's own get 0. */
template <typename P>
static void softmax(const struct call *c, const buffers<P> &f, struct query_block x)
{
	typedef typename P::real real;
	const scores<P> s = f.s;
	real *lse = real_output<P>(c, LSE);

	each_query(c, s, x, [=] __device__(int64_t b, int64_t h, int64_t r) {
		const int64_t head = b * s.H + h, i = s.past + x.first + r;
		real *row = s.score + (head * s.rows + r) * s.pitch;
		real most = -INFINITY, sum = 0;

		finish_row(s, b, h, i, row, s.cross + (head * s.rows + r) * s.pitch);
		for (int64_t j = threadIdx.x; j <= i; j += BLOCK)
			most = row[j] > most ? row[j] : most;
		most = block_max(most);
		for (int64_t j = threadIdx.x; j <= i; j += BLOCK) {
			row[j] = exp(row[j] - most);
			sum += row[j];
		}
		sum = block_sum(sum);
		for (int64_t j = threadIdx.x; j < x.keys; j += BLOCK)
			row[j] = j <= i ? row[j] / sum : 0;
		if (threadIdx.x == 0)
			lse[head * s.T + x.first + r] = most + log(sum);
	});
}

/* Probabilities as they multiply V: dropped, and rounded. */
template <typename P>
static void drop(const struct call *c, const buffers<P> &given, struct query_block x,
		 struct dropout_mask mask)
{
	const buffers<P> f = given;
	const scores<P> s = f.s;

	if (mask.factor == 0 && !ROUNDS<P>)
		return;
	each_query(c, s, x, [=] __device__(int64_t b, int64_t h, int64_t r) {
		const int64_t at = ((b * s.H + h) * s.rows + r) * s.pitch;

		for (int64_t j = threadIdx.x; j < x.keys; j += BLOCK)
			f.p[at + j] = (typename P::factor)(
				s.score[at + j] *
				(typename P::real)mask.at(mask_index(s, b, h, x.first + r, j)));
	});
}

/* The block's O into memory, and what rounding loses of it. */
template <typename P>
static void put_rounded(const struct call *c, const buffers<P> &f, struct query_block x)
{
	const struct heads ol = heads_of(c->node->out[O], f.s.H);
	const output_view<P> o = output<P>(c, O), lost = output<P>(c, LOST);
	const typename P::real *from = f.o;
	const int64_t H = f.s.H, rows = f.s.rows, width = ol.width, n = x.n;

	each(c, f.s.B * H * n * width, [=] __device__(int64_t item) {
		const int64_t head = item / (n * width), r = item / width % n, d = item % width;
		const int64_t at = ol.at(head / H, head % H, x.first + r) + d;
		const typename P::real y = from[(head * rows + r) * width + d];

		o[at] = y;
		lost[at] = y - as_stored(o, y);
	});
}

template <typename P> static void forward_blocks(const struct call *c)
{
	const struct attention_attr *a = (const struct attention_attr *)c->node->attr;
	struct scratch m = { (char *)c->work, 0 };
	const scores<P> s = open_scores<P>(c, &m, a, INPUTS, a->band_window);
	const buffers<P> f = alloc_buffers<P>(&m, c->node, PASS_FORWARD, s);
	const head_factor<P> v = rounded_heads<P>(c, c->node->in[V], c->in[V], s.H, f.v);
	const struct heads ol = heads_of(c->node->out[O], s.H);
	const struct dropout_mask mask = dropout_mask_of(c);

	for (int64_t first = 0; first < s.T; first += s.rows) {
		const struct query_block x = block_at(s, first);

		block_products(c, s, x);
		softmax<P>(c, f, x);
		if (f.route) {
			combine_heads(c, s, x, f.route);
			write_routes<P>(c, { f.route, s.rows, s.pitch }, s.past, x);
		}
		drop<P>(c, f, x, mask);
		gemm_heads<P>(c, s.operands, s.B, s.H, false, false, x.n, v.layout.width, x.keys, 1,
			      from_buffer((const typename P::factor *)f.p, s.H, s.rows, s.pitch),
			      from_token(v.at, v.layout, 0), false,
			      f.o ? from_buffer(real_view<P>(f.o), s.H, s.rows, ol.width)
				  : from_token(output<P>(c, O), ol, first));
		if (f.o)
			put_rounded<P>(c, f, x);
	}
}

/* -------------------------------------------------------------- backward */

/* From scores and dP to P kept, dS, and inside the band dC. */
template <typename P>
static void backward_rows(const struct call *c, const buffers<P> &given, struct query_block x,
			  struct dropout_mask mask)
{
	typedef typename P::real real;
	typedef typename P::factor factor;
	const buffers<P> f = given;
	const scores<P> s = f.s;
	const struct heads ol = heads_of(c->node->out[O], s.H);
	const input_view<P> o = output<P>(c, O), lost = output<P>(c, LOST);
	const input_view<P> d_o = output_gradient<P>(c, O);
	const real *lse = real_output<P>(c, LSE);

	each_query(c, s, x, [=] __device__(int64_t b, int64_t h, int64_t r) {
		const int64_t head = b * s.H + h, i = x.first + r,
			      at = (head * s.rows + r) * s.pitch;
		const int64_t out = ol.at(b, h, i), start = s.band_start(i);
		const real normal = lse[head * s.T + i];
		real *row = s.score + at, *cross = s.cross + at, delta = 0;
		double dband = 0;

		finish_row(s, b, h, i, row, cross);
		for (int64_t d = threadIdx.x; d < ol.width; d += BLOCK)
			delta += (real)(factor)d_o[out + d] *
				 (o[out + d] + (lost ? lost[out + d] : 0));
		delta = block_sum(delta);
		for (int64_t j = threadIdx.x; j < x.keys; j += BLOCK) {
			real p = 0, kept = 0, ds = 0;

			if (j <= i) {
				p = exp(row[j] - normal);
				kept = (real)mask.at(mask_index(s, b, h, i, j));
				ds = p * (f.dscore[at + j] * kept - delta);
			}
			f.p[at + j] = (factor)(p * kept);
			f.dscore[at + j] = ds;
			f.ds[at + j] = (factor)ds;
			if (!f.dcross)
				continue;
			if (j >= start && j <= i)
				dband += (double)ds * (double)cross[j];
			if (j >= x.cross_first)
				f.dcross[at + j] = (factor)(j >= start && j <= i ? ds : 0);
		}
		if (f.dcross) {
			dband = block_sum(dband);
			if (threadIdx.x == 0)
				f.dband[head * s.T + i] = dband;
		}
	});
}

/* dbias_j += sum_i dS_ij, of every query head */
template <typename P>
static void backward_bias(const struct call *c, const buffers<P> &given, struct query_block x)
{
	const buffers<P> f = given;
	const scores<P> s = f.s;

	each(c, s.B * s.H * x.keys, [=] __device__(int64_t item) {
		const int64_t head = item / x.keys, j = item % x.keys;
		typename P::real sum = 0;

		for (int64_t r = 0; r < x.n; r++)
			sum += f.dscore[(head * s.rows + r) * s.pitch + j];
		f.dbias[head * s.S + j] += sum;
	});
}

/* score_ij = .. + band cross_ij, cross_ij = scale q_j.k_i; the weight is read where it lies. */
template <typename P>
static void backward_band(const struct call *c, const buffers<P> &f, struct query_block x)
{
	typedef typename P::factor factor;
	const scores<P> &s = f.s;
	const struct heads &ql = s.q.layout, &kl = s.k.layout;
	const int64_t near = x.keys - x.cross_first;
	const auto dc = from_buffer((const factor *)f.dcross, s.H, s.rows, s.pitch, x.cross_first);

	if (c->din[Q])
		gemm_heads<P>(c, s.operands, s.B, s.H, true, false, near, ql.width, x.n,
			      s.attr.scale, dc, from_token(s.k.at, kl, x.first), true,
			      from_token(input_gradient<P>(c, Q).to, heads_of(c->node->in[Q], s.H),
					 x.cross_first));
	if (c->din[K])
		gemm_heads<P>(c, s.operands, s.B, s.H, false, false, x.n, kl.width, near,
			      s.attr.scale, dc, from_token(s.q.at, ql, x.cross_first), true,
			      from_buffer(f.dk + x.first * kl.width, s.H, s.S, kl.width));
}

/* dC = band dS: the weight may be learned, so it is multiplied on the device. */
template <typename P>
static void weigh_band(const struct call *c, const buffers<P> &given, struct query_block x)
{
	const buffers<P> f = given;
	const scores<P> s = f.s;
	const int64_t near = x.keys - x.cross_first;

	each(c, s.B * s.H * x.n * near, [=] __device__(int64_t item) {
		const int64_t head = item / (x.n * near), r = item / near % x.n;
		const int64_t at = (head * s.rows + r) * s.pitch + x.cross_first + item % near;

		f.dcross[at] = (typename P::factor)((typename P::real)f.dcross[at] * s.band());
	});
}

template <typename P>
static void backward_block(const struct call *c, const buffers<P> &f, const head_factor<P> &v,
			   const head_factor<P> &d_o, struct query_block x,
			   struct dropout_mask mask)
{
	typedef typename P::factor factor;
	const scores<P> &s = f.s;
	const struct heads &ql = s.q.layout, &kl = s.k.layout;
	const int64_t wide = v.layout.width;
	const auto arriving = from_token(d_o.at, d_o.layout, x.first);
	const auto p = from_buffer((const factor *)f.p, s.H, s.rows, s.pitch);
	const auto ds = from_buffer((const factor *)f.ds, s.H, s.rows, s.pitch);
	const auto dq = input_gradient<P>(c, Q);

	block_products(c, s, x);
	gemm_heads<P>(c, s.operands, s.B, s.H, false, true, x.n, x.keys, wide, 1, arriving,
		      from_token(v.at, v.layout, 0), false,
		      from_buffer(f.dscore, s.H, s.rows, s.pitch));
	backward_rows<P>(c, f, x, mask);
	if (c->din[V])
		gemm_heads<P>(c, s.operands, s.B, s.H, true, false, x.keys, wide, x.n, 1, p,
			      arriving, true, from_buffer(f.dv, s.H, s.S, wide));
	if (dq)
		gemm_heads<P>(c, s.operands, s.B, s.H, false, false, x.n, ql.width, x.keys,
			      s.attr.scale, ds, from_token(s.k.at, kl, 0), dq.add,
			      from_token(dq.to, heads_of(c->node->in[Q], s.H), x.first));
	if (c->din[K])
		gemm_heads<P>(c, s.operands, s.B, s.H, true, false, x.keys, kl.width, x.n,
			      s.attr.scale, ds, from_token(s.q.at, ql, x.first), true,
			      from_buffer(f.dk, s.H, s.S, kl.width));
	if (c->din[KEY_BIAS])
		backward_bias<P>(c, f, x);
	if (f.dcross) {
		weigh_band<P>(c, f, x);
		backward_band<P>(c, f, x);
	}
}

template <typename P> static void zero(const struct call *c, typename P::real *x, int64_t n)
{
	if (x)
		each(c, n, [=] __device__(int64_t i) { x[i] = 0; });
}

template <typename P> static void backward_blocks(const struct call *c)
{
	typedef typename P::real real;
	const struct attention_attr *a = (const struct attention_attr *)c->node->attr;
	struct scratch m = { (char *)c->work, 0 };
	const scores<P> s = open_scores<P>(c, &m, a, INPUTS, a->band_window);
	const buffers<P> f = alloc_buffers<P>(&m, c->node, PASS_BACKWARD, s);
	const head_factor<P> v = rounded_heads<P>(c, c->node->in[V], c->in[V], s.H, f.v);
	const head_factor<P> d_o = rounded_heads<P>(c, c->node->out[O], c->dout[O], s.H, f.d_o);
	const struct dropout_mask mask = dropout_mask_of(c);
	const int64_t lines = s.B * s.H * s.S;
	const auto dband = input_gradient<P>(c, BAND);

	zero<P>(c, f.dk, lines * s.k.layout.width);
	zero<P>(c, f.dv, lines * v.layout.width);
	zero<P>(c, f.dbias, lines);
	for (int64_t first = 0; first < s.T; first += s.rows)
		backward_block<P>(c, f, v, d_o, block_at(s, first), mask);
	put_shared<P>(c, K, f.dk, s.H);
	put_shared<P>(c, V, f.dv, s.H);
	if (f.dbias)
		put_shared<P>(c, KEY_BIAS, f.dbias, s.H);
	if (dband)
		sum_all(
			c, s.B * s.H * s.T, [=] __device__(int64_t i) { return f.dband[i]; },
			f.sum_work, [=] __device__(double sum) { dband.put(0, (real)sum); });
}

/* ---------------------------------------------------------------- passes */

template <typename P> static void forward(const struct call *c)
{
	if (decode<P>::takes(c->node))
		decode<P>::forward(c);
	else if (flash<P>::takes(c->node))
		flash<P>::forward(c);
	else
		forward_blocks<P>(c);
}

template <typename P> static void backward(const struct call *c)
{
	if (flash<P>::takes(c->node))
		flash<P>::backward(c);
	else
		backward_blocks<P>(c);
}

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	const struct attention_attr *a = (const struct attention_attr *)n->attr;
	struct scratch m = { NULL, 0 };
	typename P::factor *buffers[3];

	(void)threads;
	if (decode<P>::takes(n))
		return decode<P>::workspace(n);
	if (flash<P>::takes(n))
		return flash<P>::workspace(n, pass);
	const scores<P> s = alloc_scores<P>(&m, n, a, INPUTS, a->band_window, buffers);

	alloc_buffers<P>(&m, n, pass, s);
	return m.used;
}

template <typename P> static bool follows_past(const struct node *n)
{
	return !decode<P>::takes(n);
}

/* Where products round, both halves of the gradients make scores again anyway. */
template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, backward<P>,	    NULL, NULL, workspace<P>, NULL, follows_past<P>,
		 {},	     ROUNDS<P> ? BIT(Q) : 0 };
}
KERNELS(attention, set)
