/*
 * Attention, its routing, the two mixing ops and the probe against plain
 * loops over all pairs in double.
 */
#include "core/backend/open.h"
#include "core/util/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/ops/ops.h"
#include "core/engine/program.h"

#define SEED 11
#define ITERATION 5
#define MICRO 2
#define CHANNELS 3 /* of what the routing matrix mixes */
#define WINDOW 7   /* of the probe */

/* Largest differences seen over all settings: below 1e-13 and 1e-6. */
#define DOUBLE_ERROR 1e-12
#define FLOAT_ERROR 1e-5

struct setting {
	const char *name;
	int64_t B, T, H, K, D, key_heads, value_heads;
	bool key_bias, learned_band;
	struct attention_attr attr;
	bool distance_bias;
};

#define PLAIN .attr = { .scale = 0.4, .band_window = -1 }
#define ROUTED(...) .attr = { .scale = 0.4, .band_window = -1, .route = { __VA_ARGS__ } }

static const struct setting settings[] = {
	{ "one token", 2, 1, 2, 3, 2, 2, 2, false, false, PLAIN },
	{ "a full block", 1, 32, 2, 4, 4, 2, 2, false, false, PLAIN },
	{ "a block and one", 3, 65, 1, 5, 3, 1, 1, false, false, PLAIN },
	{ "long", 1, 321, 2, 4, 3, 1, 2, true, false, PLAIN },
	{ "shared keys", 1, 70, 6, 8, 4, 1, 3, true, false, PLAIN },
	{ "distance bias", 2, 140, 6, 2, 2, 2, 6, true, false, PLAIN, .distance_bias = true },
	{ "window", 2, 300, 3, 4, 3, 1, 3, true, false,
	  .attr = { .scale = 0.4, .band_window = -1, .window = 70 } },
	{ "window of one", 1, 40, 2, 4, 3, 1, 2, false, false,
	  .attr = { .scale = 0.4, .band_window = -1, .window = 1 } },
	{ "window wider than the sequence", 1, 40, 2, 4, 3, 2, 2, false, false,
	  .attr = { .scale = 0.4, .band_window = -1, .window = 1000, .sinks = 1000 } },
	{ "window with sinks", 1, 300, 2, 4, 3, 2, 1, true, false,
	  .attr = { .scale = 0.4, .band_window = -1, .window = 33, .sinks = 5 },
	  .distance_bias = true },
	{ "softcap", 2, 70, 3, 4, 2, 3, 3, true, false,
	  .attr = { .scale = 0.9, .band_window = -1, .softcap = 1.3 } },
	{ "window in a band, and everything", 2, 140, 3, 4, 2, 1, 3, true, true,
	  .attr = { .scale = 0.4,
		    .band_window = 50,
		    .window = 30,
		    .sinks = 2,
		    .softcap = 2,
		    .dropout = 0.2 },
	  .distance_bias = true },
	{ "band", 2, 70, 3, 4, 2, 1, 3, false, false,
	  .attr = { .scale = 0.4, .band_window = 9, .band = 0.8 } },
	{ "learned wide band", 1, 37, 2, 4, 2, 2, 1, true, true,
	  .attr = { .scale = 0.4, .band_window = 1000 } },
	{ "dropout", 2, 67, 3, 4, 2, 3, 3, false, false,
	  .attr = { .scale = 0.4, .band_window = -1, .dropout = 0.3 } },
	{ "topk", 2, 67, 3, 4, 2, 3, 3, false, false,
	  ROUTED(.mode = ROUTE_TOPK, .k = 5, .normalize = true) },
	{ "topk of the maximum, all kept", 1, 9, 3, 4, 2, 3, 3, true, false,
	  ROUTED(.mode = ROUTE_TOPK, .k = 20, .head_maximum = true) },
	{ "rms", 2, 67, 3, 4, 2, 3, 3, true, false,
	  ROUTED(.mode = ROUTE_RMS, .tau = 0.5, .normalize = true) },
	{ "rms of the maximum", 1, 33, 4, 4, 2, 2, 1, false, false,
	  ROUTED(.mode = ROUTE_RMS, .tau = 1.2, .head_maximum = true) },
	{ "dense, with everything", 2, 40, 6, 4, 2, 3, 2, true, true,
	  .attr = { .scale = 0.4,
		    .softcap = 5,
		    .band_window = 6,
		    .route = { .mode = ROUTE_DENSE, .normalize = true, .head_maximum = true } },
	  .distance_bias = true },
	{ 0 },
};

/* ------------------------------------------------------- the plain loops */

/* Host arrays, all in double; route is the dense [B,T,T]. */
struct numbers {
	double *q, *k, *v, *key_bias, *distance_bias, *band, *query_bias, *x;
	double *content, *score, *prob, *o, *lse, *route, *y;
	double probe[PROBE_METRICS];
};

static double *draw(const char *name, int64_t count)
{
	double *values = malloc((size_t)count * sizeof(*values));

	for (int64_t i = 0; i < count; i++) /* exact in float, too */
		values[i] = (double)(float)rng_normal(rng_key(SEED, name), (uint64_t)i);
	return values;
}

static double dot(const double *a, const double *b, int64_t n)
{
	double sum = 0;

	for (int64_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

static int64_t at3(int64_t i, int64_t j, int64_t nj, int64_t k, int64_t nk)
{
	return (i * nj + j) * nk + k;
}

/* Index of query i and key j in [B,H,T,T]. */
static int64_t pair(const struct setting *s, int64_t b, int64_t h, int64_t i, int64_t j)
{
	return (at3(b, h, s->H, i, s->T)) * s->T + j;
}

static double product(const struct setting *s, const struct numbers *n, int64_t b, int64_t h,
		      int64_t i, int64_t j)
{
	const int64_t g = h / (s->H / s->key_heads);

	return s->attr.scale * dot(n->q + at3(b * s->T + i, h, s->H, 0, s->K),
				   n->k + at3(b * s->T + j, g, s->key_heads, 0, s->K), s->K);
}

static bool sees(const struct attention_attr *a, int64_t i, int64_t j)
{
	return j <= i && (a->window == 0 || i - j < a->window || j < a->sinks);
}

static void naive_scores(const struct setting *s, struct numbers *n, int64_t b, int64_t h)
{
	const int64_t g = h / (s->H / s->key_heads);

	for (int64_t i = 0; i < s->T; i++)
		for (int64_t j = 0; j < s->T; j++) {
			double bias =
				n->key_bias ? n->key_bias[(b * s->T + j) * s->key_heads + g] : 0;
			double score = product(s, n, b, h, i, j) + bias;

			n->content[pair(s, b, h, i, j)] =
				score + n->query_bias[(b * s->T + i) * s->H + h];
			if (n->distance_bias && j <= i)
				score += n->distance_bias[h * s->T + i - j];
			if (llabs((long long)(i - j)) <= s->attr.band_window)
				score += (n->band ? *n->band : s->attr.band) *
					 product(s, n, b, h, j, i);
			if (s->attr.softcap > 0)
				score = s->attr.softcap * tanh(score / s->attr.softcap);
			n->score[pair(s, b, h, i, j)] = sees(&s->attr, i, j) ? score : -INFINITY;
		}
}

static double kept(const struct setting *s, int64_t element)
{
	const struct rng_key run =
		rng_subkey(rng_subkey(rng_key(SEED, "attention"), ITERATION), MICRO);
	uint32_t word[4];

	if (s->attr.dropout == 0)
		return 1;
	rng_block(run, (uint64_t)element / 4, word);
	return (double)word[element % 4] / 4294967296.0 < s->attr.dropout
		       ? 0
		       : 1 / (1 - s->attr.dropout);
}

static void naive_row(const struct setting *s, struct numbers *n, int64_t b, int64_t h, int64_t i)
{
	const int64_t first = pair(s, b, h, i, 0), g = h / (s->H / s->value_heads);
	double sum = 0;

	for (int64_t j = 0; j <= i; j++)
		sum += exp(n->score[first + j]);
	n->lse[at3(b, h, s->H, i, s->T)] = log(sum);
	for (int64_t j = 0; j < s->T; j++)
		n->prob[first + j] = exp(n->score[first + j]) / sum;
	for (int64_t d = 0; d < s->D; d++) {
		double *o = &n->o[at3(b * s->T + i, h, s->H, d, s->D)];

		for (int64_t j = 0; j <= i; j++)
			*o += n->prob[first + j] * kept(s, first + j) *
			      n->v[at3(b * s->T + j, g, s->value_heads, d, s->D)];
	}
}

/* Entries of the row that are larger, or as large and earlier. */
static int64_t rank(const double *row, int64_t n, int64_t j)
{
	int64_t before = 0;

	for (int64_t i = 0; i < n; i++)
		before += row[i] > row[j] || (row[i] == row[j] && i < j);
	return before;
}

static bool keeps(const struct route_attr *r, const double *row, int64_t n, int64_t j)
{
	if (r->mode == ROUTE_TOPK)
		return rank(row, n, j) < r->k;
	return r->mode == ROUTE_DENSE || row[j] >= r->tau * sqrt(dot(row, row, n) / (double)n);
}

/* The smallest relative distance of an entry from the other side of the choice. */
static double naive_margin(const struct route_attr *r, const double *row, int64_t n)
{
	const double least = r->tau * sqrt(dot(row, row, n) / (double)n);
	double kept = INFINITY, dropped = 0, margin = 1;

	for (int64_t j = 0; j < n; j++) {
		if (r->mode == ROUTE_RMS)
			margin = fmin(margin, fabs(row[j] - least) / least);
		if (keeps(r, row, n, j))
			kept = fmin(kept, row[j]);
		else
			dropped = fmax(dropped, row[j]);
	}
	return r->mode == ROUTE_TOPK && r->k < n ? (kept - dropped) / kept : margin;
}

static void naive_route(const struct setting *s, struct numbers *n, int64_t b, int64_t i)
{
	const struct route_attr *r = &s->attr.route;
	double *row = calloc((size_t)s->T, sizeof(*row)), *route = n->route + (b * s->T + i) * s->T;
	double sum = 0, kept = 0;

	for (int64_t h = 0; h < s->H; h++)
		for (int64_t j = 0; j <= i; j++) {
			double p = n->prob[pair(s, b, h, i, j)];

			row[j] = r->head_maximum ? fmax(row[j], p) : row[j] + p / (double)s->H;
		}
	for (int64_t j = 0; j <= i; j++)
		if (keeps(r, row, i + 1, j)) {
			route[j] = row[j];
			sum += row[j];
			kept++;
		}
	n->probe[PROBE_KEPT] += kept / (double)(s->B * s->T);
	n->probe[PROBE_SPREAD] += kept * kept / (double)(s->B * s->T);
	n->probe[PROBE_MASS] += sum / (double)(s->B * s->T);
	n->probe[PROBE_MARGIN] = fmin(n->probe[PROBE_MARGIN], naive_margin(r, row, i + 1));
	for (int64_t j = 0; j <= i && r->normalize; j++)
		route[j] /= fmax(sum, 1e-8);
	for (int64_t j = 0; j <= i; j++)
		for (int64_t c = 0; c < CHANNELS; c++)
			n->y[(b * s->T + i) * CHANNELS + c] +=
				route[j] * n->x[(b * s->T + j) * CHANNELS + c];
	free(row);
}

static double naive_correlation(const struct setting *s, const struct numbers *n, int64_t h)
{
	double count = 0, a = 0, b = 0, aa = 0, bb = 0, ab = 0;

	for (int pass = 0; pass < 2; pass++) {
		for (int64_t e = 0; e < s->B; e++)
			for (int64_t i = 0; i < s->T; i++)
				for (int64_t j = i > WINDOW ? i - WINDOW : 0; j < i; j++) {
					double x = n->content[pair(s, e, h, i, j)];
					double y = n->content[pair(s, e, h, j, i)];

					count += pass == 0;
					a += pass == 0 ? x : 0;
					b += pass == 0 ? y : 0;
					aa += pass == 1 ? (x - a) * (x - a) : 0;
					bb += pass == 1 ? (y - b) * (y - b) : 0;
					ab += pass == 1 ? (x - a) * (y - b) : 0;
				}
		if (pass == 0 && count > 0) {
			a /= count;
			b /= count;
		}
	}
	return ab / fmax(sqrt(aa * bb), 1e-12);
}

static double *zeros(int64_t count)
{
	return calloc((size_t)count, sizeof(double));
}

static struct numbers naive(const struct setting *s)
{
	const int64_t tokens = s->B * s->T, pairs = s->B * s->H * s->T * s->T;
	struct numbers n = {
		.q = draw("q", tokens * s->H * s->K),
		.k = draw("k", tokens * s->key_heads * s->K),
		.v = draw("v", tokens * s->value_heads * s->D),
		.key_bias = s->key_bias ? draw("key_bias", tokens * s->key_heads) : NULL,
		.distance_bias = s->distance_bias ? draw("distance", s->H * s->T) : NULL,
		.band = s->learned_band ? draw("band", 1) : NULL,
		.query_bias = draw("query_bias", tokens * s->H),
		.x = draw("x", tokens * CHANNELS),
		.content = zeros(pairs),
		.score = zeros(pairs),
		.prob = zeros(pairs),
		.o = zeros(tokens * s->H * s->D),
		.lse = zeros(tokens * s->H),
		.route = zeros(tokens * s->T),
		.y = zeros(tokens * CHANNELS),
	};

	n.probe[PROBE_MARGIN] = 1;
	for (int64_t b = 0; b < s->B; b++) {
		for (int64_t h = 0; h < s->H; h++) {
			naive_scores(s, &n, b, h);
			for (int64_t i = 0; i < s->T; i++)
				naive_row(s, &n, b, h, i);
		}
		for (int64_t i = 0; i < s->T && s->attr.route.mode != ROUTE_NONE; i++)
			naive_route(s, &n, b, i);
	}
	n.probe[PROBE_SPREAD] =
		sqrt(fmax(0, n.probe[PROBE_SPREAD] - n.probe[PROBE_KEPT] * n.probe[PROBE_KEPT]));
	for (int64_t i = 0; i < pairs; i++)
		n.probe[PROBE_ENTROPY] -=
			n.prob[i] > 0 ? n.prob[i] * log(n.prob[i]) / (double)(tokens * s->H) : 0;
	for (int64_t h = 0; h < s->H; h++)
		n.probe[PROBE_RECIPROCITY] += naive_correlation(s, &n, h) / (double)s->H;
	return n;
}

static void free_numbers(struct numbers *n)
{
	double *const all[] = {
		n->q, n->k,	  n->v,	    n->key_bias, n->band, n->query_bias, n->distance_bias,
		n->x, n->content, n->score, n->prob,	 n->o,	  n->lse,	 n->route,
		n->y
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		free(all[i]);
}

/* -------------------------------------------------------------- the graph */

struct fixture {
	struct backend backend;
	struct params *params;
	struct graph *graph;
	struct program *program;
	struct attention_inputs in;
	struct tensor *query_bias, *x;
	struct attention_outputs out;
	struct tensor *y, *probe;
};

static void build(struct fixture *f, const struct setting *s, enum dtype type, int threads)
{
	const struct program_options options = { .check_nan = true };
	struct graph *g;
	struct error err;

	*f = (struct fixture){ .backend = backend_for_tests(FLOAT32, threads) };
	must(params_create(&f->params, type, &err), &err);
	must(graph_create(&g, f->params, true, &err), &err);
	f->graph = g;
	f->in.q = graph_input(g, "q", type, 4, SHAPE(s->B, s->T, s->H, s->K));
	f->in.k = graph_input(g, "k", type, 4, SHAPE(s->B, s->T, s->key_heads, s->K));
	f->in.v = graph_input(g, "v", type, 4, SHAPE(s->B, s->T, s->value_heads, s->D));
	if (s->key_bias)
		f->in.key_bias =
			graph_input(g, "key_bias", type, 3, SHAPE(s->B, s->T, s->key_heads));
	if (s->learned_band)
		f->in.band = graph_input(g, "band", type, 1, SHAPE(1));
	if (s->distance_bias)
		f->in.distance_bias = graph_input(g, "distance", type, 2, SHAPE(s->H, s->T));
	f->query_bias = graph_input(g, "query_bias", type, 3, SHAPE(s->B, s->T, s->H));
	f->x = graph_input(g, "x", type, 3, SHAPE(s->B, s->T, CHANNELS));
	f->out = op_attention(g, "attention", &s->attr, &f->in);
	if (s->attr.route.mode == ROUTE_TOPK)
		f->y = op_mix_topk(g, "mix", f->x, f->out.route_index, f->out.route_weight);
	else if (s->attr.route.mode != ROUTE_NONE)
		f->y = op_mix_rows(g, "mix", f->x, &s->attr, &f->in, f->out.lse);
	f->probe =
		op_attention_probe(g, "probe", &s->attr, &f->in, f->query_bias, f->out.lse, WINDOW);
	graph_output(g, "o", f->out.o);
	graph_output(g, "lse", f->out.lse);
	graph_output(g, "probe", f->probe);
	if (f->y)
		graph_output(g, "y", f->y);
	if (f->out.route_index) {
		graph_output(g, "index", f->out.route_index);
		graph_output(g, "weight", f->out.route_weight);
	}
	must(graph_finish(g, &err), &err);
	must(params_allocate(f->params, &f->backend, false, &err), &err);
	must(program_create(&f->program, g, &f->backend, &options, &err), &err);
}

static void destroy(struct fixture *f)
{
	program_destroy(f->program);
	graph_destroy(f->graph);
	params_destroy(f->params);
}

static void upload(struct fixture *f, const struct tensor *t, const double *values)
{
	const int64_t n = t ? tensor_count(t) : 0;
	float *narrow = malloc((size_t)n * sizeof(*narrow) + 1);

	for (int64_t i = 0; i < n; i++)
		narrow[i] = (float)values[i];
	if (t)
		program_upload(f->program, t, t->type == F64 ? (const void *)values : narrow);
	free(narrow);
}

static void run(struct fixture *f, const struct numbers *n)
{
	const struct run r = { .seed = SEED, .iteration = ITERATION, .micro = MICRO };
	struct error err;

	upload(f, f->in.q, n->q);
	upload(f, f->in.k, n->k);
	upload(f, f->in.v, n->v);
	upload(f, f->in.key_bias, n->key_bias);
	upload(f, f->in.band, n->band);
	upload(f, f->in.distance_bias, n->distance_bias);
	upload(f, f->query_bias, n->query_bias);
	upload(f, f->x, n->x);
	must(program_run(f->program, &r, &err), &err);
}

static double *download(const struct fixture *f, const struct tensor *t)
{
	const int64_t n = tensor_count(t);
	double *values = zeros(n);
	float *narrow = malloc((size_t)n * sizeof(*narrow));

	program_download(f->program, t, t->type == F64 ? (void *)values : narrow);
	for (int64_t i = 0; i < n && t->type == F32; i++)
		values[i] = (double)narrow[i];
	free(narrow);
	return values;
}

static void check(const struct fixture *f, const struct setting *s, const struct tensor *t,
		  const double *expected)
{
	const double error = t->type == F64 ? DOUBLE_ERROR : FLOAT_ERROR;
	double *values = download(f, t);

	for (int64_t i = 0; i < tensor_count(t); i++)
		if (!(fabs(values[i] - expected[i]) <= error * fmax(1, fabs(expected[i]))))
			fail_msg("%s, %s, %d threads: %s[%lld] is %.15g, expected %.15g", s->name,
				 dtype_name(t->type), f->backend.threads, t->name, (long long)i,
				 values[i], expected[i]);
	free(values);
}

/* The indices of a row are different keys it may see, or -1 at its end. */
static void check_index(const struct fixture *f, const struct setting *s, const struct numbers *n)
{
	const int64_t k = f->out.route_index->dim[2], rows = s->B * s->T;
	int32_t *index = malloc((size_t)(rows * k) * sizeof(*index));
	double *weight = download(f, f->out.route_weight), *dense = zeros(rows * s->T);

	assert_int_equal(k, s->attr.route.k < s->T ? s->attr.route.k : s->T);
	program_download(f->program, f->out.route_index, index);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < k; i++) {
			int32_t j = index[r * k + i];

			if (i > r % s->T) {
				assert_int_equal(j, -1);
				continue;
			}
			assert_in_range(j, 0, r % s->T);
			assert_true(dense[r * s->T + j] == 0);
			dense[r * s->T + j] = weight[r * k + i];
		}
	for (int64_t i = 0; i < rows * s->T && f->params->type == F64; i++)
		if (!(fabs(dense[i] - n->route[i]) <= DOUBLE_ERROR))
			fail_msg("%s: routing entry %lld is %g, expected %g", s->name, (long long)i,
				 dense[i], n->route[i]);
	free(index);
	free(weight);
	free(dense);
}

static void compare(const struct setting *s, const struct numbers *n, enum dtype type, int threads)
{
	struct fixture f;

	build(&f, s, type, threads);
	run(&f, n);
	check(&f, s, f.out.o, n->o);
	check(&f, s, f.out.lse, n->lse);
	check(&f, s, f.probe, n->probe);
	if (f.y)
		check(&f, s, f.y, n->y);
	if (f.out.route_index)
		check_index(&f, s, n);
	destroy(&f);
}

static void matches_plain_loops(void **state)
{
	(void)state;
	for (const struct setting *s = settings; s->name; s++) {
		struct numbers n = naive(s);

		for (int threads = 1; threads <= 3; threads++) {
			compare(s, &n, F64, threads);
			compare(s, &n, F32, threads);
		}
		free_numbers(&n);
	}
}

/* ---------------------------------------------------------------- the rest */

/* For queries of zeros all keys are equal: the first k are taken. */
static void ties_go_to_the_earlier_key(void **state)
{
	const struct setting s = { "ties",
				   1,
				   40,
				   2,
				   4,
				   2,
				   2,
				   2,
				   false,
				   false,
				   ROUTED(.mode = ROUTE_TOPK, .k = 3, .normalize = true) };
	struct numbers n = naive(&s);
	int32_t index[40 * 3];
	struct fixture f;
	double *weight;

	(void)state;
	memset(n.q, 0, (size_t)(s.T * s.H * s.K) * sizeof(*n.q));
	build(&f, &s, F32, 2);
	run(&f, &n);
	program_download(f.program, f.out.route_index, index);
	weight = download(&f, f.out.route_weight);
	for (int t = 0; t < 40; t++)
		for (int i = 0; i < 3; i++) {
			assert_int_equal(index[t * 3 + i], i <= t ? i : -1);
			assert_true(fabs(weight[t * 3 + i] -
					 (i <= t ? 1.0 / (t < 2 ? t + 1 : 3) : 0)) < 1e-6);
		}
	free(weight);
	destroy(&f);
	free_numbers(&n);
}

/* Scores far below the largest, and scores that would overflow exp, give the right result. */
static void survives_large_scores(void **state)
{
	struct setting s = { "large", 1, 50, 2, 4, 2, 2, 2, false, false, PLAIN };
	struct numbers n;
	struct fixture f;
	double *o;

	(void)state;
	s.attr.scale = 3000;
	n = naive(&s);
	build(&f, &s, F32, 1);
	run(&f, &n);
	o = download(&f, f.out.o);
	for (int64_t i = 0; i < tensor_count(f.out.o); i++)
		assert_true(fabs(o[i]) < 10);
	free(o);
	destroy(&f);
	free_numbers(&n);
}

static size_t workspace(int64_t T, enum op_id id, enum pass pass)
{
	struct setting s = {
		"memory",
		1,
		T,
		4,
		16,
		16,
		1,
		4,
		true,
		true,
		.attr = { .scale = 1, .band_window = 8, .route = { .mode = ROUTE_RMS, .tau = 1 } }
	};
	bool found = false;
	size_t bytes = 0;
	struct fixture f;

	build(&f, &s, F32, 2);
	for (int i = 0; i < f.graph->n_nodes; i++)
		if (f.graph->nodes[i]->id == id) {
			bytes = f.backend.kernels(F32)[id]->workspace(f.graph->nodes[i], pass, 2);
			found = true;
		}
	assert_true(found);
	destroy(&f);
	return bytes;
}

static void memory_is_linear(void **state)
{
	static const struct {
		enum op_id id;
		enum pass pass;
	} passes[] = { { OP_attention, PASS_FORWARD },
		       { OP_attention, PASS_BACKWARD },
		       { OP_mix_rows, PASS_FORWARD },
		       { OP_mix_rows, PASS_BACKWARD },
		       { OP_attention_probe, PASS_FORWARD } };

	(void)state;
	for (size_t i = 0; i < sizeof(passes) / sizeof(*passes); i++) {
		const size_t once = workspace(1024, passes[i].id, passes[i].pass);

		assert_true(workspace(4096, passes[i].id, passes[i].pass) <= 4 * once);
	}
}

/* A change to a valid node, and what the error must say. */
struct misfit {
	const char *says;
	struct setting setting;
	int64_t window; /* of the probe */
};

static void misfit_fails(const struct misfit *m)
{
	const struct setting *s = &m->setting;
	struct attention_inputs in = { 0 };
	struct attention_outputs out;
	struct params *params;
	struct graph *g;
	struct error err;

	must(params_create(&params, F32, &err), &err);
	must(graph_create(&g, params, true, &err), &err);
	in.q = graph_input(g, "q", F32, 4, SHAPE(s->B, s->T, s->H, s->K));
	in.k = graph_input(g, "k", F32, 4, SHAPE(s->B, s->T, s->key_heads, s->K));
	in.v = graph_input(g, "v", F32, 4, SHAPE(s->B, s->T, s->value_heads, s->D));
	if (s->key_bias)
		in.key_bias = graph_input(g, "key_bias", F32, 3, SHAPE(s->B, s->T, s->H));
	if (s->learned_band)
		in.band = graph_input(g, "band", F32, 1, SHAPE(1));
	out = op_attention(g, "attention", &s->attr, &in);
	op_mix_rows(g, "mix", graph_input(g, "x", F32, 3, SHAPE(s->B, s->T, 2)), &s->attr, &in,
		    out.lse);
	op_attention_probe(g, "probe", &s->attr, &in, NULL, out.lse, m->window);
	assert_int_equal(graph_finish(g, &err), FAIL);
	if (!strstr(err.text, m->says))
		fail_msg("'%s' is not in '%s'", m->says, err.text);
	graph_destroy(g);
	params_destroy(params);
}

static void misfits_are_refused(void **state)
{
#define FITS "", 2, 8, 4, 6, 6
#define ATTR(...) .attr = {.scale = 1, .band_window = -1, .route.mode = ROUTE_DENSE, __VA_ARGS__ }
	static const struct misfit misfits[] = {
		{ "k must be", { FITS, 3, 4, false, false, ATTR(.band = 0) }, 1 },
		{ "v must be", { FITS, 4, 3, false, false, ATTR(.band = 0) }, 1 },
		{ "bias of the keys", { FITS, 2, 4, true, false, ATTR(.band = 0) }, 1 },
		{ "no window", { FITS, 4, 4, false, true, ATTR(.band = 0) }, 1 },
		{ "dropout", { FITS, 4, 4, false, false, ATTR(.dropout = 1) }, 1 },
		{ "dropout", { FITS, 4, 4, false, false, ATTR(.dropout = -0.1) }, 1 },
		{ "finite", { FITS, 4, 4, false, false, ATTR(.band = INFINITY) }, 1 },
		{ "finite", { FITS, 4, 4, false, false, ROUTED(.mode = ROUTE_RMS, .tau = -1) }, 1 },
		{ "at least 1 entry", { FITS, 4, 4, false, false, ROUTED(.mode = ROUTE_TOPK) }, 1 },
		{ "threshold or dense",
		  { FITS, 4, 4, false, false, ROUTED(.mode = ROUTE_TOPK, .k = 1) },
		  1 },
		{ "window of the reciprocity", { FITS, 4, 4, false, false, ATTR(.band = 0) }, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(misfits) / sizeof(*misfits); i++)
		misfit_fails(&misfits[i]);
}

/* Types and dimensions, one wrong tensor at a time. */
static void wrong_tensors_are_refused(void **state)
{
	const struct attention_attr attr = { .scale = 1, .band_window = -1 };

	(void)state;
	for (int wrong = 0; wrong < 8; wrong++) {
		struct attention_inputs in;
		struct params *params;
		struct graph *g;
		struct error err;

		must(params_create(&params, F32, &err), &err);
		must(graph_create(&g, params, true, &err), &err);
		in = (struct attention_inputs){
			.q = graph_input(g, "q", wrong == 0 ? I32 : F32, 4, SHAPE(1, 4, 2, 3)),
			.k = graph_input(g, "k", wrong == 1 ? I32 : F32, 4, SHAPE(1, 4, 2, 3)),
			.v = graph_input(g, "v", F32, wrong == 2 ? 3 : 4, SHAPE(1, 4, 2, 3)),
		};
		if (wrong == 3)
			in.k = graph_input(g, "k5", F32, 4, SHAPE(1, 5, 2, 3));
		if (wrong == 4)
			in.k = graph_input(g, "wide", F32, 4, SHAPE(1, 4, 2, 5));
		if (wrong == 5)
			in.v = graph_slice(g, in.v, 0, 2);
		if (wrong == 6) /* one memory, two tensors */
			in.k = graph_reshape(g, in.q, 4, SHAPE(1, 4, 2, 3));
		if (wrong == 7)
			in.v = graph_reshape(g, in.k, 4, SHAPE(1, 4, 1, 6));
		op_attention(g, "attention", &attr, &in);
		assert_int_equal(graph_finish(g, &err), FAIL);
		assert_non_null(strstr(err.text, "attention 'attention'"));
		graph_destroy(g);
		params_destroy(params);
	}
}

static void no_dropout_outside_training(void **state)
{
	const struct attention_attr attr = { .scale = 1, .band_window = -1, .dropout = 0.5 };
	struct attention_inputs in = { 0 };
	struct params *params;
	struct graph *g;
	struct error err;

	(void)state;
	must(params_create(&params, F32, &err), &err);
	must(graph_create(&g, params, false, &err), &err);
	in.q = in.k = in.v = graph_input(g, "x", F32, 4, SHAPE(1, 4, 2, 3));
	op_attention(g, "attention", &attr, &in);
	assert_true(((const struct attention_attr *)g->nodes[0]->attr)->dropout == 0);
	graph_destroy(g);
	params_destroy(params);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(matches_plain_loops),
		cmocka_unit_test(ties_go_to_the_earlier_key),
		cmocka_unit_test(survives_large_scores),
		cmocka_unit_test(memory_is_linear),
		cmocka_unit_test(misfits_are_refused),
		cmocka_unit_test(wrong_tensors_are_refused),
		cmocka_unit_test(no_dropout_outside_training),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
