/*
 * R is made a block of queries at a time, [rows, keys], from q, k and lse:
 *
 *     forward   y_block = R_block x
 *     backward  dx += R_block' dy_block
 */
#include "core/backend/cpu/gemv.h"
#include "core/backend/cpu/one_query.h"

enum { X, Q, K, LSE, KEY_BIAS, BAND, RECENT, DISTANCE_BIAS };

static const struct score_inputs INPUTS = { Q, K, KEY_BIAS, BAND, RECENT, DISTANCE_BIAS };

struct buffers {
	struct tile tile;
	real *route; /* [rows, pitch] */
};

static struct buffers take_buffers(struct space *m, const struct node *n)
{
	const struct attention_attr *a = n->attr;
	int64_t T = n->in[Q]->dim[1];
	struct buffers f = { .tile = tile_take(m, T, n->in[K]->dim[1], n->in[Q]->dim[3],
					       a->band_window >= 0) };

	f.route = space_take(m, block_rows(T) * f.tile.pitch);
	return f;
}

/* A combined row becomes one of R. */
static void make_sparse(const struct route_attr *a, real *row, int64_t n)
{
	const real sum = route_threshold(row, n, route_least(a, row, n));
	const real factor = route_factor(a, sum);

	for (int64_t j = 0; j < n; j++)
		row[j] *= factor;
}

/* The rows of R of one block of example b; keys after a row's own are 0. */
static void make_route(const struct call *c, const struct scores *s, struct buffers *f, int64_t b,
		       int64_t block)
{
	const struct route_attr *a = &s->attr->route;
	const real share = route_share(a, s->H);
	struct tile *t = &f->tile;

	row_clear(f->route, 0, block_rows(s->T) * t->pitch);
	for (int64_t head = b * s->H; head < (b + 1) * s->H; head++) {
		const real *lse = (const real *)c->in[LSE] + head * s->T;

		tile_seek(t, s, head, block);
		tile_products(t, s);
		for (int64_t r = 0; r < t->rows; r++) {
			const int64_t n = row_keys(t, s, r);
			real *row = tile_row(t, s, r);

			row_exp(row, n, lse[t->first + r]);
			route_join(a, f->route + r * t->pitch, row, n, share);
		}
	}
	for (int64_t r = 0; r < t->rows; r++)
		make_sparse(a, f->route + r * t->pitch, row_keys(t, s, r));
}

static void forward_tiles(const struct call *c, const struct scores *scores)
{
	const struct scores s = *scores;
	const struct tensor *x = c->node->in[X];
	const int64_t blocks = block_count(s.T), F = x->dim[2];
	struct space size = { 0 };

	take_buffers(&size, c->node);
#pragma omp parallel
	{
		struct space m = space_of(c, size.used, omp_get_thread_num());
		struct buffers f = take_buffers(&m, c->node);
		const struct tile *t = &f.tile;

		for (int64_t item = 0; item < blocks * s.B; item++) {
			const int64_t b = item % s.B;

			if (!dealt_to_me(item))
				continue;
			make_route(c, &s, &f, b, blocks - 1 - item / s.B);
			gemm(false, false, t->rows, F, t->keys, 1, f.route, t->pitch,
			     (const real *)c->in[X] + b * x->dim[1] * F, F, 0,
			     (real *)c->out[0] + (b * s.T + t->first) * F, F);
		}
	}
}

/* -------------------------------------------------- one query per example */

struct one_query_buffers {
	struct one_query one;
	real *route; /* [B,pitch], of all threads: the rows of R, as is: */
	real *sums;  /* [threads,F] */
};

static struct one_query_buffers take_one_query(struct space *shared, struct space *own,
					       const struct node *n, int threads)
{
	const int64_t B = n->in[Q]->dim[0];
	struct one_query_buffers f;

	f.one = one_query_take(shared, own, B * n->in[Q]->dim[2], n->in[K]->dim[1]);
	f.route = space_take(shared, B * f.one.pitch);
	f.sums = space_take(shared, threads * n->in[X]->dim[2]);
	return f;
}

static void one_query_route(const struct scores *s, const struct one_query *x, int64_t b, real *row)
{
	const struct route_attr *a = &s->attr->route;
	const int64_t n = s->past + 1;

	row_clear(row, 0, n);
	for (int64_t head = b * s->H; head < (b + 1) * s->H; head++)
		route_join(a, row, x->score + head * x->pitch, n, route_share(a, s->H));
	make_sparse(a, row, n);
}

static void forward_single(const struct call *c, const struct scores *s)
{
	const int64_t S = c->node->in[X]->dim[1], F = c->node->in[X]->dim[2], n = s->past + 1;
	const real *lse = c->in[LSE];
	struct space all = { 0 }, each = { 0 };

	take_one_query(&all, &each, c->node, omp_get_max_threads());
#pragma omp parallel if (s->B * n * F > GRAIN)
	{
		struct space shared = { .at = c->work };
		struct space own = { .at = (real *)c->work + all.used +
					   each.used * omp_get_thread_num() };
		const struct one_query_buffers f =
			take_one_query(&shared, &own, c->node, omp_get_max_threads());

		one_query_products(&f.one, s);
#pragma omp for schedule(static)
		for (int64_t head = 0; head < s->B * s->H; head++)
			row_exp(one_query_row(&f.one, s, head), n, lse[head]);
#pragma omp for schedule(static)
		for (int64_t b = 0; b < s->B; b++)
			one_query_route(s, &f.one, b, f.route + b * f.one.pitch);
		for (int64_t b = 0; b < s->B; b++) {
			skinny_product(f.route + b * f.one.pitch, n, 1, n,
				       (const real *)c->in[X] + b * S * F, F, NULL, f.sums,
				       (real *)c->out[0] + b * F);
#pragma omp barrier
		}
	}
}

static void forward(const struct call *c)
{
	const struct scores s = scores_of(c, c->node->attr, INPUTS);

	if (s.T == 1)
		forward_single(c, &s);
	else
		forward_tiles(c, &s);
}

/* -------------------------------------------------------------- backward */

/* y_block = R_block x: dx += R_block' dy_block, in the channels [first, last). */
static void spread(const struct call *c, const struct scores *s, const struct buffers *f,
		   int64_t first, int64_t last)
{
	const struct tile *t = &f->tile;
	const int64_t F = c->node->in[X]->dim[2], example = t->b * s->T * F;

	if (first < last)
		gemm(true, false, t->keys, last - first, t->rows, 1, f->route, t->pitch,
		     (const real *)c->dout[0] + example + t->first * F + first, F, 1,
		     (real *)c->din[X] + example + first, F);
}

/*
 * Works in rounds.  First every thread makes the rows of one block; then every thread
 * adds the products of all these blocks, in their order, to channels of its own.
 */
static void backward(const struct call *c)
{
	const struct scores s = scores_of(c, c->node->attr, INPUTS);
	const int64_t blocks = block_count(s.T), F = c->node->in[X]->dim[2];
	struct space size = { 0 };

	if (!call_adds(c, X))
		memset(c->din[X], 0, tensor_bytes(c->node->in[X]));
	take_buffers(&size, c->node);
#pragma omp parallel
	{
		const int threads = omp_get_num_threads(), me = omp_get_thread_num();
		int64_t first, last;

		thread_share(F, &first, &last);
		for (int64_t round = 0; round < blocks * s.B; round += threads) {
			struct space m = space_of(c, size.used, me);
			struct buffers f = take_buffers(&m, c->node);

			if (round + me < blocks * s.B)
				make_route(c, &s, &f, (round + me) / blocks, (round + me) % blocks);
#pragma omp barrier
			for (int i = 0; i < threads && round + i < blocks * s.B; i++) {
				m = space_of(c, size.used, i);
				f = take_buffers(&m, c->node);
				tile_seek(&f.tile, &s, (round + i) / blocks * s.H,
					  (round + i) % blocks);
				spread(c, &s, &f, first, last);
			}
#pragma omp barrier
		}
	}
}

static size_t workspace(const struct node *n, enum pass pass, int threads)
{
	struct space all = { 0 }, each = { 0 };

	if (pass == PASS_FORWARD && n->in[Q]->dim[1] == 1)
		take_one_query(&all, &each, n, threads);
	else
		take_buffers(&each, n);
	return (size_t)(all.used + each.used * threads) * sizeof(real);
}

KERNELS(mix_rows) = { .forward = forward, .backward = backward, .workspace = workspace };
