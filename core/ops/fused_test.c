/* Fused ops against the same computation in pieces, in double: values and gradients. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/backend/open.h"
#include "core/ops/op_case.h"
#include "core/engine/program.h"
#include "core/util/test.h"

#define SEED 3
/* Sums in another order; largest difference seen 4e-16 of the largest entry. */
#define TOLERANCE 1e-13

struct side {
	struct params *params;
	struct graph *g;
	struct program *p;
};

static const struct backend *cpu(void)
{
	static struct backend backend;

	backend = backend_for_tests(FLOAT32, 2);
	return &backend;
}

static void fill(struct side *s, const struct tensor *t)
{
	int32_t ints[64];
	double reals[64];

	assert_true(tensor_count(t) <= 64);
	for (int64_t i = 0; i < tensor_count(t); i++) {
		ints[i] = i % 4 == 2 ? -1 : (int32_t)(i * 5 % 7);
		reals[i] = 0.25 + 0.5 * (double)i;
	}
	program_upload(s->p, t, t->type == I32 ? (const void *)ints : (const void *)reals);
}

static struct side run(void (*build)(struct graph *g))
{
	const struct program_options options = { .train = true, .check_nan = true };
	const struct run once = { .seed = SEED, .iteration = 1 };
	struct error err;
	struct side s;

	must(params_create(&s.params, F64, &err), &err);
	must(graph_create(&s.g, s.params, true, &err), &err);
	build(s.g);
	must(graph_finish(s.g, &err), &err);
	must(params_allocate(s.params, cpu(), true, &err), &err);
	must(params_initialise(s.params, SEED, &err), &err);
	must(program_create(&s.p, s.g, cpu(), &options, &err), &err);
	for (int i = 0; i < s.g->n_tensors; i++)
		if (s.g->tensors[i]->kind == TENSOR_INPUT)
			fill(&s, s.g->tensors[i]);
	for (int i = 0; i < s.g->n_outputs; i++)
		if (s.g->outputs[i].seeded) {
			double seed[512];

			for (int64_t j = 0; j < tensor_count(s.g->outputs[i].tensor); j++)
				seed[j] = rng_normal(rng_key(SEED, s.g->outputs[i].name),
						     (uint64_t)j);
			program_upload_seed(s.p, s.g->outputs[i].tensor, seed);
		}
	must(program_run(s.p, &once, &err), &err);
	return s;
}

static void destroy(struct side *s)
{
	program_destroy(s->p);
	graph_destroy(s->g);
	params_destroy(s->params);
}

static void assert_close(const double *a, const double *b, int64_t n, const char *name)
{
	double most = 0;

	for (int64_t i = 0; i < n; i++)
		most = fmax(most, fabs(b[i]));
	for (int64_t i = 0; i < n; i++)
		if (!(fabs(a[i] - b[i]) <= TOLERANCE * fmax(most, 1)))
			fail_msg("%s[%lld]: %.17g fused, %.17g in pieces", name, (long long)i, a[i],
				 b[i]);
}

/* Outputs and parameters of the same names must agree. */
static void compare(void (*fused)(struct graph *g), void (*pieces)(struct graph *g))
{
	struct side a = run(fused), b = run(pieces);
	static double x[4096], y[4096];
	struct error err;

	for (int i = 0; i < a.g->n_outputs; i++) {
		const struct graph_output *o = &a.g->outputs[i];
		const struct graph_output *other = graph_find_output(b.g, o->name);

		assert_non_null(other);
		program_download(a.p, o->tensor, x);
		program_download(b.p, other->tensor, y);
		assert_close(x, y, tensor_count(o->tensor), o->name);
	}
	assert_int_equal(a.params->n, b.params->n);
	for (int i = 0; i < a.params->n; i++) {
		int j = params_find(b.params, a.params->list[i].name);

		must(param_get(a.params, i, true, x, &err), &err);
		must(param_get(b.params, j, true, y, &err), &err);
		assert_close(x, y, a.params->list[i].count, a.params->list[i].name);
	}
	destroy(&a);
	destroy(&b);
}

/* ------------------------------------------------- the residual inside the norm */

static enum norm_kind kind;

static void norm_fused(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 3, 5, 8), *r = case_param(g, "r", 3, 5, 8), *sum, *y;

	y = op_norm(g, "y", kind, 1e-5, x, r, case_param(g, "w", 8),
		    kind == NORM_LAYER ? case_param(g, "b", 8) : NULL, &sum);
	graph_seeded_output(g, "y", y);
	graph_seeded_output(g, "sum", sum);
}

static void norm_pieces(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 3, 5, 8), *r = case_param(g, "r", 3, 5, 8);
	struct tensor *sum = op_add(g, "added", x, r), *same;

	graph_seeded_output(g, "y",
			    op_norm(g, "y", kind, 1e-5, sum, NULL, case_param(g, "w", 8),
				    kind == NORM_LAYER ? case_param(g, "b", 8) : NULL, &same));
	/* its own node: an output's gradient is given from outside */
	graph_seeded_output(g, "sum", op_scale(g, "sum", sum, 1));
}

static void test_norm_with_residual(void **state)
{
	(void)state;
	kind = NORM_LAYER;
	compare(norm_fused, norm_pieces);
	kind = NORM_RMS;
	compare(norm_fused, norm_pieces);
}

/* ------------------------------------------------------------ gates and factors */

static void gate_fused(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 7, 9), *gate = case_param(g, "gate", 7, 9);

	graph_seeded_output(g, "y", op_silu_gate(g, "y", gate, x));
	graph_seeded_output(g, "z",
			    op_add_scaled(g, "z", case_param(g, "a", 4, 3),
					  case_param(g, "b", 4, 3), 0.3,
					  case_param(g, "alpha", 1)));
}

static void gate_pieces(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 7, 9), *gate = case_param(g, "gate", 7, 9);
	struct tensor *silu = op_multiply(g, "silu", gate, op_sigmoid(g, "open", gate));

	graph_seeded_output(g, "y", op_multiply(g, "y", silu, x));
	graph_seeded_output(g, "z",
			    op_add(g, "z", case_param(g, "a", 4, 3),
				   op_multiply(g, "scaled", case_param(g, "b", 4, 3),
					       case_param(g, "alpha", 1))));
}

static void test_gates(void **state)
{
	(void)state;
	compare(gate_fused, gate_pieces);
}

/* ------------------------------------------------ shared keys against repeated ones */

static struct attention_outputs attend(struct graph *g, struct tensor *q, struct tensor *k,
				       struct tensor *v)
{
	const struct attention_attr attr = { .scale = 0.4, .band_window = -1 };
	const struct attention_inputs in = { .q = q, .k = k, .v = v };

	return op_attention(g, "heads", &attr, &in);
}

static void shared_keys(struct graph *g)
{
	struct tensor *k = case_param(g, "k", 2, 7, 1, 3);

	graph_seeded_output(
		g, "o",
		attend(g, case_param(g, "q", 2, 7, 4, 3), k, case_param(g, "v", 2, 7, 4, 5)).o);
}

/* The identity per head repeats the keys: y_h = k I. */
static void repeated_keys(struct graph *g)
{
	struct tensor *k = case_param(g, "k", 2, 7, 1, 3);
	struct tensor *flat = graph_reshape(g, k, 3, SHAPE(2, 7, 3));
	struct tensor *eye = graph_input(g, "eye", g->type, 3, SHAPE(4, 3, 3));

	graph_seeded_output(g, "o",
			    attend(g, case_param(g, "q", 2, 7, 4, 3),
				   op_head_linear(g, "repeated", flat, eye),
				   case_param(g, "v", 2, 7, 4, 5))
				    .o);
}

static void test_shared_keys(void **state)
{
	struct side a, b;
	double eye[36] = { 0 }, x[280], y[280];
	const struct run once = { .seed = SEED, .iteration = 1 };
	struct error err;

	(void)state;
	for (int h = 0; h < 4; h++)
		for (int i = 0; i < 3; i++)
			eye[h * 9 + i * 4] = 1;
	a = run(shared_keys);
	b = run(repeated_keys);
	for (int i = 0; i < b.g->n_tensors; i++)
		if (b.g->tensors[i]->kind == TENSOR_INPUT)
			program_upload(b.p, b.g->tensors[i], eye);
	must(program_run(b.p, &once, &err), &err);
	program_download(a.p, graph_find_output(a.g, "o")->tensor, x);
	program_download(b.p, graph_find_output(b.g, "o")->tensor, y);
	assert_close(x, y, 280, "o");
	for (int i = 0; i < a.params->n; i++) {
		must(param_get(a.params, i, true, x, &err), &err);
		must(param_get(b.params, params_find(b.params, a.params->list[i].name), true, y,
			       &err),
		     &err);
		assert_close(x, y, a.params->list[i].count, a.params->list[i].name);
	}
	destroy(&a);
	destroy(&b);
}

/* ------------------------------------------------------------ a feed-forward */

static bool biases;

/* h is read twice. */
static void read_hidden(struct graph *g, struct tensor *h)
{
	graph_seeded_output(g, "y", op_linear(g, "y", h, case_param(g, "v", 9, 6), NULL));
	graph_seeded_output(g, "z", op_scale(g, "z", h, 0.5));
}

static void hidden_fused(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 3, 5, 4), *w = case_param(g, "w", 4, 9);

	read_hidden(g, op_linear_gelu(g, "h", x, w, biases ? case_param(g, "b", 9) : NULL));
}

static void hidden_pieces(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 3, 5, 4), *w = case_param(g, "w", 4, 9);

	read_hidden(
		g, op_gelu(g, "h", op_linear(g, "a", x, w, biases ? case_param(g, "b", 9) : NULL)));
}

static void feed_forward_fused(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 3, 5, 4);
	struct tensor *w = case_param(g, "w", 4, 9), *v = case_param(g, "v", 9, 6);

	graph_seeded_output(g, "y",
			    op_linear_gelu_linear(g, "y", x, w,
						  biases ? case_param(g, "b", 9) : NULL, v,
						  biases ? case_param(g, "c", 6) : NULL));
}

static void feed_forward_pieces(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 3, 5, 4), *h;
	struct tensor *w = case_param(g, "w", 4, 9), *v = case_param(g, "v", 9, 6);

	h = op_gelu(g, "h", op_linear(g, "a", x, w, biases ? case_param(g, "b", 9) : NULL));
	graph_seeded_output(g, "y", op_linear(g, "y", h, v, biases ? case_param(g, "c", 6) : NULL));
}

static void test_feed_forward(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		biases = i;
		compare(hidden_fused, hidden_pieces);
		compare(feed_forward_fused, feed_forward_pieces);
	}
}

/* ------------------------------------------------------- a product and a sum */

static bool transposed, learned;

static struct tensor *product_weight(struct graph *g)
{
	return transposed ? case_param(g, "w", 9, 4) : case_param(g, "w", 4, 9);
}

static struct tensor *product_factor(struct graph *g)
{
	return learned ? case_param(g, "f", 1) : NULL;
}

static void sum_fused(struct graph *g)
{
	graph_seeded_output(g, "y",
			    op_add_linear(g, "y", case_param(g, "a", 3, 5, 9),
					  case_param(g, "x", 3, 5, 4), product_weight(g),
					  transposed, 0.3, product_factor(g)));
}

static void sum_pieces(struct graph *g)
{
	struct tensor *x = case_param(g, "x", 3, 5, 4), *w = product_weight(g), *product;

	product = transposed ? op_linear_transposed(g, "product", x, w)
			     : op_linear(g, "product", x, w, NULL);
	graph_seeded_output(g, "y",
			    op_add_scaled(g, "y", case_param(g, "a", 3, 5, 9), product, 0.3,
					  product_factor(g)));
}

static void test_product_and_sum(void **state)
{
	(void)state;
	for (int i = 0; i < 4; i++) {
		transposed = i & 1;
		learned = i & 2;
		compare(sum_fused, sum_pieces);
	}
}

/* ---------------------------------------------- Gaussians: by hand, and turned later */

enum { TOKENS = 2 * 5, HEADS = 3, MEANS = 8 };

static struct w2_attr gaussian_attr;

static struct tensor *gaussian(struct graph *g, double theta)
{
	struct tensor *x = case_param(g, "x", 2, TOKENS / 2, HEADS, 2 * MEANS);
	struct tensor *tau = NULL, *y, *bias;
	struct w2_attr attr = gaussian_attr;

	attr.theta = theta;
	if (attr.score == W2_WASSERSTEIN)
		tau = case_param(g, "tau", HEADS);
	y = op_w2_gaussian(g, "gaussian", x, tau, &attr, &bias);
	graph_seeded_output(g, "bias", bias);
	return y;
}

static void gaussian_plain(struct graph *g)
{
	graph_seeded_output(g, "y", gaussian(g, 0));
}

static void gaussian_turned(struct graph *g)
{
	graph_seeded_output(g, "y", gaussian(g, 100));
}

static void gaussian_turned_later(struct graph *g)
{
	graph_seeded_output(g, "y", op_rope(g, "rope", gaussian(g, 0), 100, MEANS));
}

/* One head: y, and the bias that is returned. */
static double gaussian_by_hand(const double *x, double tau, double *y)
{
	const bool wasserstein = gaussian_attr.score == W2_WASSERSTEIN;
	const double temperature = fabs(tau) + gaussian_attr.eps;
	const double factor = gaussian_attr.scaled ? 2 / temperature : 1;
	double square = 0, logs = 0;

	for (int i = 0; i < MEANS; i++) {
		const double sigma = log1p(exp(x[MEANS + i])) + gaussian_attr.eps;

		if (wasserstein) {
			square += x[i] * x[i] + sigma * sigma;
			y[i] = factor * x[i];
			y[MEANS + i] = factor * sigma;
		} else {
			square += x[i] * x[i] / sigma;
			logs += log(sigma);
			y[i] = x[i] / sqrt(sigma);
		}
	}
	return wasserstein ? -square / temperature : -(square + logs) / 2;
}

static void check_gaussians_by_hand(void)
{
	double x[TOKENS * HEADS * 2 * MEANS], y[TOKENS * HEADS * 2 * MEANS], bias[TOKENS * HEADS];
	double expected[2 * MEANS], tau[HEADS] = { 0 };
	struct side s = run(gaussian_plain);
	const struct tensor *out = graph_find_output(s.g, "y")->tensor;
	const int64_t width = out->dim[3];
	struct error err;

	must(param_get(s.params, params_find(s.params, "x"), false, x, &err), &err);
	if (gaussian_attr.score == W2_WASSERSTEIN)
		must(param_get(s.params, params_find(s.params, "tau"), false, tau, &err), &err);
	program_download(s.p, out, y);
	program_download(s.p, graph_find_output(s.g, "bias")->tensor, bias);
	for (int row = 0; row < TOKENS * HEADS; row++) {
		const double own =
			gaussian_by_hand(x + row * 2 * MEANS, tau[row % HEADS], expected);

		assert_close(y + row * width, expected, width, "y");
		assert_close(&bias[row], &own, 1, "bias");
	}
	destroy(&s);
}

static void test_gaussians(void **state)
{
	const struct w2_attr forms[] = {
		{ .score = W2_WASSERSTEIN, .eps = 1e-2 },
		{ .score = W2_WASSERSTEIN, .eps = 1e-2, .scaled = true },
		{ .score = W2_OVERLAP, .eps = 1e-2 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		gaussian_attr = forms[i];
		check_gaussians_by_hand();
		compare(gaussian_turned, gaussian_turned_later);
	}
}

/* ----------------------------------------------- output head against whole logits */

/* Logits kept whole, cross-entropy by hand: d logits = weight (p - onehot) + 2 z lse p. */
static void test_head_loss(void **state)
{
	enum { B = 2, T = 5, E = 4, V = 9, N = B * T };
	struct params *params;
	struct head_loss_outputs loss;
	struct tensor *x, *w, *targets, *weights;
	struct graph *g;
	struct program *p;
	struct error err;
	const struct program_options options = { .train = true };
	const struct run once = { .iteration = 1 };
	const double scale[2] = { 0.125, 0.1 };
	const int32_t target[N] = { 3, -1, 0, 8, 8, 2, 5, -1, 1, 4 };
	double xs[N * E], ws[V * E], dx[N * E] = { 0 }, dw[V * E] = { 0 }, main = 0, z = 0, got[64];

	(void)state;
	must(params_create(&params, F64, &err), &err);
	must(graph_create(&g, params, true, &err), &err);
	x = case_param(g, "x", B, T, E);
	w = case_param(g, "w", V, E);
	targets = case_input(g, "targets", I32, B, T);
	weights = case_input(g, "weights", F64, 2);
	loss = op_head_loss(g, "loss", x, w, targets, weights);
	graph_loss(g, "main", loss.main, 1);
	graph_loss(g, "z", loss.z, 0.5);
	must(graph_finish(g, &err), &err);
	must(params_allocate(params, cpu(), true, &err), &err);
	must(params_initialise(params, SEED, &err), &err);
	must(program_create(&p, g, cpu(), &options, &err), &err);
	program_upload(p, targets, target);
	program_upload(p, weights, scale);
	must(program_run(p, &once, &err), &err);
	must(param_get(params, 0, false, xs, &err), &err);
	must(param_get(params, 1, false, ws, &err), &err);
	for (int n = 0; n < N; n++) {
		double logits[V], sum = 0, lse;

		for (int v = 0; v < V; v++) {
			logits[v] = 0;
			for (int e = 0; e < E; e++)
				logits[v] += xs[n * E + e] * ws[v * E + e];
			sum += exp(logits[v]);
		}
		lse = log(sum);
		z += scale[1] * lse * lse;
		if (target[n] >= 0)
			main += scale[0] * (lse - logits[target[n]]);
		for (int v = 0; v < V; v++) {
			double prob = exp(logits[v] - lse);
			double d = 0.5 * scale[1] * 2 * lse * prob;

			if (target[n] >= 0)
				d += scale[0] * (prob - (v == target[n]));
			for (int e = 0; e < E; e++) {
				dx[n * E + e] += d * ws[v * E + e];
				dw[v * E + e] += d * xs[n * E + e];
			}
		}
	}
	got[0] = program_scalar(p, loss.main);
	got[1] = program_scalar(p, loss.z);
	assert_close(&got[0], &main, 1, "main");
	assert_close(&got[1], &z, 1, "z");
	must(param_get(params, 0, true, got, &err), &err);
	assert_close(got, dx, N * E, "dx");
	must(param_get(params, 1, true, got, &err), &err);
	assert_close(got, dw, V * E, "dw");
	program_destroy(p);
	graph_destroy(g);
	params_destroy(params);
}

/* ------------------------------------------------- several maps of one tensor */

/* As in a model: one weight is made of others, one map has a bias, one is read in heads, one by two
 * ops. */
static void maps(struct graph *g)
{
	struct tensor *x = op_gelu(g, "x", case_param(g, "p", 2, 3, 8)),
		      *w = case_param(g, "w", 8, 8);
	struct tensor *q = op_linear(g, "q", x, w, NULL), *k, *v;

	k = op_linear(g, "k", x, case_param(g, "k.w", 8, 3), case_param(g, "b", 3));
	v = op_linear(g, "v", x, op_linear(g, "folded", case_param(g, "u", 8, 8), w, NULL), NULL);
	q = op_rope(g, "rotated", graph_reshape(g, q, 4, SHAPE(2, 3, 2, 4)), 10000, 4);
	k = op_add(g, "sum", op_linear(g, "k1", k, case_param(g, "k1.w", 3, 8), NULL),
		   op_linear(g, "k2", k, case_param(g, "k2.w", 3, 8), NULL));
	v = op_linear(g, "v1", graph_slice(g, v, 2, 4), case_param(g, "v1.w", 4, 8), NULL);
	graph_seeded_output(g, "q", q);
	graph_seeded_output(g, "y", op_multiply(g, "y", k, v));
}

static void maps_joined(struct graph *g)
{
	graph_merge_linears(g);
	maps(g);
}

static void test_maps_of_one_tensor(void **state)
{
	(void)state;
	compare(maps_joined, maps);
}

/* The maps are a branch that the next norm adds, and channels that are averaged. */
static void branches(struct graph *g)
{
	struct tensor *x = op_gelu(g, "x", case_param(g, "p", 2, 3, 8)), *sum, *y;
	struct tensor *branch = op_linear(g, "branch", x, case_param(g, "w", 8, 8), NULL);
	struct tensor *few = op_linear(g, "few", x, case_param(g, "v", 8, 3), NULL);

	y = op_norm(g, "norm", NORM_LAYER, 1e-5, op_gelu(g, "stream", x), branch,
		    case_param(g, "norm.w", 8), case_param(g, "norm.b", 8), &sum);
	graph_seeded_output(g, "sum", sum);
	graph_seeded_output(g, "y", y);
	graph_seeded_output(g, "mean", op_running_mean(g, "mean", few));
}

static void branches_joined(struct graph *g)
{
	graph_merge_linears(g);
	branches(g);
}

static void test_branches_of_one_tensor(void **state)
{
	(void)state;
	compare(branches_joined, branches);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_norm_with_residual),
		cmocka_unit_test(test_gates),
		cmocka_unit_test(test_shared_keys),
		cmocka_unit_test(test_feed_forward),
		cmocka_unit_test(test_product_and_sum),
		cmocka_unit_test(test_gaussians),
		cmocka_unit_test(test_head_loss),
		cmocka_unit_test(test_maps_of_one_tensor),
		cmocka_unit_test(test_branches_of_one_tensor),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
