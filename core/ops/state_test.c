/*
 * Runs that continue each other: each op that depends on earlier tokens gives the same result in
 * pieces of any sizes as at once.
 */
#include "core/backend/open.h"
#include "core/util/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/ops/op_case.h"
#include "core/engine/program.h"

#define BATCH 3
#define LENGTH 75 /* in pieces: more than one block of queries, a single one, and the rest */
#define CAPACITY 80
#define SEED 11

static const int64_t pieces[][8] = {
	{ 40, 1, 1, 33 },
	{ 1, 1, 1, 1, 70, 1 },
	{ 5, 69, 1 },
	{ 75 },
};
#define SAMPLED_PIECES 2 /* the first ones: single tokens at the beginning, amid and at the end */

struct runner {
	struct graph *g;
	struct program *p;
	struct tensor *x;
	const struct tensor *y;
};

/* One graph of T tokens: `build` gives y [B,T,..] of x [B,T,width]. */
struct continued {
	const char *name;
	int64_t width;
	struct tensor *(*build)(struct graph *g, struct tensor *x);
	bool follows_past; /* on a device, a token's work depends on the tokens before */
};

static void open_runner(struct runner *r, const struct continued *s, struct params *params,
			struct params *state, const struct backend *backend, int64_t T,
			bool check_nan)
{
	const struct program_options options = { .check_nan = check_nan };
	struct error err;

	must(graph_create(&r->g, params, false, &err), &err);
	if (state)
		graph_continue(r->g, state, CAPACITY);
	r->x = graph_input(r->g, "x", F64, 3, SHAPE(BATCH, T, s->width));
	graph_output(r->g, "y", s->build(r->g, r->x));
	must(graph_finish(r->g, &err), &err);
	must(params_allocate(params, backend, false, &err), &err);
	if (state)
		must(params_allocate(state, backend, false, &err), &err);
	must(program_create(&r->p, r->g, backend, &options, &err), &err);
	r->y = graph_find_output(r->g, "y")->tensor;
}

static void close_runner(struct runner *r)
{
	program_destroy(r->p);
	graph_destroy(r->g);
}

static double value(const struct continued *s, int64_t b, int64_t t, int64_t i)
{
	return rng_normal(rng_key(SEED, "x"), (uint64_t)((b * LENGTH + t) * s->width + i));
}

/* Tokens past .. past + T - 1; the caller frees the result. */
static double *run(struct runner *r, const struct continued *s, int64_t past)
{
	const int64_t T = r->x->dim[1];
	const struct run run = { .past = past };
	double *x = malloc(tensor_bytes(r->x)), *y = malloc(tensor_bytes(r->y));
	struct error err;

	for (int64_t i = 0; i < tensor_count(r->x); i++)
		x[i] = value(s, i / (T * s->width), past + i / s->width % T, i % s->width);
	program_upload(r->p, r->x, x);
	must(program_run(r->p, &run, &err), &err);
	program_download(r->p, r->y, y);
	free(x);
	return y;
}

static void check_pieces(const struct continued *s, struct params *params, const double *whole,
			 const int64_t *piece, const struct backend *backend)
{
	struct params *state;
	struct error err;
	int64_t past = 0;

	must(params_create(&state, F64, &err), &err);
	for (; past < LENGTH; past += *piece++) {
		struct runner r;
		double *y;
		int64_t size;

		open_runner(&r, s, params, state, backend, *piece, true);
		y = run(&r, s, past);
		size = tensor_count(r.y) / (BATCH * *piece);
		for (int64_t i = 0; i < tensor_count(r.y); i++) {
			const int64_t b = i / (*piece * size), t = past + i / size % *piece;
			const double expected = whole[(b * LENGTH + t) * size + i % size];

			if (!(fabs(y[i] - expected) <= 1e-12))
				fail_msg("%s: at token %lld after %lld: %.17g, not %.17g", s->name,
					 (long long)t, (long long)past, y[i], expected);
		}
		free(y);
		close_runner(&r);
	}
	params_destroy(state);
}

static void check(void **context)
{
	const struct continued *s = *context;
	const struct backend backend = backend_for_tests(FLOAT32, 2);
	struct params *params;
	struct runner r;
	struct error err;
	const size_t n = test_is_sampled() ? SAMPLED_PIECES : sizeof(pieces) / sizeof(pieces[0]);
	double *whole;

	must(params_create(&params, F64, &err), &err);
	open_runner(&r, s, params, NULL, &backend, LENGTH, true);
	must(params_initialise(params, SEED, &err), &err);
	whole = run(&r, s, 0);
	for (size_t i = 0; i < n; i++)
		check_pieces(s, params, whole, pieces[i], &backend);
	free(whole);
	close_runner(&r);
	params_destroy(params);
}

/* ------------------------------------------------------------------- kept work */

static int replays;
static void (*plain_replay)(const struct backend *b, void *kept);

static void counted_replay(const struct backend *b, void *kept)
{
	replays++;
	plain_replay(b, kept);
}

/* As many as are run one by one. */
static int64_t single_tokens(void)
{
	return test_is_sampled() ? 12 : LENGTH;
}

/* Tokens one by one, with one program; the caller frees the results. */
static double *run_tokens(const struct continued *s, struct params *params,
			  const struct backend *backend)
{
	double *all = NULL;
	struct params *state;
	struct error err;
	struct runner r;

	must(params_create(&state, F64, &err), &err);
	open_runner(&r, s, params, state, backend, 1, false);
	for (int64_t past = 0; past < single_tokens(); past++) {
		const size_t bytes = tensor_bytes(r.y);
		double *y = run(&r, s, past);

		all = realloc(all, (size_t)single_tokens() * bytes);
		memcpy((char *)all + (size_t)past * bytes, y, bytes);
		free(y);
	}
	close_runner(&r);
	params_destroy(state);
	return all;
}

/* A device that keeps the work of a token and does it again gives the same bits as one that does
 * not. */
static void check_kept(void **context)
{
	const struct continued *s = *context;
	struct backend backend = backend_for_tests(FLOAT32, 2);
	double *kept, *asked;
	struct params *params;
	struct runner r;
	struct error err;

	plain_replay = backend.replay;
	backend.replay = counted_replay;
	replays = 0;
	must(params_create(&params, F64, &err), &err);
	kept = run_tokens(s, params, &backend);
	assert_int_equal(replays, s->follows_past ? 0 : single_tokens() - 1);
	backend.capture = NULL;
	asked = run_tokens(s, params, &backend);
	open_runner(&r, s, params, NULL, &backend, 1, false);
	assert_memory_equal(kept, asked, (size_t)single_tokens() * tensor_bytes(r.y));
	close_runner(&r);
	free(kept);
	free(asked);
	params_destroy(params);
}

/* ----------------------------------------------------------------- continued_graphs */

static struct tensor *build_mean(struct graph *g, struct tensor *x)
{
	return op_running_mean(g, "mean", x);
}

static struct tensor *build_mean_of_slice(struct graph *g, struct tensor *x)
{
	return op_running_mean(g, "mean", graph_slice(g, x, 8, 62));
}

static struct tensor *build_sum(struct graph *g, struct tensor *x)
{
	return op_cumsum(g, "sum", x);
}

static struct tensor *build_scan(struct graph *g, struct tensor *x)
{
	struct tensor *gate = op_sigmoid(g, "gate", x);

	return op_scan(g, "scan", graph_slice(g, gate, 0, 35), graph_slice(g, x, 35, 35));
}

/* By fewer tokens than most pieces have, and by more. */
static struct tensor *build_shift(struct graph *g, struct tensor *x)
{
	return op_shift(g, "near", op_shift(g, "far", graph_slice(g, x, 3, 9), 9, 0.5), 2, -1);
}

static struct tensor *heads(struct graph *g, struct tensor *x, int64_t first, int64_t n,
			    int64_t width)
{
	struct tensor *slice = graph_slice(g, x, first, n * width);

	return graph_reshape(g, slice, 4, SHAPE(x->dim[0], x->dim[1], n, width));
}

static struct tensor *build_rope(struct graph *g, struct tensor *x)
{
	return op_rope(g, "rope", heads(g, x, 0, 2, 6), 100, 4);
}

static struct tensor *build_gaussian(struct graph *g, struct tensor *x)
{
	const struct w2_attr attr = { .score = W2_OVERLAP, .eps = 1e-4, .theta = 100 };

	x = graph_reshape(g, x, 4, SHAPE(x->dim[0], x->dim[1], 2, 32));
	return op_w2_gaussian(g, "gaussian", x, NULL, &attr, NULL);
}

/* 2 heads of queries, keys (3), values (4), decays and a beta: 2 (3 + 3 + 4 + 3 + 1) channels. */
static struct tensor *linear(struct graph *g, struct tensor *x, bool per_channel, bool delta)
{
	struct tensor *decay = op_scale(g, "decay", op_softplus(g, "softplus", x, 0), -0.2);
	const struct linear_attention_inputs in = {
		.q = heads(g, x, 0, 2, 3),
		.k = heads(g, op_scale(g, "short", x, 0.3), 6, 2, 3),
		.v = heads(g, x, 12, 2, 4),
		.decay = per_channel ? heads(g, decay, 20, 2, 3) : graph_slice(g, decay, 20, 2),
		.beta = graph_slice(g, op_sigmoid(g, "beta", x), 26, 2),
	};

	return op_linear_attention(g, "scan", &(struct linear_attention_attr){ delta }, &in);
}

static struct tensor *build_gated(struct graph *g, struct tensor *x)
{
	return linear(g, x, true, false);
}

static struct tensor *build_delta(struct graph *g, struct tensor *x)
{
	return linear(g, x, false, true);
}

/* Channels of x: queries of 8 heads, keys and values of `shared` heads, a bias per key. */
#define CHANNELS(shared, k, v) (8 * (k) + (shared) * ((k) + (v) + 1))
#define Q_WIDTH 5
#define V_WIDTH 10
#define ATTENTION_CHANNELS(shared) CHANNELS(shared, Q_WIDTH, V_WIDTH)

struct attending {
	int64_t shared;
	int64_t q_width, v_width; /* 0: Q_WIDTH, V_WIDTH */
	bool key_bias, distance_bias;
	struct attention_attr attr;
};

static struct tensor *distances(struct graph *g, int64_t H, int64_t S)
{
	double *values = malloc((size_t)(H * S) * sizeof(*values));
	struct tensor *t;

	for (int64_t i = 0; i < H * S; i++)
		values[i] =
			rng_normal(rng_key(SEED, "distance"), (uint64_t)(i / S * CAPACITY + i % S));
	t = graph_constant(g, "distance", g->type, 2, SHAPE(H, S), values);
	free(values);
	return t;
}

static struct attention_inputs inputs(struct graph *g, struct tensor *x, const struct attending *a)
{
	const int64_t qw = a->q_width ? a->q_width : Q_WIDTH,
		      vw = a->v_width ? a->v_width : V_WIDTH;
	const int64_t k = 8 * qw, v = k + a->shared * qw, bias = v + a->shared * vw;
	struct attention_inputs in = {
		.q = heads(g, x, 0, 8, qw),
		.k = heads(g, x, k, a->shared, qw),
		.v = heads(g, x, v, a->shared, vw),
	};

	if (a->key_bias)
		in.key_bias = graph_slice(g, x, bias, a->shared);
	if (a->distance_bias)
		in.distance_bias = distances(g, 8, g->state ? CAPACITY : x->dim[1]);
	op_cache_all(g, "kept", (struct tensor * *const[]){ &in.k, &in.v, &in.key_bias }, 3);
	if (a->attr.band_window >= 0)
		in.recent = op_recent_tokens(g, "recent", in.q, a->attr.band_window);
	return in;
}

static struct tensor *attend(struct graph *g, struct tensor *x, const struct attending *a)
{
	const struct attention_inputs in = inputs(g, x, a);

	return op_attention(g, "attention", &a->attr, &in).o;
}

static struct tensor *route(struct graph *g, struct tensor *x, const struct attending *a)
{
	const struct attention_inputs in = inputs(g, x, a);
	const struct attention_outputs out = op_attention(g, "attention", &a->attr, &in);
	struct tensor *mixed = op_cache(g, "mixed", op_gelu(g, "gelu", x));

	return a->attr.route.mode == ROUTE_TOPK
		       ? op_mix_topk(g, "mix", mixed, out.route_index, out.route_weight)
		       : op_mix_rows(g, "mix", mixed, &a->attr, &in, out.lse);
}

/* A function of x for every case. */
#define ATTENTION(function, name, heads_of_keys, ...)                                \
	static struct tensor *build_##name(struct graph *g, struct tensor *x)        \
	{                                                                            \
		const struct attending a = { .shared = heads_of_keys, __VA_ARGS__ }; \
                                                                                     \
		return function(g, x, &a);                                           \
	}

#define NO_BAND .scale = 0.5, .band_window = -1

ATTENTION(attend, plain, 8, .attr = { NO_BAND })
ATTENTION(attend, groups, 4, .key_bias = true, .attr = { NO_BAND })
ATTENTION(attend, one_key, 1, .key_bias = true, .distance_bias = true, .attr = { NO_BAND })
ATTENTION(attend, heads_of_64, 8, .q_width = 64, .v_width = 64,
	  .attr = { .scale = 0.1, .band_window = -1 })
ATTENTION(attend, wide_keys, 8, .q_width = 72, .v_width = 32, .key_bias = true,
	  .distance_bias = true, .attr = { .scale = 0.1, .band_window = -1 })
ATTENTION(attend, wide_groups, 2, .q_width = 32, .v_width = 48, .key_bias = true,
	  .distance_bias = true, .attr = { .scale = 0.1, .band_window = -1 })
ATTENTION(attend, latent, 1, .q_width = 130, .v_width = 110,
	  .attr = { .scale = 0.1, .band_window = -1 })
ATTENTION(attend, window, 8, .key_bias = true, .attr = { NO_BAND, .window = 11 })
ATTENTION(attend, sinks, 2, .q_width = 32, .v_width = 48, .distance_bias = true,
	  .attr = { NO_BAND, .window = 9, .sinks = 3, .softcap = 1.5 })
ATTENTION(attend, sinks_of_one_key, 1, .q_width = 64, .v_width = 64, .distance_bias = true,
	  .attr = { NO_BAND, .window = 9, .sinks = 3, .softcap = 1.5 })
ATTENTION(attend, band, 2, .attr = { .scale = 0.5, .band_window = 7, .band = 0.8 })
ATTENTION(attend, band_own, 8, .attr = { .scale = 0.5, .band_window = 0, .band = 0.8 })
ATTENTION(attend, band_wide, 1, .distance_bias = true,
	  .attr = { .scale = 0.5, .band_window = 90, .band = 0.8 })
ATTENTION(route, topk, 4, .attr = { NO_BAND, .route = { .mode = ROUTE_TOPK, .k = 9 } })
ATTENTION(route, topk_maximum, 1,
	  .attr = { .scale = 0.5,
		    .band_window = 5,
		    .band = 0.8,
		    .route = {
			    .mode = ROUTE_TOPK, .k = 3, .normalize = true, .head_maximum = true } })
ATTENTION(route, dense, 8, .key_bias = true, .distance_bias = true,
	  .attr = { NO_BAND, .route = { .mode = ROUTE_DENSE } })
ATTENTION(route, rms, 1,
	  .attr = { .scale = 0.5,
		    .band_window = 5,
		    .band = 0.8,
		    .route = { .mode = ROUTE_RMS, .tau = 0.9, .normalize = true } })

static const struct continued continued_graphs[] = {
	{ "running mean", 70, build_mean, false },
	{ "running mean of a slice", 70, build_mean_of_slice, false },
	{ "cumulative sum", 70, build_sum, false },
	{ "scan", 70, build_scan, false },
	{ "shift", 12, build_shift, false },
	{ "gated linear attention", 28, build_gated, false },
	{ "gated delta rule", 28, build_delta, false },
	{ "rope", 12, build_rope, false },
	{ "rotated Gaussians", 64, build_gaussian, false },
	{ "attention", ATTENTION_CHANNELS(8), build_plain, false },
	{ "attention, groups of heads", ATTENTION_CHANNELS(4), build_groups, false },
	{ "attention, one key for all heads", ATTENTION_CHANNELS(1), build_one_key, false },
	{ "attention, 64 channels", CHANNELS(8, 64, 64), build_heads_of_64, false },
	{ "attention, wide keys", CHANNELS(8, 72, 32), build_wide_keys, false },
	{ "attention, wide groups", CHANNELS(2, 32, 48), build_wide_groups, false },
	{ "attention, one latent for all heads", CHANNELS(1, 130, 110), build_latent, false },
	{ "attention, window", ATTENTION_CHANNELS(8), build_window, false },
	{ "attention, window with sinks", CHANNELS(2, 32, 48), build_sinks, false },
	{ "attention, sinks of one key", CHANNELS(1, 64, 64), build_sinks_of_one_key, false },
	{ "attention, band", ATTENTION_CHANNELS(2), build_band, false },
	{ "attention, band of the diagonal", ATTENTION_CHANNELS(8), build_band_own, false },
	{ "attention, band wider than the sequence", ATTENTION_CHANNELS(1), build_band_wide,
	  false },
	{ "routing, topk", ATTENTION_CHANNELS(4), build_topk, true },
	{ "routing, topk of the maximum, band", ATTENTION_CHANNELS(1), build_topk_maximum, true },
	{ "routing, dense", ATTENTION_CHANNELS(8), build_dense, true },
	{ "routing, rms, band", ATTENTION_CHANNELS(1), build_rms, true },
};

/* ------------------------------------------------------------------ refusals */

struct refusal {
	struct params *params, *state;
	struct graph *g;
	struct error err;
};

static void open_refusal(struct refusal *r)
{
	must(params_create(&r->params, F64, &r->err), &r->err);
	must(params_create(&r->state, F64, &r->err), &r->err);
	must(graph_create(&r->g, r->params, false, &r->err), &r->err);
	graph_continue(r->g, r->state, 4);
}

static void close_refusal(struct refusal *r)
{
	graph_destroy(r->g);
	params_destroy(r->state);
	params_destroy(r->params);
}

static void test_training_is_refused(void **context)
{
	const struct program_options train = { .train = true };
	const struct backend backend = backend_for_tests(FLOAT32, 1);
	struct program *p;
	struct refusal r;

	(void)context;
	open_refusal(&r);
	graph_seeded_output(r.g, "y", op_running_mean(r.g, "mean", case_param(r.g, "x", 1, 2, 3)));
	must(graph_finish(r.g, &r.err), &r.err);
	must(params_allocate(r.params, &backend, true, &r.err), &r.err);
	assert_int_equal(program_create(&p, r.g, &backend, &train, &r.err), FAIL);
	assert_non_null(strstr(r.err.text, "no memory"));
	must(params_allocate(r.state, &backend, false, &r.err), &r.err);
	assert_int_equal(program_create(&p, r.g, &backend, &train, &r.err), FAIL);
	assert_non_null(strstr(r.err.text, "cannot be trained"));
	close_refusal(&r);
}

static void test_probe_is_refused(void **context)
{
	const struct attention_attr attr = { .scale = 1, .band_window = -1 };
	struct refusal r;
	struct tensor *q, *k, *lse;

	(void)context;
	open_refusal(&r);
	q = case_input(r.g, "q", F64, 1, 1, 2, 3);
	k = op_cache(r.g, "k", case_input(r.g, "new", F64, 1, 1, 2, 3));
	lse = case_input(r.g, "lse", F64, 1, 2, 1);
	op_attention_probe(r.g, "probe", &attr, &(struct attention_inputs){ .q = q, .k = k }, NULL,
			   lse, 1);
	assert_int_equal(graph_finish(r.g, &r.err), FAIL);
	assert_non_null(strstr(r.err.text, "whole rows"));
	close_refusal(&r);
}

static void test_too_long_is_refused(void **context)
{
	struct refusal r;

	(void)context;
	open_refusal(&r);
	op_cache(r.g, "kept", case_input(r.g, "x", F64, 1, 5, 3));
	assert_int_equal(graph_finish(r.g, &r.err), FAIL);
	assert_non_null(strstr(r.err.text, "5 tokens are more than the 4"));
	close_refusal(&r);
}

#define SUBJECTS (sizeof(continued_graphs) / sizeof(continued_graphs[0]))

int main(void)
{
	struct CMUnitTest tests[SUBJECTS + 3] = {
		[SUBJECTS] = cmocka_unit_test(test_training_is_refused),
		[SUBJECTS + 1] = cmocka_unit_test(test_probe_is_refused),
		[SUBJECTS + 2] = cmocka_unit_test(test_too_long_is_refused),
	};
	struct CMUnitTest kept[SUBJECTS];
	int failed;

	for (size_t i = 0; i < SUBJECTS; i++) {
		tests[i] = (struct CMUnitTest){
			.name = continued_graphs[i].name,
			.test_func = check,
			.initial_state = (void *)(uintptr_t)&continued_graphs[i],
		};
		kept[i] = tests[i];
		kept[i].test_func = check_kept;
	}
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	if (backend_for_tests(FLOAT32, 2).capture)
		failed += cmocka_run_group_tests(kept, NULL, NULL);
	return failed;
}
