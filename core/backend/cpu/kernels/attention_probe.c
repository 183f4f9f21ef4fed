/*
 * Every thread sums over its blocks of queries in double; the sums are joined
 * in the order of the threads.
 */
#include "core/backend/cpu/scores.h"

enum { Q, K, LSE, KEY_BIAS, BAND, QUERY_BIAS, DISTANCE_BIAS };

static const struct score_inputs INPUTS = { Q, K, KEY_BIAS, BAND, -1, DISTANCE_BIAS };

/* Number, means, sums of squared deviations and of their products of pairs (a, b). */
struct moments {
	double n, a, b, aa, bb, ab;
};

/* (T. Chan, G. Golub, R. LeVeque, "Updating formulae and a pairwise algorithm", 1979.) */
static void moments_join(struct moments *m, const struct moments *x)
{
	double n = m->n + x->n, da = x->a - m->a, db = x->b - m->b;

	if (n == 0)
		return;
	m->aa += x->aa + da * da * m->n * x->n / n;
	m->bb += x->bb + db * db * m->n * x->n / n;
	m->ab += x->ab + da * db * m->n * x->n / n;
	m->a += da * x->n / n;
	m->b += db * x->n / n;
	m->n = n;
}

static double correlation(const struct moments *m)
{
	const double tiny = 1e-12; /* the reference's clamp */
	double deviations = sqrt(m->aa * m->bb);

	return m->ab / (deviations > tiny ? deviations : tiny);
}

struct sums {
	double entropy, kept, kept_squares, mass, margin;
};

struct buffers {
	struct tile tile;
	real *query_bias; /* [pitch] */
	real *route;	  /* [rows, pitch] */
	real *weight;	  /* [T], as index: the k entries of a row */
	int32_t *index;
	struct sums *sums;
	struct moments *moments; /* [H] */
};

static struct buffers take_buffers(struct space *m, const struct node *n)
{
	int64_t T = n->in[Q]->dim[1], H = n->in[Q]->dim[2];
	struct buffers f = { .tile = tile_take(m, T, T, n->in[Q]->dim[3], true) };

	f.query_bias = space_take(m, f.tile.pitch);
	f.route = space_take(m, block_rows(T) * f.tile.pitch);
	f.weight = space_take(m, T);
	f.index = (int32_t *)space_take(m, T);
	f.sums = (struct sums *)space_take(m, sizeof(*f.sums) / sizeof(real));
	f.moments =
		(struct moments *)space_take(m, H * (int64_t)(sizeof(*f.moments) / sizeof(real)));
	return f;
}

/* Pairs (M_ij, M_ji) of row r: M_ij = scale q_i.k_j + key_bias_j + query_bias_i. */
static struct moments reciprocal_row(const struct buffers *f, int64_t r, int64_t window)
{
	const struct tile *t = &f->tile;
	const int64_t i = t->first + r, from = i > window ? i - window : 0;
	const real *score = t->score + r * t->pitch, *cross = t->cross + r * t->pitch;
	const real *key = t->key_bias, *query = f->query_bias;
	struct moments m = { .n = (double)(i - from) };

	if (i == from)
		return m;
	for (int64_t j = from; j < i; j++) {
		m.a += (double)score[j] + (double)key[j] + (double)query[i];
		m.b += (double)cross[j] + (double)key[i] + (double)query[j];
	}
	m.a /= m.n;
	m.b /= m.n;
	for (int64_t j = from; j < i; j++) {
		double a = (double)score[j] + (double)key[j] + (double)query[i] - m.a;
		double b = (double)cross[j] + (double)key[i] + (double)query[j] - m.b;

		m.aa += a * a;
		m.bb += b * b;
		m.ab += a * b;
	}
	return m;
}

#define LOG_OF_NOTHING ((real)-1e4) /* its exponential is 0, and so is their product */

/* -sum p log p of n scores, which become the probabilities p; -infinity: a key is not seen. */
static double entropy_row(real *row, int64_t n, real lse)
{
	double sum = 0;

	for (int64_t j = 0; j < n; j++) {
		real l = row[j] - lse;

		row[j] = fast_exp(l);
		sum -= (double)row[j] * (double)larger(l, LOG_OF_NOTHING);
	}
	return sum;
}

static void note_margin(struct sums *sums, real from, real to)
{
	double margin = fabs((double)from - (double)to) / (double)to;

	if (margin < sums->margin)
		sums->margin = margin;
}

static void note_kept(struct sums *sums, int64_t kept)
{
	sums->kept += (double)kept;
	sums->kept_squares += (double)kept * (double)kept;
}

/* The k + 1 largest entries show how far apart the last kept and the first dropped one are. */
static void probe_topk(const struct buffers *f, const real *row, int64_t n, int64_t k)
{
	const int64_t seen = n > k ? k + 1 : n;
	double mass = (double)route_topk(row, n, seen, f->index, f->weight);

	if (n > k) {
		mass -= (double)f->weight[k];
		note_margin(f->sums, f->weight[k], f->weight[k - 1]);
	}
	f->sums->mass += mass;
	note_kept(f->sums, n < k ? n : k);
}

static void probe_threshold(const struct route_attr *a, const struct buffers *f, real *row,
			    int64_t n)
{
	const real least = route_least(a, row, n);
	int64_t kept = 0;

	for (int64_t j = 0; j < n; j++) {
		kept += row[j] >= least;
		if (least > 0)
			note_margin(f->sums, row[j], least);
	}
	note_kept(f->sums, kept);
	f->sums->mass += (double)route_threshold(row, n, least);
}

static void probe_routes(const struct scores *s, const struct buffers *f)
{
	const struct route_attr *a = &s->attr->route;
	const struct tile *t = &f->tile;
	const int64_t k = a->k < s->T ? a->k : s->T;

	for (int64_t r = 0; r < t->rows; r++) {
		real *row = f->route + r * t->pitch;

		if (a->mode == ROUTE_TOPK)
			probe_topk(f, row, t->first + r + 1, k);
		else
			probe_threshold(a, f, row, t->first + r + 1);
	}
}

static void probe_head(const struct call *c, const struct scores *s, const struct buffers *f)
{
	const struct probe_attr *a = c->node->attr;
	const struct route_attr *route = &s->attr->route;
	const struct tile *t = &f->tile;
	const real *lse = (const real *)c->in[LSE] + (t->b * s->H + t->h) * s->T;

	for (int64_t r = 0; r < t->rows; r++) {
		const int64_t i = t->first + r;
		const struct moments m = reciprocal_row(f, r, a->window);
		real *row = tile_row(t, s, r);

		moments_join(&f->moments[t->h], &m);
		f->sums->entropy += entropy_row(row, i + 1, lse[i]);
		if (route->mode != ROUTE_NONE)
			route_join(route, f->route + r * t->pitch, row, i + 1,
				   route_share(route, s->H));
	}
}

static void probe_block(const struct call *c, const struct scores *s, struct buffers *f, int64_t b,
			int64_t block)
{
	const struct tensor *bias = c->node->in[QUERY_BIAS];
	const struct heads layout = bias ? heads_of(bias, s->H) : (struct heads){ 0 };
	struct tile *t = &f->tile;

	row_clear(f->route, 0, block_rows(s->T) * t->pitch);
	for (int64_t h = 0; h < s->H; h++) {
		tile_seek(t, s, b * s->H + h, block);
		tile_products(t, s);
		for (int64_t j = 0; bias && j < t->keys; j++)
			f->query_bias[j] =
				((const real *)c->in[QUERY_BIAS])[head_offset(&layout, b, h, j)];
		probe_head(c, s, f);
	}
	if (s->attr->route.mode != ROUTE_NONE)
		probe_routes(s, f);
}

static void probe_thread(const struct call *c, const struct scores *s, struct buffers *f)
{
	const int64_t blocks = block_count(s->T);

	*f->sums = (struct sums){ .margin = 1 };
	memset(f->moments, 0, (size_t)s->H * sizeof(*f->moments));
	row_clear(f->query_bias, 0, f->tile.pitch);
	row_clear(f->tile.key_bias, 0, f->tile.pitch);
	for (int64_t item = 0; item < blocks * s->B; item++)
		if (dealt_to_me(item))
			probe_block(c, s, f, item % s->B, blocks - 1 - item / s->B);
}

static void join_threads(const struct call *c, const struct scores *s, int64_t size, int threads)
{
	const double queries = (double)(s->B * s->T), H = (double)s->H;
	real *out = c->out[0];
	double result[PROBE_METRICS] = { [PROBE_MARGIN] = 1 };

	for (int64_t h = 0; h < s->H; h++) {
		struct moments m = { 0 };

		for (int thread = 0; thread < threads; thread++) {
			struct space space = space_of(c, size, thread);

			moments_join(&m, &take_buffers(&space, c->node).moments[h]);
		}
		result[PROBE_RECIPROCITY] += correlation(&m) / H;
	}
	for (int thread = 0; thread < threads; thread++) {
		struct space space = space_of(c, size, thread);
		const struct sums *sums = take_buffers(&space, c->node).sums;

		result[PROBE_ENTROPY] += sums->entropy / (queries * H);
		result[PROBE_KEPT] += sums->kept / queries;
		result[PROBE_SPREAD] += sums->kept_squares / queries;
		result[PROBE_MASS] += sums->mass / queries;
		result[PROBE_MARGIN] = fmin(result[PROBE_MARGIN], sums->margin);
	}
	result[PROBE_SPREAD] =
		sqrt(fmax(0, result[PROBE_SPREAD] - result[PROBE_KEPT] * result[PROBE_KEPT]));
	for (int i = 0; i < PROBE_METRICS; i++)
		out[i] = (real)result[i];
}

static void forward(const struct call *c)
{
	const struct probe_attr *a = c->node->attr;
	struct scores s = scores_of(c, &a->attention, INPUTS);
	struct space size = { 0 };
	int threads = 1;

	if (s.cross_window < a->window)
		s.cross_window = a->window;
	take_buffers(&size, c->node);
#pragma omp parallel
	{
		struct space m = space_of(c, size.used, omp_get_thread_num());
		struct buffers f = take_buffers(&m, c->node);

		probe_thread(c, &s, &f);
		if (omp_get_thread_num() == 0)
			threads = omp_get_num_threads();
	}
	join_threads(c, &s, size.used, threads);
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	struct space size = { 0 };

	(void)pass;
	take_buffers(&size, n);
	return (size_t)(size.used * threads) * sizeof(real);
}

KERNELS(attention_probe) = { .forward = forward, .workspace = workspace };
