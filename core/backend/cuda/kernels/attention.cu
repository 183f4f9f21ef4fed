/*
 * attention: forward, per block of queries,  P = softmax(scores), O = dropout(P) V.
 *
 * Backward, per block, with P recomputed from q, k and lse:
 *
 *     dP_ij = dO_i.v_j * mask_ij,  delta_i = dO_i.o_i,  dS_ij = P_ij (dP_ij - delta_i)
 *     dQ = scale dS K          dK = scale dS' Q       dV = (P mask)' dO
 *     dkey_bias_j = sum_i dS_ij  ddistance_bias_d = sum_{i - j = d} dS_ij
 *
 * (a cap of the scores multiplies dS by its slope), and for the band, with dC = band dS inside it
 * and 0 outside:
 *
 *     dq_j += scale sum_i dC_ij k_i    dk_i += scale sum_j dC_ij q_j
 *     dband = sum_ij dS_ij cross_ij
 *
 * delta_i replaces sum_j P_ij dP_ij, so that sum_j dS_ij = 0: what all keys share must cancel in
 * dQ. So delta reads dO as rounded as the products do.  (T. Dao et al., "FlashAttention", 2022.)
 * Only forward sees tokens before its first query.
 *
 * attention/flash_*.cuh keeps scores on the chip; decode/ serves one query and a cache.  This file
 * serves the nodes that neither supports: scores of a block of queries in memory, and cuBLAS.
 */
#include "core/backend/cuda/attention/attention.cuh"
#include "core/backend/cuda/decode/decode_attention.cuh"

static const struct score_inputs INPUTS = { Q, K, KEY_BIAS, BAND, RECENT, DISTANCE_BIAS };

/* The index of element (b, h, i, j) in the stream of random numbers. */
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
		*p; /* [B,H,rows,pitch]: left operand of P V; s.score itself if not rounded */
	typename P::real *o;	     /* [B,H,rows,width], or NULL: the product writes O itself */
	typename P::real *route;     /* [B,rows,pitch] */
	typename P::factor *v, *d_o; /* rounded copies */
	/* Backward. */
	typename P::real *dscore;	   /* [B,H,rows,pitch] */
	typename P::factor *ds;		   /* ... as products read it */
	typename P::factor *dcross;	   /* ... of the band */
	typename P::real *dk, *dv, *dbias; /* [B,H,S,width], [B,H,S]: sums of each query head */
	typename P::real *ddistance;	   /* [H,S] */
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
	f.ddistance = n->in[DISTANCE_BIAS] ? m->alloc<typename P::real>(s.H * s.S) : NULL;
	f.dband = m->alloc<double>(s.B * s.H * s.T);
	f.sum_work = m->alloc<double>(SUM_PARTS);
	return f;
}

/* --------------------------------------------------------------- forward */

/* Turns scores into probabilities; keys after the query get 0. */
template <typename P>
static void softmax(const struct call *c, const buffers<P> &f, struct query_block x)
{
	typedef typename P::real real;
	const scores<P> s = f.s;
	real *lse = real_output<P>(c, LSE);

	each_query(c, s, x, [=] __device__(int64_t b, int64_t h, int64_t r) {
		const int64_t head = b * s.H + h, i = s.past + x.first + r;
		real *row = s.score + (head * s.rows + r) * s.pitch;
		real max = -INFINITY, sum = 0;

		finish_row(s, b, h, i, row, s.cross + (head * s.rows + r) * s.pitch);
		for (int64_t j = threadIdx.x; j <= i; j += BLOCK)
			max = row[j] > max ? row[j] : max;
		max = block_max(max);
		for (int64_t j = threadIdx.x; j <= i; j += BLOCK) {
			row[j] = exp(row[j] - max);
			sum += row[j];
		}
		sum = block_sum(sum);
		for (int64_t j = threadIdx.x; j < x.keys; j += BLOCK)
			row[j] = j <= i ? row[j] / sum : 0;
		if (threadIdx.x == 0)
			lse[head * s.T + x.first + r] = max + log(sum);
	});
}

/* Applies dropout to the probabilities and rounds them, for P V. */
template <typename P>
static void apply_dropout(const struct call *c, const buffers<P> &given, struct query_block x,
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

/* Stores the block's O, and in `lost` the rounding error of O. */
template <typename P>
static void store_rounded(const struct call *c, const buffers<P> &f, struct query_block x)
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
	struct scratch m = scratch_of(c);
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
		apply_dropout<P>(c, f, x, mask);
		gemm_heads<P>(c, s.operands, s.B, s.H, false, false, x.n, v.layout.width, x.keys, 1,
			      from_buffer((const typename P::factor *)f.p, s.H, s.rows, s.pitch),
			      from_token(v.at, v.layout, 0), false,
			      f.o ? from_buffer(real_view<P>(f.o), s.H, s.rows, ol.width)
				  : from_token(output<P>(c, O), ol, first));
		if (f.o)
			store_rounded<P>(c, f, x);
	}
}

/* -------------------------------------------------------------- backward */

/* From scores and dP: P mask, dS, and inside the band dC. */
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
			real p = 0, keep = 0, ds = 0;

			if (j <= i) {
				p = exp(row[j] - normal);
				keep = (real)mask.at(mask_index(s, b, h, i, j));
				ds = p * (f.dscore[at + j] * keep - delta);
				if (s.softcap > 0)
					ds *= formulas<P>::score_cap_slope(row[j],
									   s.inverse_softcap);
			}
			f.p[at + j] = (factor)(p * keep);
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

/* dbias_j += sum_i dS_ij, for every query head */
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

/* ddistance_d += sum of dS_ij over examples and i - j = d */
template <typename P>
static void backward_distances(const struct call *c, const buffers<P> &given, struct query_block x)
{
	const buffers<P> f = given;
	const scores<P> s = f.s;

	each(c, s.H * x.keys, [=] __device__(int64_t item) {
		const int64_t h = item / x.keys, d = item % x.keys;
		typename P::real sum = 0;

		for (int64_t b = 0; b < s.B; b++)
			for (int64_t r = 0; r < x.n; r++) {
				const int64_t j = x.first + r - d;

				if (j >= 0)
					sum += f.dscore[((b * s.H + h) * s.rows + r) * s.pitch + j];
			}
		f.ddistance[h * s.S + d] += sum;
	});
}

/* score_ij = .. + band cross_ij, cross_ij = scale q_j.k_i */
template <typename P>
static void backward_band(const struct call *c, const buffers<P> &f, struct query_block x)
{
	typedef typename P::factor factor;
	const scores<P> &s = f.s;
	const struct heads &ql = s.q.layout, &kl = s.k.layout;
	const int64_t band_keys = x.keys - x.cross_first;
	const auto dc = from_buffer((const factor *)f.dcross, s.H, s.rows, s.pitch, x.cross_first);

	if (c->din[Q])
		gemm_heads<P>(c, s.operands, s.B, s.H, true, false, band_keys, ql.width, x.n,
			      s.attr.scale, dc, from_token(s.k.at, kl, x.first), true,
			      from_token(input_gradient<P>(c, Q).to, heads_of(c->node->in[Q], s.H),
					 x.cross_first));
	if (c->din[K])
		gemm_heads<P>(c, s.operands, s.B, s.H, false, false, x.n, kl.width, band_keys,
			      s.attr.scale, dc, from_token(s.q.at, ql, x.cross_first), true,
			      from_buffer(f.dk + x.first * kl.width, s.H, s.S, kl.width));
}

/* dC = band dS.  The band's weight may be learned, so the device multiplies by it. */
template <typename P>
static void scale_band(const struct call *c, const buffers<P> &given, struct query_block x)
{
	const buffers<P> f = given;
	const scores<P> s = f.s;
	const int64_t band_keys = x.keys - x.cross_first;

	each(c, s.B * s.H * x.n * band_keys, [=] __device__(int64_t item) {
		const int64_t head = item / (x.n * band_keys), r = item / band_keys % x.n;
		const int64_t at = (head * s.rows + r) * s.pitch + x.cross_first + item % band_keys;

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
	const int64_t width = v.layout.width;
	const auto d_out = from_token(d_o.at, d_o.layout, x.first);
	const auto p = from_buffer((const factor *)f.p, s.H, s.rows, s.pitch);
	const auto ds = from_buffer((const factor *)f.ds, s.H, s.rows, s.pitch);
	const auto dq = input_gradient<P>(c, Q);

	block_products(c, s, x);
	gemm_heads<P>(c, s.operands, s.B, s.H, false, true, x.n, x.keys, width, 1, d_out,
		      from_token(v.at, v.layout, 0), false,
		      from_buffer(f.dscore, s.H, s.rows, s.pitch));
	backward_rows<P>(c, f, x, mask);
	if (c->din[V])
		gemm_heads<P>(c, s.operands, s.B, s.H, true, false, x.keys, width, x.n, 1, p, d_out,
			      true, from_buffer(f.dv, s.H, s.S, width));
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
	if (c->din[DISTANCE_BIAS])
		backward_distances<P>(c, f, x);
	if (f.dcross) {
		scale_band<P>(c, f, x);
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
	struct scratch m = scratch_of(c);
	const scores<P> s = open_scores<P>(c, &m, a, INPUTS, a->band_window);
	const buffers<P> f = alloc_buffers<P>(&m, c->node, PASS_BACKWARD, s);
	const head_factor<P> v = rounded_heads<P>(c, c->node->in[V], c->in[V], s.H, f.v);
	const head_factor<P> d_o = rounded_heads<P>(c, c->node->out[O], c->dout[O], s.H, f.d_o);
	const struct dropout_mask mask = dropout_mask_of(c);
	const int64_t lines = s.B * s.H * s.S;
	const auto dband = input_gradient<P>(c, BAND),
		   ddistance = input_gradient<P>(c, DISTANCE_BIAS);

	zero<P>(c, f.dk, lines * s.k.layout.width);
	zero<P>(c, f.dv, lines * v.layout.width);
	zero<P>(c, f.dbias, lines);
	zero<P>(c, f.ddistance, s.H * s.S);
	for (int64_t first = 0; first < s.T; first += s.rows)
		backward_block<P>(c, f, v, d_o, block_at(s, first), mask);
	put_shared<P>(c, K, f.dk, s.H);
	put_shared<P>(c, V, f.dv, s.H);
	if (f.dbias)
		put_shared<P>(c, KEY_BIAS, f.dbias, s.H);
	if (ddistance)
		each(c, s.H * s.S, [=] __device__(int64_t i) { ddistance.put(i, f.ddistance[i]); });
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

template <typename P> static size_t workspace(const struct node *n, enum pass pass, int sms)
{
	const struct attention_attr *a = (const struct attention_attr *)n->attr;
	struct scratch m = count_scratch(sms);
	typename P::factor *buffers[3];

	if (decode<P>::takes(n))
		return decode<P>::workspace(n, sms);
	if (flash<P>::takes(n))
		return flash<P>::workspace(n, pass, sms);
	const scores<P> s = alloc_scores<P>(&m, n, a, INPUTS, a->band_window, buffers);

	alloc_buffers<P>(&m, n, pass, s);
	return m.used;
}

template <typename P> static bool follows_past(const struct node *n)
{
	return !decode<P>::takes(n);
}

/*
 * separate_gradient_in: in bfloat16 dQ may have an instruction of its own, since both halves
 * recompute the scores anyway.
 */
KERNELS(attention, forward<P>, backward<P>, NULL, NULL, workspace<P>, NULL, follows_past<P>, {},
	ROUNDS<P> ? BIT(Q) : 0)
