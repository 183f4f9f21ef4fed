/*
 * Linear attention in chunks gives what its definition gives, token by token in plain loops over
 * doubles.  Gates may be so small that a chunk's product is 0.
 */
#include <math.h>
#include <stdlib.h>

#include "core/backend/open.h"
#include "core/engine/program.h"
#include "core/ops/linear_attention.h"
#include "core/ops/op_case.h"
#include "core/util/test.h"

enum { B = 2, H = 2, K = 3, D = 4, T = 2 * LINEAR_ATTENTION_CHUNK + 5, SEED = 5 };

struct setting {
	int64_t G; /* decays per head: 0, 1 or K */
	bool beta, delta;
	double strength; /* of the decays */
};

static const struct setting settings[] = {
	{ 0, false, false, 0 },	 { 0, true, true, 0 },	   { 1, false, false, 0.02 },
	{ 1, true, true, 0.02 }, { K, false, false, 0.1 }, { K, true, true, 0.1 },
	{ 1, true, true, 1000 }, { K, true, true, 1000 },
};

struct numbers {
	double q[B * T * H * K], k[B * T * H * K], v[B * T * H * D];
	double decay[B * T * H * K], beta[B * T * H], o[B * T * H * D];
};

static void draw(struct numbers *x, const struct setting *s)
{
	for (int64_t i = 0; i < B * T * H * K; i++) {
		x->q[i] = rng_normal(rng_key(SEED, "q"), (uint64_t)i);
		x->k[i] = 0.4 * rng_normal(rng_key(SEED, "k"), (uint64_t)i);
		x->decay[i] = -s->strength * rng_uniform(rng_key(SEED, "decay"), (uint64_t)i);
	}
	for (int64_t i = 0; i < B * T * H * D; i++)
		x->v[i] = rng_normal(rng_key(SEED, "v"), (uint64_t)i);
	for (int64_t i = 0; i < B * T * H; i++)
		x->beta[i] = s->beta ? rng_uniform(rng_key(SEED, "beta"), (uint64_t)i) : 1;
}

/* One token of one head, number `at` of all: its state is [D,K]. */
static void step(const struct setting *s, struct numbers *x, int64_t at, double *state)
{
	const double *q = x->q + at * K, *k = x->k + at * K;

	for (int64_t d = 0; d < D; d++, state += K) {
		double seen = 0, out = 0;

		for (int64_t c = 0; c < K; c++) {
			state[c] *= s->G ? exp(x->decay[at * s->G + (s->G > 1 ? c : 0)]) : 1;
			seen += s->delta ? state[c] * k[c] : 0;
		}
		for (int64_t c = 0; c < K; c++) {
			state[c] += x->beta[at] * (x->v[at * D + d] - seen) * k[c];
			out += state[c] * q[c];
		}
		x->o[at * D + d] = out;
	}
}

static void scan(const struct setting *s, struct numbers *x)
{
	for (int64_t b = 0; b < B; b++)
		for (int64_t h = 0; h < H; h++) {
			double state[D * K] = { 0 };

			for (int64_t t = 0; t < T; t++)
				step(s, x, (b * T + t) * H + h, state);
		}
}

static void compare(const struct setting *s, const struct numbers *x, const double *o)
{
	for (int64_t i = 0; i < B * T * H * D; i++)
		if (!(fabs(o[i] - x->o[i]) <= 1e-11))
			fail_msg("%lld decays, strength %g%s: o[%lld] is %.15g, not %.15g",
				 (long long)s->G, s->strength, s->delta ? ", delta" : "",
				 (long long)i, o[i], x->o[i]);
}

static void check(const struct setting *s, struct numbers *x, double *o)
{
	const struct backend backend = backend_for_tests(FLOAT64, 2);
	const struct program_options options = { .check_nan = true };
	const struct linear_attention_attr attr = { s->delta };
	const struct run once = { 0 };
	struct linear_attention_inputs in;
	struct params *params;
	struct program *p;
	struct graph *g;
	struct error err;

	must(params_create(&params, F64, &err), &err);
	must(graph_create(&g, params, false, &err), &err);
	in.q = case_input(g, "q", F64, B, T, H, K);
	in.k = case_input(g, "k", F64, B, T, H, K);
	in.v = case_input(g, "v", F64, B, T, H, D);
	in.decay = s->G == 0   ? NULL
		   : s->G == 1 ? case_input(g, "decay", F64, B, T, H)
			       : case_input(g, "decay", F64, B, T, H, K);
	in.beta = s->beta ? case_input(g, "beta", F64, B, T, H) : NULL;
	graph_output(g, "o", op_linear_attention(g, "scan", &attr, &in));
	must(graph_finish(g, &err), &err);
	must(params_allocate(params, &backend, false, &err), &err);
	must(program_create(&p, g, &backend, &options, &err), &err);
	program_upload(p, in.q, x->q);
	program_upload(p, in.k, x->k);
	program_upload(p, in.v, x->v);
	if (in.decay)
		program_upload(p, in.decay, x->decay);
	if (in.beta)
		program_upload(p, in.beta, x->beta);
	must(program_run(p, &once, &err), &err);
	program_download(p, graph_find_output(g, "o")->tensor, o);
	compare(s, x, o);
	program_destroy(p);
	graph_destroy(g);
	params_destroy(params);
}

static void test_chunks_are_the_scan(void **state)
{
	struct numbers *x = malloc(sizeof(*x));
	double *o = malloc(sizeof(x->o));

	(void)state;
	for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++) {
		draw(x, &settings[i]);
		scan(&settings[i], x);
		check(&settings[i], x, o);
	}
	free(o);
	free(x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_chunks_are_the_scan),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
