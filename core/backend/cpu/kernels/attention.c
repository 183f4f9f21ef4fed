/*
 * Forward, per tile:  P = softmax(scores), O = dropout(P) V.
 *
 * Backward, per tile, with P recomputed from q, k and lse:
 *
 *     dP_ij = dO_i.v_j * kept_ij,  delta_i = dO_i.o_i,  dS_ij = P_ij (dP_ij - delta_i)
 *     dQ = scale dS K          dK = scale dS' Q       dV = (P kept)' dO
 *     dkey_bias_j = sum_i dS_ij
 *
 *     dbias_hd = sum_{i - j = d} dS_ij, of the distances
 *
 * where a cap of the scores multiplies dS by its slope, and for the band, with dC = band dS inside
 * it and 0 outside:
 *
 *     dq_j += scale sum_i dC_ij k_i    dk_i += scale sum_j dC_ij q_j
 *     dband = sum_ij dS_ij cross_ij
 *
 * (T. Dao et al., "FlashAttention", 2022, for delta and the recomputation.)
 * Only forward sees tokens before its first query.
 */
#include "core/backend/cpu/one_query.h"

enum { Q, K, V, KEY_BIAS, BAND, RECENT, DISTANCE_BIAS };
enum { O, LSE, LOST, ROUTE_INDEX, ROUTE_WEIGHT };

static const struct score_inputs INPUTS = { Q, K, KEY_BIAS, BAND, RECENT, DISTANCE_BIAS };

/* --------------------------------------------------------------- dropout */

struct dropout_mask {
	struct rng_key key;
	double limit; /* words below it drop their element */
	real factor;  /* of what is kept; 0: no dropout */
};

static struct dropout_mask dropout_mask_of(const struct call *c)
{
	const struct attention_attr *a = c->node->attr;
	struct rng_key key;

	if (a->dropout == 0)
		return (struct dropout_mask){ .factor = 0 };
	key = rng_key(c->run->seed, c->node->name);
	return (struct dropout_mask){
		.key = rng_subkey(rng_subkey(key, c->run->iteration), c->run->micro),
		.limit = a->dropout * 0x1p32,
		.factor = (real)(1 / (1 - a->dropout)),
	};
}

/* factor or 0 for every key of query i; element number ((b H + h) T + i) T + j of the stream. */
static void mask_row(const struct dropout_mask *k, const struct scores *s, const struct tile *t,
		     int64_t i, real *kept)
{
	uint64_t first = (uint64_t)(((t->b * s->H + t->h) * s->T + i) * s->T + t->from);
	uint32_t word[4];

	for (int64_t j = 0; j <= i - t->from; j++) {
		uint64_t index = first + (uint64_t)j;

		if (j == 0 || index % 4 == 0)
			rng_block(k->key, index / 4, word);
		kept[j] = word[index % 4] < k->limit ? 0 : k->factor;
	}
}

/* ---------------------------------------------------------- packed heads */

/* As the forward pass and the backward pass multiply with them. */
struct panels {
	struct packed_heads k_tokens, k_channels, v_tokens, v_channels;
	size_t bytes;
};

static struct panels take_panels(char *start, const struct node *n, enum pass pass)
{
	const int64_t H = n->in[Q]->dim[2];
	struct panels p = { 0 };

	p.k_tokens = packed_take(&p.bytes, start, n->in[K], H, true);
	if (pass == PASS_FORWARD) {
		p.v_channels = packed_take(&p.bytes, start, n->in[V], H, false);
		return p;
	}
	p.v_tokens = packed_take(&p.bytes, start, n->in[V], H, true);
	p.k_channels = packed_take(&p.bytes, start, n->in[K], H, false);
	return p;
}

/* Behind the `size` elements of each thread. */
static struct panels panels_of(const struct call *c, int64_t size, enum pass pass)
{
	return take_panels((char *)((real *)c->work + size * omp_get_max_threads()), c->node, pass);
}

/* Called by all threads. */
static void fill_panels(const struct panels *p, const struct call *c, const struct multiplier *by)
{
	packed_fill(&p->k_tokens, by, c->node->in[K], c->in[K], true);
	packed_fill(&p->k_channels, by, c->node->in[K], c->in[K], false);
	packed_fill(&p->v_tokens, by, c->node->in[V], c->in[V], true);
	packed_fill(&p->v_channels, by, c->node->in[V], c->in[V], false);
}

static int64_t widest(const struct node *n)
{
	return n->in[Q]->dim[3] > n->in[V]->dim[3] ? n->in[Q]->dim[3] : n->in[V]->dim[3];
}

/* --------------------------------------------------------------- forward */

struct forward_buffers {
	struct tile tile;
	real *kept;  /* [pitch] */
	real *route; /* [rows, pitch] */
};

static struct forward_buffers take_forward(struct space *m, const struct node *n)
{
	const struct attention_attr *a = n->attr;
	int64_t T = n->in[Q]->dim[1];
	struct forward_buffers f = { .tile = tile_take(m, T, n->in[K]->dim[1], widest(n),
						       a->band_window >= 0) };

	f.kept = space_take(m, f.tile.pitch);
	if (a->route.mode == ROUTE_TOPK)
		f.route = space_take(m, block_rows(T) * f.tile.pitch);
	return f;
}

/* Of a row that is padded. */
static real row_max(const real *row, int64_t n)
{
	real lane[LANES], max = row[0];

	for (int l = 0; l < LANES; l++)
		lane[l] = row[l];
	for (int64_t j = LANES; j < n; j += LANES)
#pragma omp simd
		for (int l = 0; l < LANES; l++)
			lane[l] = row[j + l] > lane[l] ? row[j + l] : lane[l];
	for (int l = 0; l < LANES; l++)
		max = lane[l] > max ? lane[l] : max;
	return max;
}

/* One head of one block: o, lse, and its share of the combined routing row. */
static void forward_tile(const struct call *c, const struct scores *s, const struct panels *p,
			 const struct dropout_mask *mask, struct forward_buffers *f)
{
	const struct attention_attr *a = s->attr;
	const struct heads vl = heads_of(c->node->in[V], s->H);
	const struct heads ol = heads_of(c->node->out[O], s->H);
	struct tile *t = &f->tile;
	const real *v = (const real *)c->in[V] + head_offset(&vl, t->b, t->h, t->from);
	real *o = (real *)c->out[O] + head_offset(&ol, t->b, t->h, t->first);
	real *lse = (real *)c->out[LSE] + (t->b * s->H + t->h) * s->T + t->first;
	real norm[MAX_BLOCK];

	tile_products(t, s);
	for (int64_t r = 0; r < t->rows; r++) {
		const int64_t n = row_keys(t, s, r);
		real *restrict row = tile_row(t, s, r), *restrict kept = f->kept;
		real max = row_max(row, n), sum = row_exp(row, n, max);

		lse[r] = max + natural_log(sum);
		norm[r] = 1 / sum;
		if (f->route)
			route_join(&a->route, f->route + r * t->pitch, row, n,
				   norm[r] * route_share(&a->route, s->H));
		if (mask->factor > 0) {
			mask_row(mask, s, t, t->first + r, kept);
#pragma omp simd
			for (int64_t j = 0; j < n; j++)
				row[j] *= kept[j];
		}
		row_clear(row, n, t->keys);
	}
	product(&t->by, tile_panel(t, &p->v_channels), false, false, t->rows, vl.width, t->keys, 1,
		t->score, t->pitch, v, vl.pitch, 0, o, ol.pitch);
	for (int64_t r = 0; r < t->rows; r++)
		for (int64_t d = 0; d < ol.width; d++)
			o[r * ol.pitch + d] *= norm[r];
}

/* Of query number `query` = b T + t, from its combined row of n keys. */
static void write_route(const struct call *c, int64_t query, const real *route, int64_t n)
{
	const struct attention_attr *a = c->node->attr;
	const int64_t k = c->node->out[ROUTE_INDEX]->dim[2];
	real *weight = (real *)c->out[ROUTE_WEIGHT] + query * k;
	real sum = route_topk(route, n, k, (int32_t *)c->out[ROUTE_INDEX] + query * k, weight);
	real factor = route_factor(&a->route, sum);

	for (int64_t i = 0; i < k; i++)
		weight[i] *= factor;
}

static void write_routes(const struct call *c, const struct scores *s,
			 const struct forward_buffers *f)
{
	const struct tile *t = &f->tile;

	for (int64_t r = 0; r < t->rows; r++)
		write_route(c, t->b * s->T + t->first + r, f->route + r * t->pitch,
			    row_keys(t, s, r));
}

/* Items are tiles or, if routing needs all heads, blocks of queries; the longest come first. */
static void forward_tiles(const struct call *c, const struct scores *scores)
{
	const struct multiplier by = multiplier_of(c, NULL);
	const struct dropout_mask mask = dropout_mask_of(c);
	struct scores s = *scores;
	const bool routes = s.attr->route.mode == ROUTE_TOPK;
	const int64_t blocks = block_count(s.T), together = routes ? s.H : 1;
	const int64_t alike = s.B * s.H / together;
	struct space size = { 0 };
	struct panels panels;

	take_forward(&size, c->node);
	panels = panels_of(c, size.used, PASS_FORWARD);
	s.k_tokens = panels.k_tokens;
	s.skips = true;
#pragma omp parallel
	{
		struct space m = space_of(c, size.used, omp_get_thread_num());
		struct forward_buffers f = take_forward(&m, c->node);

		fill_panels(&panels, c, &by);
		for (int64_t item = 0; item < blocks * alike; item++) {
			int64_t first = item % alike * together;

			if (!dealt_to_me(item))
				continue;
			if (routes)
				row_clear(f.route, 0, block_rows(s.T) * f.tile.pitch);
			for (int64_t head = first; head < first + together; head++) {
				tile_seek(&f.tile, &s, head, blocks - 1 - item / alike);
				forward_tile(c, &s, &panels, &mask, &f);
			}
			if (routes)
				write_routes(c, &s, &f);
		}
	}
}

/* ------------------------------------------------- one query per example */

struct one_query_buffers {
	struct one_query one;
	real *norm;  /* [B,H] of all threads, as is: */
	real *sums;  /* [threads,B,H,D] */
	real *route; /* [pitch], of the thread */
};

/* `shared` is at the start of the workspace; pieces of the threads follow. */
static struct one_query_buffers take_one_query(struct space *shared, struct space *own,
					       const struct node *n, int threads)
{
	const int64_t heads = n->in[Q]->dim[0] * n->in[Q]->dim[2];
	struct one_query_buffers f;

	f.one = one_query_take(shared, own, heads, n->in[K]->dim[1]);
	f.norm = space_take(shared, heads);
	f.sums = space_take(shared, threads * heads * n->in[V]->dim[3]);
	f.route = space_take(own, f.one.pitch);
	return f;
}

/* Scores become exponentials; norm is what makes them probabilities. */
static void one_query_softmax(const struct call *c, const struct scores *s,
			      const struct one_query_buffers *f, int64_t head)
{
	const int64_t n = s->past + 1;
	real *row = one_query_row(&f->one, s, head);
	const real max = row_max(row, n), sum = row_exp(row, n, max);

	((real *)c->out[LSE])[head] = max + natural_log(sum);
	f->norm[head] = 1 / sum;
}

static void one_query_route(const struct call *c, const struct scores *s,
			    const struct one_query_buffers *f, int64_t b)
{
	const struct route_attr *a = &s->attr->route;
	const int64_t n = s->past + 1;

	row_clear(f->route, 0, n);
	for (int64_t head = b * s->H; head < (b + 1) * s->H; head++)
		route_join(a, f->route, f->one.score + head * f->one.pitch, n,
			   f->norm[head] * route_share(a, s->H));
	write_route(c, b, f->route, n);
}

static void forward_single(const struct call *c, const struct scores *s)
{
	const struct heads vl = heads_of(c->node->in[V], s->H);
	const int64_t heads = s->B * s->H, D = vl.width;
	struct space all = { 0 }, each = { 0 };

	take_one_query(&all, &each, c->node, omp_get_max_threads());
#pragma omp parallel if (heads * (s->past + 1) * D > GRAIN)
	{
		const int threads = omp_get_num_threads(), me = omp_get_thread_num();
		struct space shared = { .at = c->work };
		struct space own = { .at = (real *)c->work + all.used + each.used * me };
		const struct one_query_buffers f =
			take_one_query(&shared, &own, c->node, omp_get_max_threads());

		one_query_products(&f.one, s);
#pragma omp for schedule(static)
		for (int64_t head = 0; head < heads; head++)
			one_query_softmax(c, s, &f, head);
		if (s->attr->route.mode == ROUTE_TOPK)
#pragma omp for schedule(static)
			for (int64_t b = 0; b < s->B; b++)
				one_query_route(c, s, &f, b);
		one_query_values(&f.one, s, &vl, c->in[V], f.sums + me * heads * D);
#pragma omp barrier
#pragma omp for schedule(static)
		for (int64_t head = 0; head < heads; head++) {
			real *o = (real *)c->out[O] + head * D;

			row_clear(o, 0, D);
			for (int thread = 0; thread < threads; thread++)
				put_scaled(o, true, f.norm[head],
					   f.sums + (thread * heads + head) * D, D);
		}
	}
}

/* A single query needs no tile.  Training, which has dropout, always makes tiles. */
static bool is_single(const struct node *n)
{
	const struct attention_attr *a = n->attr;

	return n->in[Q]->dim[1] == 1 && a->dropout == 0;
}

static void forward(const struct call *c)
{
	const struct scores s = scores_of(c, c->node->attr, INPUTS);

	if (is_single(c->node))
		forward_single(c, &s);
	else
		forward_tiles(c, &s);
}

/* ------------------------------------------- gradients that heads share */

/*
 * The backward work is cut into units: (example, head, part of its queries).
 * A thread takes consecutive units, so the units that add to one gradient
 * (the parts of a head, the heads that read one key) lie on one thread or on
 * neighbours.  A thread adds them up in `own` and puts the sum into the
 * gradient.  For a group that began on an earlier thread it uses `carry` instead,
 * which is added when all threads are done, in their order.
 */
struct shared {
	struct heads layout;
	real *din; /* NULL: not wanted */
	bool add;
	int64_t H, parts;  /* units are numbered (b H + h) parts + part */
	int64_t group;	   /* units per group */
	real *own, *carry; /* [T,width] */
};

/* Buffers only; absent inputs need none. */
static struct shared take_shared(struct space *m, const struct node *n, int input)
{
	const struct tensor *t = n->in[input];
	struct shared x = { 0 };

	if (!t)
		return x;
	x.H = n->in[Q]->dim[2];
	x.layout = heads_of(t, x.H);
	x.own = space_take(m, x.layout.T * x.layout.width);
	x.carry = space_take(m, x.layout.T * x.layout.width);
	return x;
}

static void shared_open(struct shared *x, const struct call *c, int input, int64_t parts)
{
	x->din = c->din[input];
	x->add = call_adds(c, input);
	x->parts = parts;
	x->group = x->layout.sharing * parts;
}

/* Where `unit` of a thread whose first unit is `first` adds its share; NULL: not wanted. */
static real *shared_begin(const struct shared *x, int64_t unit, int64_t first)
{
	real *sum;

	if (!x->din)
		return NULL;
	sum = unit / x->group * x->group < first ? x->carry : x->own;
	if (unit == first || unit % x->group == 0)
		row_clear(sum, 0, x->layout.T * x->layout.width);
	return sum;
}

/* Tokens [from, to) of the gradient of this unit's group: = sum, or += sum. */
static void shared_put(const struct shared *x, int64_t unit, const real *sum, bool add,
		       int64_t from, int64_t to)
{
	const int64_t head = unit / x->parts, width = x->layout.width;

	for (int64_t t = from; t < to; t++) {
		real *d = x->din + head_offset(&x->layout, head / x->H, head % x->H, t);

		for (int64_t i = 0; i < width; i++)
			d[i] = (add ? d[i] : 0) + sum[t * width + i];
	}
}

static void shared_end(const struct shared *x, int64_t unit, int64_t first, int64_t last)
{
	if (!x->din || unit / x->group * x->group < first)
		return;
	if (unit + 1 == last || (unit + 1) % x->group == 0)
		shared_put(x, unit, x->own, x->add, 0, x->layout.T);
}

/* Add what the thread left in carry; every thread does it for some of the tokens. */
static void shared_carry(const struct shared *x, int64_t first, int64_t last)
{
	int64_t from, to;

	if (!x->din || first == last || first % x->group == 0)
		return;
	thread_share(x->layout.T, &from, &to);
	shared_put(x, first, x->carry, true, from, to);
}

/* -------------------------------------------------------------- backward */

struct backward {
	const struct call *c;
	struct scores s;
	struct dropout_mask mask;
	struct heads v_layout, o_layout;
	const real *v, *o, *d_o, *lse;
	int64_t parts;
	struct panels panels;
};

struct backward_buffers {
	struct tile tile;
	real *kept, *score; /* [pitch] */
	real *dscore;	    /* [rows, pitch] */
	double *dband;
	real *ddistance; /* [H,T] */
	struct shared dk, dv, dbias;
	int64_t first, last; /* units of the thread */
};

static struct backward_buffers take_backward(struct space *m, const struct node *n)
{
	const struct attention_attr *a = n->attr;
	int64_t T = n->in[Q]->dim[1];
	struct backward_buffers f = { .tile = tile_take(m, T, T, widest(n), a->band_window >= 0) };

	f.kept = space_take(m, f.tile.pitch);
	f.score = space_take(m, f.tile.pitch);
	f.dscore = space_take(m, block_rows(T) * f.tile.pitch);
	f.dband = (double *)space_take(m, sizeof(double) / sizeof(real));
	f.ddistance = n->in[DISTANCE_BIAS] ? space_take(m, n->in[Q]->dim[2] * T) : NULL;
	f.dk = take_shared(m, n, K);
	f.dv = take_shared(m, n, V);
	f.dbias = take_shared(m, n, KEY_BIAS);
	return f;
}

/* dS *= cap'(s), from the capped scores. */
static void cap_row(const struct scores *s, const real *restrict score, real *restrict ds,
		    int64_t n)
{
	const real inverse = s->inverse_softcap;

#pragma omp simd
	for (int64_t j = 0; j < n; j++)
		ds[j] *= score_cap_slope(score[j], inverse);
}

/* From row r of score and dP to P kept and dS. */
static void backward_row(const struct backward *w, struct backward_buffers *f, int64_t r)
{
	const struct tile *t = &f->tile;
	const struct heads *ol = &w->o_layout;
	const int64_t i = t->first + r, n = row_keys(t, &w->s, r);
	const int64_t at = head_offset(ol, t->b, t->h, i);
	const real *o = w->o + at, *d_o = w->d_o + at;
	const real lse = w->lse[(t->b * w->s.H + t->h) * w->s.T + i];
	const bool capped = w->s.softcap > 0;
	real *restrict p = tile_row(t, &w->s, r), *restrict ds = f->dscore + r * t->pitch;
	real *restrict kept = f->kept, *restrict score = f->score;
	real delta = 0;

#pragma omp simd reduction(+ : delta)
	for (int64_t d = 0; d < ol->width; d++)
		delta += d_o[d] * o[d];
	if (capped)
		memcpy(score, p, (size_t)n * sizeof(real));
	if (w->mask.factor > 0) {
		row_exp(p, n, lse);
		mask_row(&w->mask, &w->s, t, i, kept);
#pragma omp simd
		for (int64_t j = 0; j < n; j++) {
			ds[j] = p[j] * (ds[j] * kept[j] - delta);
			p[j] *= kept[j];
		}
	} else {
		for (int64_t j = 0; j < n; j += LANES)
#pragma omp simd
			for (int l = 0; l < LANES; l++) {
				real pj = fast_exp(p[j + l] - lse);

				p[j + l] = pj;
				ds[j + l] = pj * (ds[j + l] - delta);
			}
	}
	if (capped)
		cap_row(&w->s, score, ds, n);
	row_clear(p, n, t->keys);
	row_clear(ds, n, t->keys);
}

/* ddistance[i - j] += dS_ij */
static void backward_distances(struct backward_buffers *f, const struct scores *s)
{
	const struct tile *t = &f->tile;
	real *restrict sum = f->ddistance + t->h * s->T;

	for (int64_t r = 0; r < t->rows; r++) {
		const real *restrict ds = f->dscore + r * t->pitch;
		const int64_t n = row_keys(t, s, r);

#pragma omp simd
		for (int64_t d = 0; d < n; d++)
			sum[d] += ds[n - 1 - d];
	}
}

/* score_ij = .. + band cross_ij, cross_ij = scale q_j.k_i: cross becomes dS inside the band. */
static void backward_band(const struct backward *w, struct backward_buffers *f, real *dq, real *dk)
{
	const struct scores *s = &w->s;
	const struct heads *ql = &s->q_layout, *kl = &s->k_layout;
	struct tile *t = &f->tile;
	const int64_t from = t->cross_first, near = t->keys - from, key = t->from + from;
	const real factor = s->band * (real)s->attr->scale;
	double dband = 0;

	for (int64_t r = 0; r < t->rows; r++) {
		const int64_t n = row_keys(t, s, r), start = band_start(t, s, t->first + r);
		const real *ds = f->dscore + r * t->pitch;
		real *cross = t->cross + r * t->pitch;

		row_clear(cross, from, start);
		row_clear(cross, n, t->keys);
		for (int64_t j = start; j < n; j++) {
			dband += (double)ds[j] * (double)cross[j];
			cross[j] = ds[j];
		}
	}
	*f->dband += dband;
	if (dq)
		product(&t->by, NOT_PACKED, true, false, near, ql->width, t->rows, factor,
			t->cross + from, t->pitch, s->k + head_offset(kl, t->b, t->h, t->first),
			kl->pitch, 1, dq + head_offset(ql, t->b, t->h, key), ql->pitch);
	if (dk)
		product(&t->by, NOT_PACKED, false, false, t->rows, kl->width, near, factor,
			t->cross + from, t->pitch, s->q + head_offset(ql, t->b, t->h, key),
			ql->pitch, 1, dk + t->first * kl->width, kl->width);
}

static void backward_tile(const struct backward *w, struct backward_buffers *f, real *dk, real *dv,
			  real *dbias)
{
	const struct scores *s = &w->s;
	const struct heads *ql = &s->q_layout, *kl = &s->k_layout;
	const struct heads *vl = &w->v_layout, *ol = &w->o_layout;
	struct tile *t = &f->tile;
	const real scale = (real)s->attr->scale;
	const real *d_o = w->d_o + head_offset(ol, t->b, t->h, t->first);
	const int64_t q_at = head_offset(ql, t->b, t->h, t->first);
	real *dq = w->c->din[Q], *dscore = f->dscore;

	tile_products(t, s);
	product(&t->by, tile_panel(t, &w->panels.v_tokens), false, true, t->rows, t->keys,
		vl->width, 1, d_o, ol->pitch, w->v + head_offset(vl, t->b, t->h, t->from),
		vl->pitch, 0, dscore, t->pitch);
	for (int64_t r = 0; r < t->rows; r++)
		backward_row(w, f, r);
	if (dv)
		product(&t->by, NOT_PACKED, true, false, t->keys, vl->width, t->rows, 1, t->score,
			t->pitch, d_o, ol->pitch, 1, dv + t->from * vl->width, vl->width);
	if (dq)
		product(&t->by, tile_panel(t, &w->panels.k_channels), false, false, t->rows,
			ql->width, t->keys, scale, dscore, t->pitch,
			s->k + head_offset(kl, t->b, t->h, t->from), kl->pitch, call_adds(w->c, Q),
			dq + q_at, ql->pitch);
	if (dk)
		product(&t->by, NOT_PACKED, true, false, t->keys, kl->width, t->rows, scale, dscore,
			t->pitch, s->q + q_at, ql->pitch, 1, dk + t->from * kl->width, kl->width);
	if (dbias)
		for (int64_t r = 0; r < t->rows; r++)
			for (int64_t j = 0; j < t->keys; j++)
				dbias[t->from + j] += dscore[r * t->pitch + j];
	if (f->ddistance)
		backward_distances(f, s);
	if (s->attr->band_window >= 0)
		backward_band(w, f, dq, dk);
}

/* First block of a part.  The cost of a block grows with its number, so parts of equal cost begin
 * at square roots. */
static int64_t part_start(int64_t blocks, int64_t part, int64_t parts)
{
	return (int64_t)((double)blocks * sqrt((double)part / (double)parts) + 0.5);
}

static void backward_unit(const struct backward *w, struct backward_buffers *f, int64_t unit)
{
	const int64_t blocks = block_count(w->s.T), part = unit % w->parts;
	real *dk = shared_begin(&f->dk, unit, f->first);
	real *dv = shared_begin(&f->dv, unit, f->first);
	real *dbias = shared_begin(&f->dbias, unit, f->first);

	for (int64_t block = part_start(blocks, part, w->parts);
	     block < part_start(blocks, part + 1, w->parts); block++) {
		tile_seek(&f->tile, &w->s, unit / w->parts, block);
		backward_tile(w, f, dk, dv, dbias);
	}
	shared_end(&f->dk, unit, f->first, f->last);
	shared_end(&f->dv, unit, f->first, f->last);
	shared_end(&f->dbias, unit, f->first, f->last);
}

static int64_t common_divisor(int64_t a, int64_t b)
{
	return b ? common_divisor(b, a % b) : a;
}

/*
 * Parts per head that give every thread the same number of units.  Only one part if
 * a tile writes to dq outside its own rows: with a band, or when the queries are
 * also the keys or values.
 */
static int64_t parts_of(const struct node *n, int threads)
{
	const struct attention_attr *a = n->attr;
	const struct tensor *q = n->in[Q];
	int64_t parts = threads / common_divisor(q->dim[0] * q->dim[2], threads);

	if (a->band_window >= 0 || q == n->in[K] || q == n->in[V])
		return 1;
	return parts < block_count(q->dim[1]) ? parts : block_count(q->dim[1]);
}

/* Buffers of a thread, and the units it works on. */
static struct backward_buffers open_backward(const struct backward *w, int64_t size, int thread)
{
	const int64_t units = w->s.B * w->s.H * w->parts, threads = omp_get_num_threads();
	struct space m = space_of(w->c, size, thread);
	struct backward_buffers f = take_backward(&m, w->c->node);

	shared_open(&f.dk, w->c, K, w->parts);
	shared_open(&f.dv, w->c, V, w->parts);
	shared_open(&f.dbias, w->c, KEY_BIAS, w->parts);
	f.first = units * thread / threads;
	f.last = units * (thread + 1) / threads;
	return f;
}

/* The threads share the elements; each adds what all threads have summed, in their order. */
static void put_distances(const struct backward *w, int64_t size)
{
	const struct call *c = w->c;
	const int64_t n = w->s.H * w->s.T;
	real *d = c->din[DISTANCE_BIAS];
	int64_t first, last;

	if (!d)
		return;
	thread_share(n, &first, &last);
	if (!call_adds(c, DISTANCE_BIAS))
		row_clear(d, first, last);
	for (int thread = 0; thread < omp_get_num_threads(); thread++) {
		struct space m = space_of(c, size, thread);
		const real *sum = take_backward(&m, c->node).ddistance;

		for (int64_t i = first; i < last; i++)
			d[i] += sum[i];
	}
}

static void backward_thread(const struct backward *w, int64_t size)
{
	const struct call *c = w->c;
	const struct multiplier by = multiplier_of(c, NULL);
	struct backward_buffers f = open_backward(w, size, omp_get_thread_num());
	double dband = 0;

	fill_panels(&w->panels, c, &by);
	*f.dband = 0;
	if (f.ddistance)
		row_clear(f.ddistance, 0, w->s.H * w->s.T);
	for (int64_t unit = f.first; unit < f.last; unit++)
		backward_unit(w, &f, unit);
#pragma omp barrier
	for (int thread = 0; thread < omp_get_num_threads(); thread++) {
		f = open_backward(w, size, thread);
		shared_carry(&f.dk, f.first, f.last);
		shared_carry(&f.dv, f.first, f.last);
		shared_carry(&f.dbias, f.first, f.last);
		dband += *f.dband;
	}
	put_distances(w, size);
	if (c->din[BAND] && omp_get_thread_num() == 0) {
		real *d = c->din[BAND];

		*d = (call_adds(c, BAND) ? *d : 0) + (real)dband;
	}
}

static void backward(const struct call *c)
{
	const int64_t H = c->node->in[Q]->dim[2];
	struct space size = { 0 };
	struct backward w = {
		.c = c,
		.s = scores_of(c, c->node->attr, INPUTS),
		.mask = dropout_mask_of(c),
		.v_layout = heads_of(c->node->in[V], H),
		.o_layout = heads_of(c->node->out[O], H),
		.v = c->in[V],
		.o = c->out[O],
		.d_o = c->dout[O],
		.lse = c->out[LSE],
		.parts = parts_of(c->node, omp_get_max_threads()),
	};

	take_backward(&size, c->node);
	w.panels = panels_of(c, size.used, PASS_BACKWARD);
	w.s.k_tokens = w.panels.k_tokens;
	w.s.skips = true;
#pragma omp parallel
	backward_thread(&w, size.used);
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	const bool single = pass == PASS_FORWARD && is_single(n);
	const size_t panels = single ? 0 : take_panels(NULL, n, pass).bytes;
	struct space all = { 0 }, each = { 0 };

	if (single)
		take_one_query(&all, &each, n, threads);
	else if (pass == PASS_FORWARD)
		take_forward(&each, n);
	else
		take_backward(&each, n);
	return (size_t)(all.used + each.used * threads) * sizeof(real) + panels;
}

KERNELS(attention) = { .forward = forward, .backward = backward, .workspace = workspace };
