/*
 * scores - blocks of attention probabilities P_ij = exp(score_ij - lse_i), for the kernels that
 * need them.  core/ops/score.h says what a score is.
 *
 * A tile holds the scores of a block of consecutive queries of one head against
 * every key from the first that one of them sees up to the block's last query.  So rows are whole,
 * a softmax needs no second pass, and the memory is linear in T.  Positions count from the first
 * token ever, queries from the first of this run; column c of a tile is the key at position
 * tile.from + c.
 *
 * A routing row is made from the probabilities of all heads of one query:
 * combined by mean or maximum, made sparse, optionally normalised.
 */
#ifndef CPU_SCORES_H
#define CPU_SCORES_H

#include "core/backend/cpu/gemm.h"

#define FORMULA static inline
#include "core/ops/score.h"
#undef FORMULA

/* ------------------------------------------------------------- workspace */

/* Hands out pieces of c->work; if `at` is NULL it only counts bytes. */
struct space {
	real *at;
	int64_t used;
};

#define SPACE_STEP 16 /* pieces start on cache lines: 16 floats */

static inline real *space_take(struct space *m, int64_t elements)
{
	real *piece = m->at ? m->at + m->used : NULL;

	m->used += (elements + SPACE_STEP - 1) / SPACE_STEP * SPACE_STEP;
	return piece;
}

/* The piece of a thread, where each has `size` elements. */
static inline struct space space_of(const struct call *c, int64_t size, int thread)
{
	return (struct space){ .at = (real *)c->work + size * thread };
}

/* ---------------------------------------------------------------- layout */

/* A tensor [B,T,n,width] (or [B,T,n]) seen from H query heads, which share its n heads. */
struct heads {
	int64_t T, pitch; /* elements from one token to the next */
	int64_t width;
	int64_t sharing; /* query heads per head */
};

static inline struct heads heads_of(const struct tensor *t, int64_t query_heads)
{
	int64_t width = t->ndim == 4 ? t->dim[3] : 1;

	return (struct heads){
		.T = t->dim[1],
		.pitch = tensor_contiguous(t) ? t->dim[2] * width : t->pitch,
		.width = width,
		.sharing = query_heads / t->dim[2],
	};
}

/* First element of token t as query head h of example b sees it. */
static inline int64_t head_offset(const struct heads *x, int64_t b, int64_t h, int64_t t)
{
	return (b * x->T + t) * x->pitch + h / x->sharing * x->width;
}

/*
 * Queries per tile.  Larger tiles have faster products, smaller ones waste
 * less on the masked half of their last square.  (Of 24, 32, 48, 64, 96 and
 * 128, with 64 channels at T = 1024 and 32 at 128 and 256, on a Neoverse V1.)
 */
#define MAX_BLOCK 64

static inline int64_t block_rows(int64_t T)
{
	return T <= 256 ? 32 : MAX_BLOCK;
}

static inline int64_t block_count(int64_t T)
{
	return (T + block_rows(T) - 1) / block_rows(T);
}

/* Rows of a tile are this far apart: whole cache lines, but no power of two, which crowds caches.
 */
static inline int64_t tile_pitch(int64_t T)
{
	return (T + SPACE_STEP - 1) / SPACE_STEP * SPACE_STEP + SPACE_STEP;
}

/* Deals items, sorted by falling cost, to threads 0, 1 .. n-1, n-1 .. 1, 0, 0, 1 .. */
static inline bool dealt_to_me(int64_t item)
{
	int64_t threads = omp_get_num_threads(), place = item % (2 * threads);

	return omp_get_thread_num() == (place < threads ? place : 2 * threads - 1 - place);
}

/* ------------------------------------------------------------ packed heads */

/*
 * Every head of a tensor packed as the B of products, so that the tiles that
 * read it need not: lines are tokens (B = x', k the channels) or channels
 * (B = x, k the tokens).  Behind the pieces of the threads in c->work.
 */
struct packed_heads {
	char *at;     /* NULL: not packed */
	size_t bytes; /* of a head */
	int64_t heads, sharing, n, k;
};

/* Takes the next bytes after `start`; only counts them if `start` is NULL. */
static inline struct packed_heads packed_take(size_t *used, char *start, const struct tensor *t,
					      int64_t query_heads, bool tokens)
{
	const struct heads x = heads_of(t, query_heads);
	struct packed_heads p = {
		.bytes = tokens ? packed_bytes(x.T, x.width) : packed_bytes(x.width, x.T),
		.heads = t->dim[2],
		.sharing = x.sharing,
		.n = tokens ? x.T : x.width,
		.k = tokens ? x.width : x.T,
	};

	p.at = start && p.bytes ? start + *used : NULL;
	*used += p.bytes * (size_t)(t->dim[0] * p.heads);
	return p;
}

/* The threads of a parallel region share the heads and wait for each other. */
static inline void packed_fill(const struct packed_heads *p, const struct multiplier *by,
			       const struct tensor *t, const real *data, bool tokens)
{
	const struct heads x = heads_of(t, p->heads * p->sharing);

	if (!p->at)
		return;
#pragma omp for schedule(static)
	for (int64_t i = 0; i < t->dim[0] * p->heads; i++)
		pack(by, tokens, p->n, p->k,
		     data + head_offset(&x, i / p->heads, i % p->heads * x.sharing, 0), x.pitch,
		     p->at + p->bytes * (size_t)i);
}

/* As query head h of example b sees it. */
static inline struct packed packed_head(const struct packed_heads *p, int64_t b, int64_t h)
{
	if (!p->at)
		return NOT_PACKED;
	return (struct packed){
		.panels = p->at + p->bytes * (size_t)(b * p->heads + h / p->sharing),
		.n = p->n,
		.k = p->k,
	};
}

/* ---------------------------------------------------------------- scores */

/* Which inputs of a node the scores come from; recent < 0: none. */
struct score_inputs {
	int q, k, key_bias, band, recent, distance_bias;
};

struct scores {
	const struct attention_attr *attr;
	struct score_window window;
	real softcap, inverse_softcap; /* 0: no cap */
	int64_t B, T, H;
	int64_t past; /* position of the first query */
	struct heads q_layout, k_layout, bias_layout, recent_layout;
	const real *q, *k, *key_bias; /* key_bias NULL: none */
	const real *recent;	      /* queries from position recent_first on */
	int64_t recent_first;
	const real *distance_bias; /* [H,distances]; NULL: none */
	int64_t distances;
	real band;
	int64_t cross_window; /* cross is wanted where i - j is at most this; < 0: nowhere */
	bool skips;	      /* tiles begin with the first key that a query of theirs sees */
	const struct panel_form *form;
	struct packed_heads k_tokens; /* optional */
};

struct tile {
	real *score, *cross; /* [rows, pitch] */
	real *key_bias;	     /* [pitch] */
	int64_t pitch;
	int64_t b, h;
	int64_t first, rows; /* queries */
	int64_t from, keys; /* first key, and number of keys up to the position of the last query */
	int64_t cross_first; /* first column of cross */
	struct multiplier by;
};

/* Elements of workspace for any product of a tile of T queries with `keys` keys or values. */
static inline int64_t tile_work(int64_t T, int64_t keys, int64_t width)
{
	const size_t wide = product_work(T, keys, width, false, 1);
	const size_t deep = product_work(T, width, keys, false, 1);

	return (int64_t)((wide > deep ? wide : deep) / sizeof(real));
}

static inline struct scores scores_of(const struct call *c, const struct attention_attr *attr,
				      struct score_inputs at)
{
	struct tensor *const *in = c->node->in;
	const int64_t H = in[at.q]->dim[2];
	const int queries = at.recent >= 0 && in[at.recent] ? at.recent : at.q;
	struct scores s = {
		.attr = attr,
		.window = { attr->window, attr->sinks },
		.softcap = (real)attr->softcap,
		.inverse_softcap = attr->softcap > 0 ? (real)(1 / attr->softcap) : 0,
		.B = in[at.q]->dim[0],
		.T = in[at.q]->dim[1],
		.H = H,
		.past = c->run->past,
		.q_layout = heads_of(in[at.q], H),
		.k_layout = heads_of(in[at.k], H),
		.recent_layout = heads_of(in[queries], H),
		.q = c->in[at.q],
		.k = c->in[at.k],
		.recent = c->in[queries],
		.recent_first = c->run->past + in[at.q]->dim[1] - in[queries]->dim[1],
		.key_bias = c->in[at.key_bias],
		.distance_bias = c->in[at.distance_bias],
		.distances = in[at.k]->dim[1],
		.band = c->in[at.band] ? *(const real *)c->in[at.band] : (real)attr->band,
		.cross_window = attr->band_window,
		.form = cpu_form(c->backend),
	};

	if (s.key_bias)
		s.bias_layout = heads_of(in[at.key_bias], H);
	return s;
}

/* For T queries of `capacity` keys; `width`: the most channels that a product reads or makes. */
static inline struct tile tile_take(struct space *m, int64_t T, int64_t capacity, int64_t width,
				    bool cross)
{
	int64_t pitch = tile_pitch(capacity), size = block_rows(T) * pitch;

	return (struct tile){
		.by = { .work = space_take(m, tile_work(T, capacity, width)) },
		.score = space_take(m, size),
		.cross = cross ? space_take(m, size) : NULL,
		.key_bias = space_take(m, pitch),
		.pitch = pitch,
	};
}

/* Point the tile at block number `block` of head number b H + h. */
static inline void tile_seek(struct tile *t, const struct scores *s, int64_t head, int64_t block)
{
	int64_t rows = block_rows(s->T);

	t->b = head / s->H;
	t->h = head % s->H;
	t->first = block * rows;
	t->rows = t->first + rows <= s->T ? rows : s->T - t->first;
	t->from = s->skips ? score_first_key(s->window, s->past + t->first) / LANES * LANES : 0;
	t->keys = s->past + t->first + t->rows - t->from;
	t->cross_first = s->past + t->first - s->cross_window - t->from;
	t->cross_first = t->cross_first > 0 ? t->cross_first : 0;
	t->by.form = s->form;
}

/* The keys of a tile packed as the B of products, if it reads all of them. */
static inline struct packed tile_panel(const struct tile *t, const struct packed_heads *p)
{
	return t->from == 0 ? packed_head(p, t->b, t->h) : NOT_PACKED;
}

/* score = scale q k', cross = scale k q', and the keys' bias in a row of its own. */
static inline void tile_products(struct tile *t, const struct scores *s)
{
	const struct heads *ql = &s->q_layout, *kl = &s->k_layout, *bl = &s->bias_layout;
	const struct heads *rl = &s->recent_layout;
	const int64_t cross = t->cross_first;
	const real scale = (real)s->attr->scale;

	product(&t->by, tile_panel(t, &s->k_tokens), false, true, t->rows, t->keys, ql->width,
		scale, s->q + head_offset(ql, t->b, t->h, t->first), ql->pitch,
		s->k + head_offset(kl, t->b, t->h, t->from), kl->pitch, 0, t->score, t->pitch);
	if (s->cross_window >= 0)
		product(&t->by, NOT_PACKED, false, true, t->rows, t->keys - cross, ql->width, scale,
			s->k + head_offset(kl, t->b, t->h, s->past + t->first), kl->pitch,
			s->recent + head_offset(rl, t->b, t->h, t->from + cross - s->recent_first),
			rl->pitch, 0, t->cross + cross, t->pitch);
	if (s->key_bias)
		for (int64_t c = 0; c < t->keys; c++)
			t->key_bias[c] = s->key_bias[head_offset(bl, t->b, t->h, t->from + c)];
}

/* Columns up to the position of the query in row r of the tile. */
static inline int64_t row_keys(const struct tile *t, const struct scores *s, int64_t r)
{
	return s->past + t->first + r + 1 - t->from;
}

/* First column in the band of the query at position i. */
static inline int64_t band_start(const struct tile *t, const struct scores *s, int64_t i)
{
	const int64_t first = i - s->attr->band_window - t->from;

	return first > 0 ? first : 0;
}

/*
 * Turn the product in row r of the tile into the scores of its query's keys,
 * padded with -infinity to whole LANES.  Keys that the query does not see are -infinity, too.
 */
static inline real *tile_row(const struct tile *t, const struct scores *s, int64_t r)
{
	const int64_t n = row_keys(t, s, r), i = n - 1 + t->from;
	const real *cross = t->cross ? t->cross + r * t->pitch : NULL, *bias = t->key_bias;
	const real *distance = s->distance_bias ? s->distance_bias + t->h * s->distances : NULL;
	const real band = s->band, softcap = s->softcap, inverse = s->inverse_softcap;
	real *row = t->score + r * t->pitch;

	if (s->key_bias)
#pragma omp simd
		for (int64_t j = 0; j < n; j++)
			row[j] += bias[j];
	if (distance)
#pragma omp simd
		for (int64_t j = 0; j < n; j++)
			row[j] += distance[n - 1 - j];
	if (s->attr->band_window >= 0)
#pragma omp simd
		for (int64_t j = band_start(t, s, i); j < n; j++)
			row[j] += band * cross[j];
	if (softcap > 0)
#pragma omp simd
		for (int64_t j = 0; j < n; j++)
			row[j] = score_cap(row[j], softcap, inverse);
	for (int64_t j = s->window.sinks; j < score_window_start(s->window, i) - t->from; j++)
		row[j] = -INFINITY;
	for (int64_t j = n; j % LANES; j++)
		row[j] = -INFINITY;
	return row;
}

/* row = exp(row - shift) of a row that is padded; returns the sum. */
static inline real row_exp(real *row, int64_t n, real shift)
{
	real lane[LANES] = { 0 }, sum = 0;

	for (int64_t j = 0; j < n; j += LANES)
#pragma omp simd
		for (int l = 0; l < LANES; l++) {
			real p = fast_exp(row[j + l] - shift);

			row[j + l] = p;
			lane[l] += p;
		}
	for (int l = 0; l < LANES; l++)
		sum += lane[l];
	return sum;
}

static inline void row_clear(real *row, int64_t from, int64_t to)
{
	memset(row + from, 0, (size_t)(to - from) * sizeof(real));
}

/* --------------------------------------------------------------- routing */

/* Weight of one head's probability in the combined row. */
static inline real route_share(const struct route_attr *a, int64_t H)
{
	return a->head_maximum ? 1 : 1 / (real)H;
}

/* Join factor * p, the probabilities of one more head, to a combined row that began as zeros. */
static inline void route_join(const struct route_attr *a, real *restrict route,
			      const real *restrict p, int64_t n, real factor)
{
	if (a->head_maximum)
#pragma omp simd
		for (int64_t j = 0; j < n; j++)
			route[j] = p[j] * factor > route[j] ? p[j] * factor : route[j];
	else
#pragma omp simd
		for (int64_t j = 0; j < n; j++)
			route[j] += p[j] * factor;
}

/*
 * The k largest of n entries, largest first, the earlier of two equals first;
 * where n < k the rest is index -1, weight 0.  Returns the sum of the weights.
 */
static inline real route_topk(const real *route, int64_t n, int64_t k, int32_t *index, real *weight)
{
	real sum = 0;
	int64_t held = 0;

	for (int64_t j = 0; j < n; j++) {
		int64_t at;

		if (held == k && !(route[j] > weight[k - 1]))
			continue;
		for (at = held < k ? held++ : k - 1; at > 0 && route[j] > weight[at - 1]; at--) {
			weight[at] = weight[at - 1];
			index[at] = index[at - 1];
		}
		weight[at] = route[j];
		index[at] = (int32_t)j;
	}
	for (int64_t at = held; at < k; at++) {
		weight[at] = 0;
		index[at] = -1;
	}
	for (int64_t at = 0; at < held; at++)
		sum += weight[at];
	return sum;
}

/* The smallest entry kept.  ROUTE_RMS: tau times the row's root mean square; ROUTE_DENSE: any. */
static inline real route_least(const struct route_attr *a, const real *route, int64_t n)
{
	real squares = 0;

	if (a->mode != ROUTE_RMS)
		return 0;
#pragma omp simd reduction(+ : squares)
	for (int64_t j = 0; j < n; j++)
		squares += route[j] * route[j];
	return (real)a->tau * (real)sqrt((double)squares / (double)n);
}

/* Zero what is smaller; returns the sum of the rest. */
static inline real route_threshold(real *route, int64_t n, real least)
{
	real sum = 0;

#pragma omp simd reduction(+ : sum)
	for (int64_t j = 0; j < n; j++) {
		route[j] = route[j] >= least ? route[j] : 0;
		sum += route[j];
	}
	return sum;
}

/* What a sparse row of this sum is multiplied with. */
static inline real route_factor(const struct route_attr *a, real sum)
{
	const real tiny = (real)1e-8; /* the reference's clamp */

	return !a->normalize ? 1 : 1 / (sum > tiny ? sum : tiny);
}

#endif
