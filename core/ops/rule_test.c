/*
 * Shape rules refuse invalid inputs and say why.
 */
#include "core/util/test.h"

#include <math.h>
#include <string.h>

#include "core/ops/rule.h"

struct misfit {
	const char *expected; /* part of the error text */
	void (*build)(struct graph *g);
};

/* An integer tensor of the shape of a real one. */
static struct tensor *tokens(struct graph *g)
{
	return case_input(g, "tokens", I32, 2, 3, 4);
}

static struct tensor *real3(struct graph *g)
{
	return case_param(g, "x", 2, 3, 4);
}

static struct tensor *real4(struct graph *g)
{
	return case_param(g, "x4", 2, 3, 4, 6);
}

#define MISFIT(name, call)                \
	static void name(struct graph *g) \
	{                                 \
		call;                     \
	}

MISFIT(add_shapes, op_add(g, "n", real3(g), case_param(g, "y", 2, 4, 3)))
MISFIT(add_ndim, op_add(g, "n", real3(g), case_param(g, "y", 2, 3)))
MISFIT(matmul_sizes, op_matmul(g, "n", real3(g), false, case_param(g, "y", 2, 3, 4), false))
MISFIT(matmul_batch, op_matmul(g, "n", real3(g), false, case_param(g, "y", 3, 3, 4), true))
MISFIT(matmul_vector, op_matmul(g, "n", real3(g), false, case_param(g, "y", 4), false))
MISFIT(matmul_tokens, op_matmul(g, "n", real3(g), false, tokens(g), true))
MISFIT(permute_twice, op_permute(g, "n", real3(g), (const int[]){ 0, 1, 1 }))
MISFIT(permute_dim, op_permute(g, "n", real3(g), (const int[]){ 0, 1, 3 }))
MISFIT(permute_tokens, op_permute(g, "n", tokens(g), (const int[]){ 0, 2, 1 }))
MISFIT(expand_shape, op_expand(g, "n", real3(g), 3, SHAPE(2, 6, 4)))
MISFIT(expand_fewer, op_expand(g, "n", real3(g), 2, SHAPE(3, 4)))
MISFIT(expand_more, op_expand(g, "n", real3(g), 5, SHAPE(1, 1, 2, 3, 4)))
MISFIT(expand_tokens, op_expand(g, "n", tokens(g), 4, SHAPE(5, 2, 3, 4)))
MISFIT(softmax_window, op_softmax(g, "n", real3(g), CAUSAL_WINDOW(0)))
MISFIT(softmax_queries, op_softmax(g, "n", case_param(g, "x", 2, 5, 4), CAUSAL))
MISFIT(logsumexp_vector, op_logsumexp(g, "n", case_param(g, "x", 4), CAUSAL))
MISFIT(softmax_tokens, op_softmax(g, "n", tokens(g), UNMASKED))
MISFIT(max_dim, op_max(g, "n", real3(g), 3))
MISFIT(max_tokens, op_max(g, "n", tokens(g), -1))
MISFIT(sum_dim, op_sum(g, "n", real3(g), 3))
MISFIT(mean_dim, op_mean(g, "n", real3(g), -4))
MISFIT(sum_tokens, op_sum(g, "n", tokens(g), 0))
MISFIT(add_tokens, op_add(g, "n", real3(g), tokens(g)))
MISFIT(multiply_shapes, op_multiply(g, "n", real3(g), real4(g)))
MISFIT(multiply_tokens, op_multiply(g, "n", tokens(g), tokens(g)))
MISFIT(scale_tokens, op_scale(g, "n", tokens(g), 2))
MISFIT(scale_factor, op_add_scaled(g, "n", real3(g), real3(g), 2, case_param(g, "f", 2)))
#define A36 case_param(g, "a", 3, 6)
MISFIT(join_rows,
       op_concat(g, "n", 2, ((struct tensor *[]){ A36, case_param(g, "b", 2, 6) }), SHAPE(6, 6)))
MISFIT(join_width, op_concat(g, "n", 1, ((struct tensor *[]){ A36 }), SHAPE(5)))
MISFIT(join_tokens, op_concat(g, "n", 1, ((struct tensor *[]){ tokens(g) }), SHAPE(4)))
MISFIT(join_nothing, op_concat(g, "n", 1, ((struct tensor *[]){ NULL }), SHAPE(4)))
MISFIT(add_scaled_shapes, op_add_scaled(g, "n", real3(g), real4(g), 1, NULL))
MISFIT(add_scaled_factor, op_add_scaled(g, "n", real3(g), real3(g), 1, case_param(g, "f", 1, 1)))
#define X34 case_param(g, "y", 3, 4)
#define U46 case_param(g, "u", 4, 6)
MISFIT(add_linear_tokens,
       op_add_linear(g, "n", real3(g), tokens(g), case_param(g, "w", 4, 4), false, 1, NULL))
MISFIT(add_linear_ndim, op_add_linear(g, "n", A36, X34, case_param(g, "w", 4), false, 1, NULL))
MISFIT(add_linear_takes, op_add_linear(g, "n", A36, X34, U46, true, 1, NULL))
MISFIT(add_linear_gives, op_add_linear(g, "n", A36, X34, case_param(g, "w", 4, 5), false, 1, NULL))
MISFIT(add_linear_rows, op_add_linear(g, "n", case_param(g, "a", 2, 6), X34, U46, false, 1, NULL))
MISFIT(add_linear_factor, op_add_linear(g, "n", A36, X34, U46, false, 1, case_param(g, "f", 2)))
MISFIT(add_linear_same, op_add_linear(g, "n", X34, X34, case_param(g, "w", 4, 4), false, 1, NULL))
MISFIT(add_linear_missing, op_add_linear(g, "n", A36, X34, NULL, false, 1, NULL))
MISFIT(norm_weight, op_norm(g, "n", NORM_RMS, 0, real3(g), NULL, case_param(g, "w", 3), NULL, NULL))
MISFIT(norm_bias, op_norm(g, "n", NORM_RMS, 0, real3(g), NULL, case_param(g, "w", 4),
			  case_param(g, "b", 1, 4), NULL))
MISFIT(norm_made_weight, op_norm(g, "n", NORM_RMS, 0, real3(g), NULL,
				 op_gelu(g, "w", case_param(g, "v", 4)), NULL, NULL))
MISFIT(norm_residual, op_norm(g, "n", NORM_RMS, 0, real3(g), case_param(g, "r", 2, 2, 4),
			      case_param(g, "w", 4), NULL, NULL))
MISFIT(norm_eps, op_norm(g, "n", NORM_RMS, -1, real3(g), NULL, case_param(g, "w", 4), NULL, NULL))
MISFIT(norm_kind,
       op_norm(g, "n", (enum norm_kind)7, 0, real3(g), NULL, case_param(g, "w", 4), NULL, NULL))
MISFIT(rope_ndim, op_rope(g, "n", real3(g), 10000, 4))
MISFIT(rope_odd, op_rope(g, "n", real4(g), 10000, 3))
MISFIT(rope_wide, op_rope(g, "n", real4(g), 10000, 8))
MISFIT(rope_none, op_rope(g, "n", real4(g), 10000, 0))
MISFIT(rope_theta, op_rope(g, "n", real4(g), 0, 4))
MISFIT(gelu_tokens, op_gelu(g, "n", tokens(g)))

MISFIT(linear_gelu_tokens, op_linear_gelu(g, "n", tokens(g), case_param(g, "w", 4, 5), NULL))
MISFIT(linear_gelu_ndim, op_linear_gelu(g, "n", real3(g), case_param(g, "w", 4), NULL))
MISFIT(linear_gelu_takes, op_linear_gelu(g, "n", real3(g), case_param(g, "w", 5, 4), NULL))
MISFIT(linear_gelu_bias,
       op_linear_gelu(g, "n", real3(g), case_param(g, "w", 4, 5), case_param(g, "b", 4)))

static struct tensor *feed_forward(struct graph *g, struct tensor *x, struct tensor *w,
				   struct tensor *b, struct tensor *v, struct tensor *c)
{
	return op_linear_gelu_linear(g, "n", x, w, b, v, c);
}

#define W45 case_param(g, "w", 4, 5)
#define V53 case_param(g, "v", 5, 3)

MISFIT(forward_tokens, feed_forward(g, tokens(g), W45, NULL, V53, NULL))
MISFIT(forward_ndim, feed_forward(g, real3(g), W45, NULL, case_param(g, "v", 5), NULL))
MISFIT(forward_takes, feed_forward(g, real4(g), W45, NULL, V53, NULL))
MISFIT(forward_hidden, feed_forward(g, real3(g), W45, NULL, case_param(g, "v", 4, 3), NULL))
MISFIT(forward_first_bias, feed_forward(g, real3(g), W45, case_param(g, "b", 4), V53, NULL))
MISFIT(forward_second_bias, feed_forward(g, real3(g), W45, NULL, V53, case_param(g, "c", 5)))
MISFIT(forward_missing, feed_forward(g, real3(g), W45, NULL, NULL, NULL))
MISFIT(silu_gate_shapes, op_silu_gate(g, "n", real3(g), real4(g)))
MISFIT(sigmoid_tokens, op_sigmoid(g, "n", tokens(g)))
MISFIT(constant_nan, op_add_constant(g, "n", real3(g), NAN))
MISFIT(softplus_tokens, op_softplus(g, "n", tokens(g), 0))
MISFIT(dropout_one, op_dropout(g, "n", real3(g), 1))
MISFIT(dropout_negative, op_dropout(g, "n", real3(g), -0.1))
MISFIT(dropout_nan, op_dropout(g, "n", real3(g), __builtin_nan("")))
MISFIT(dropout_tokens, op_dropout(g, "n", tokens(g), 0.5))
MISFIT(running_mean_ndim, op_running_mean(g, "n", real4(g)))
MISFIT(cumsum_tokens, op_cumsum(g, "n", tokens(g)))
MISFIT(scan_shapes, op_scan(g, "n", real3(g), case_param(g, "b", 2, 3, 5)))
MISFIT(scan_heads, op_scan(g, "n", graph_slice(g, real4(g), 1, 4), graph_slice(g, real4(g), 0, 4)))
MISFIT(shift_back, op_shift(g, "n", real3(g), -1, 0))
MISFIT(shift_fill, op_shift(g, "n", real3(g), 1, __builtin_inf()))
MISFIT(shift_ndim, op_shift(g, "n", case_param(g, "x", 2, 3), 1, 0))
#define NUMBERS(...) case_input(g, "i", I32, __VA_ARGS__)
MISFIT(gather_reals, op_gather(g, "n", real3(g), case_input(g, "i", g->type, 2, 3)))
MISFIT(gather_heads, op_gather(g, "n", real4(g), NUMBERS(2, 3)))
MISFIT(gather_examples, op_gather(g, "n", real3(g), NUMBERS(3, 3)))
MISFIT(gather_dims, op_gather(g, "n", case_param(g, "y", 3, 4), NUMBERS(1, 2, 3, 4)))
MISFIT(scatter_index, op_scatter(g, "n", real3(g), NUMBERS(2, 4), 5, true))
MISFIT(scatter_examples, op_scatter(g, "n", case_param(g, "y", 3, 4), NUMBERS(3), 5, true))
MISFIT(scatter_rows, op_scatter(g, "n", real3(g), NUMBERS(2, 3), 0, false))
#define LINEAR(q_, k_, v_, decay_, beta_)                                           \
	op_linear_attention(g, "n", &(const struct linear_attention_attr){ false }, \
			    &(const struct linear_attention_inputs){ q_, k_, v_, decay_, beta_ })
#define HEADS case_param(g, "v", 2, 3, 4, 5)
MISFIT(linear_q, LINEAR(real3(g), real3(g), HEADS, NULL, NULL))
MISFIT(linear_k, LINEAR(real4(g), HEADS, HEADS, NULL, NULL))
MISFIT(linear_v, LINEAR(real4(g), real4(g), case_param(g, "w", 2, 3, 5, 5), NULL, NULL))
MISFIT(linear_decay, LINEAR(real4(g), real4(g), HEADS, HEADS, NULL))
MISFIT(linear_beta, LINEAR(real4(g), real4(g), HEADS, NULL, case_param(g, "b", 2, 3, 5)))
MISFIT(linear_missing, LINEAR(real4(g), real4(g), NULL, NULL, NULL))
MISFIT(head_gate_ndim, op_head_gate(g, "n", real3(g), real3(g), 1, NULL))
MISFIT(head_gate_length, op_head_gate(g, "n", real4(g), case_param(g, "g", 2, 2, 4), 1, NULL))
MISFIT(head_gate_heads, op_head_gate(g, "n", real4(g), case_param(g, "g", 2, 3, 6), 1, NULL))
MISFIT(head_gate_factor, op_head_gate(g, "n", real4(g), real3(g), 1, case_param(g, "a", 4)))
#define GAUSSIAN(x, tau, ...) \
	op_w2_gaussian(g, "n", x, tau, &(const struct w2_attr){ __VA_ARGS__ }, NULL)
MISFIT(gaussian_odd, GAUSSIAN(case_param(g, "y", 1, 2, 3, 5), NULL, W2_OVERLAP, .eps = 1))
MISFIT(gaussian_eps, GAUSSIAN(real4(g), NULL, W2_OVERLAP, .eps = 0))
MISFIT(gaussian_score, GAUSSIAN(real4(g), NULL, (enum w2_score)5, .eps = 1))
MISFIT(gaussian_theta, GAUSSIAN(real4(g), NULL, W2_OVERLAP, .eps = 1, .theta = -1))
MISFIT(gaussian_pairs, GAUSSIAN(real4(g), NULL, W2_OVERLAP, .eps = 1, .theta = 1))
MISFIT(gaussian_no_tau, GAUSSIAN(real4(g), NULL, W2_WASSERSTEIN, .eps = 1))
MISFIT(gaussian_tau, GAUSSIAN(real4(g), case_param(g, "t", 3), W2_WASSERSTEIN, .eps = 1))
MISFIT(gaussian_overlap_tau, GAUSSIAN(real4(g), case_param(g, "t", 4), W2_OVERLAP, .eps = 1))
MISFIT(gaussian_slice, GAUSSIAN(graph_slice(g, real4(g), 1, 4), NULL, W2_OVERLAP, .eps = 1))
MISFIT(gaussian_scaled, GAUSSIAN(real4(g), NULL, W2_OVERLAP, .eps = 1, .scaled = true))
MISFIT(expand_narrow, op_scalar_expand(g, "n", real3(g), case_param(g, "s", 2), 3))
MISFIT(pool_wide, op_scalar_pool(g, "n", real3(g), case_param(g, "s", 2), 5))
MISFIT(pool_none, op_scalar_pool(g, "n", real3(g), case_param(g, "s", 2), 0))
MISFIT(pool_scalars, op_scalar_pool(g, "n", real3(g), case_param(g, "s", 2, 1), 2))
MISFIT(energy_ndim, op_ws_energy(g, "n", real3(g)))
MISFIT(contrast_tau, op_ws_contrast(g, "n", real4(g), 0, NULL))
MISFIT(contrast_ndim, op_ws_contrast(g, "n", real3(g), 1, NULL))

/* Channels 1 to 4 of 6: rows of a slice that an elementwise op cannot read. */
MISFIT(add_slice, op_add(g, "n", graph_slice(g, real4(g), 1, 4), graph_slice(g, real4(g), 0, 4)))

/* The first two tokens of three: a row of this slice is both. */
static struct tensor *first_tokens(struct graph *g)
{
	struct tensor *slice = graph_slice(g, case_param(g, "x", 2, 12), 0, 8);

	return graph_reshape(g, slice, 3, SHAPE(2, 2, 4));
}
MISFIT(mix_tokens, op_mix_topk(g, "n", first_tokens(g), case_input(g, "i", I32, 2, 2, 1),
			       case_input(g, "w", g->type, 2, 2, 1)))

static const struct misfit misfits[] = {
	{ "add 'n': the shapes do not broadcast; inputs: x f32[2,3,4] y f32[2,4,3]", add_shapes },
	{ "the shapes do not broadcast", add_ndim },
	{ "matmul 'n': the left matrix has 4 columns, the right one 3 rows; inputs: x f32[2,3,4] y",
	  matmul_sizes },
	{ "the leading dimensions do not broadcast", matmul_batch },
	{ "2 to 4 dimensions", matmul_vector },
	{ "inputs must be real", matmul_tokens },
	{ "dimension 1 of the new order is missing in x or named twice", permute_twice },
	{ "dimension 3 of the new order is missing", permute_dim },
	{ "real", permute_tokens },
	{ "expand 'n': x cannot be expanded to f32[2,6,4]; inputs: x f32[2,3,4]", expand_shape },
	{ "x cannot be expanded to f32[3,4]; inputs: x f32[2,3,4]", expand_fewer },
	{ "'x' cannot be expanded to 5 dimensions, only to 4", expand_more },
	{ "cannot be expanded", expand_tokens },
	{ "softmax 'n': a window of 0 keys is empty; inputs: x f32[2,3,4]", softmax_window },
	{ "softmax 'n': a causal mask needs [..,queries,keys] with no more queries than keys; inputs: "
	  "x f32[2,5,4]",
	  softmax_queries },
	{ "no more queries than keys", logsumexp_vector },
	{ "real", softmax_tokens },
	{ "max 'n': 'x' has no dimension 3", max_dim },
	{ "real", max_tokens },
	{ "x has no dimension 3", sum_dim },
	{ "x has no dimension -1", mean_dim },
	{ "real", sum_tokens },
	{ "must be real", add_tokens },
	{ "input 0 is a slice", add_slice },
	{ "is a slice, which this op cannot read", mix_tokens },
	{ "the shapes do not broadcast", multiply_shapes },
	{ "must be real", multiply_tokens },
	{ "must be real", scale_tokens },
	{ "must have the shape [1]", scale_factor },
	{ "the shapes do not broadcast", add_scaled_shapes },
	{ "the numbers of rows differ", join_rows },
	{ "input 0 must have 5 columns", join_width },
	{ "must be real matrices or vectors", join_tokens },
	{ "must be real matrices or vectors", join_nothing },
	{ "must have the shape [1]", add_scaled_factor },
	{ "inputs must be real", add_linear_tokens },
	{ "the weight must have 2 dimensions, not 1", add_linear_ndim },
	{ "x has 4 channels, the weight takes 6", add_linear_takes },
	{ "a must have the shape of the product", add_linear_gives },
	{ "a must have the shape of the product", add_linear_rows },
	{ "must have the shape [1]", add_linear_factor },
	{ "a must not be a factor of the product", add_linear_same },
	{ "required input 1 is missing", add_linear_missing },
	{ "must have the shape [4]", norm_weight },
	{ "must have the shape [4]", norm_bias },
	{ "must be parameters", norm_made_weight },
	{ "x and residual differ", norm_residual },
	{ "eps -1 is negative", norm_eps },
	{ "no such kind of norm", norm_kind },
	{ "[B,T,H,n]", rope_ndim },
	{ "width 3 is not an even number", rope_odd },
	{ "width 8 is not an even number from 2 to 6", rope_wide },
	{ "width 0", rope_none },
	{ "theta 0 is not positive", rope_theta },
	{ "must be real", gelu_tokens },
	{ "must be real", linear_gelu_tokens },
	{ "must have 2 dimensions, not 1", linear_gelu_ndim },
	{ "x has 4 channels, the weight takes 5", linear_gelu_takes },
	{ "the bias must be [5]", linear_gelu_bias },
	{ "must be real", forward_tokens },
	{ "must have 2 dimensions, not 2 and 1", forward_ndim },
	{ "x has 6 channels, the first weight takes 4", forward_takes },
	{ "gives 5 channels, the second takes 4", forward_hidden },
	{ "the biases must be [5] and [3]", forward_first_bias },
	{ "the biases must be [5] and [3]", forward_second_bias },
	{ "required input 3 is missing", forward_missing },
	{ "the shapes do not broadcast", silu_gate_shapes },
	{ "must be real", sigmoid_tokens },
	{ "the constant nan must be finite", constant_nan },
	{ "must be real", softplus_tokens },
	{ "probability 1 is not in [0, 1)", dropout_one },
	{ "probability -0.1", dropout_negative },
	{ "probability", dropout_nan },
	{ "must be real", dropout_tokens },
	{ "[B,T,C]", running_mean_ndim },
	{ "cumsum 'n': inputs must be real [B,T,..] with whole tokens; inputs: tokens i32[2,3,4]",
	  cumsum_tokens },
	{ "scan 'n': shapes differ; inputs: b f32[2,3,5] x f32[2,3,4]", scan_shapes },
	{ "with whole tokens", scan_heads },
	{ "a shift by -1 tokens would show later ones", shift_back },
	{ "the fill inf is not finite", shift_fill },
	{ "x must be real [B,T,..]", shift_ndim },
	{ "the index i32", gather_reals },
	{ "[N,C] or [B,N,C]", gather_heads },
	{ "the index of x [B,N,C] must be [B,M]; inputs: x f32[2,3,4] i i32[3,3]",
	  gather_examples },
	{ "the index has too many dimensions", gather_dims },
	{ "x must be real [..,C], and the index i32 [..]", scatter_index },
	{ "rows per example need x [B,M,C]", scatter_examples },
	{ "a result of 0 rows", scatter_rows },
	{ "q must be real [B,T,H,K] with whole tokens", linear_q },
	{ "k must have the shape of q", linear_k },
	{ "v must be [B,T,H,D]", linear_v },
	{ "the decay must be [B,T,H] or [B,T,H,K]", linear_decay },
	{ "beta must be [B,T,H]; inputs: x4 f32[2,3,4,6]", linear_beta },
	{ "input 2", linear_missing },
	{ "o must be [B,T,H,D]", head_gate_ndim },
	{ "does not fit the heads", head_gate_length },
	{ "does not fit the heads", head_gate_heads },
	{ "must have the shape [1]", head_gate_factor },
	{ "[B,T,H,2D]", gaussian_odd },
	{ "eps 0 is not positive", gaussian_eps },
	{ "no such score: 5", gaussian_score },
	{ "theta -1 is negative", gaussian_theta },
	{ "3 means cannot be rotated in pairs", gaussian_pairs },
	{ "tau must have the shape [H]", gaussian_no_tau },
	{ "tau must have the shape [H]", gaussian_tau },
	{ "the overlap has no tau", gaussian_overlap_tau },
	{ "all heads of a token side by side", gaussian_slice },
	{ "the overlap has no tau", gaussian_scaled },
	{ "a width of 3 leaves some of 4 channels unread", expand_narrow },
	{ "a width of 5 leaves some channels without any of 4", pool_wide },
	{ "not positive", pool_none },
	{ "the scalars [H]", pool_scalars },
	{ "[B,T,n,w]", energy_ndim },
	{ "tau 0 is not positive", contrast_tau },
	{ "[B,T,n,w]", contrast_ndim },
};

static struct graph *new_graph(struct params **params, bool training)
{
	struct graph *g;
	struct error err;

	must(params_create(params, F32, &err), &err);
	must(graph_create(&g, *params, training, &err), &err);
	return g;
}

static void test_misfits(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(misfits) / sizeof(*misfits); i++) {
		struct params *params;
		struct graph *g = new_graph(&params, true);

		misfits[i].build(g);
		if (!g->failed)
			fail_msg("nothing refused; expected: %s", misfits[i].expected);
		if (!strstr(g->err.text, misfits[i].expected))
			fail_msg("'%s' lacks: %s", g->err.text, misfits[i].expected);
		graph_destroy(g);
		params_destroy(params);
	}
}

/* Without training, or with probability 0, dropout adds no node; it still checks its inputs. */
static void test_idle_dropout(void **state)
{
	struct params *params;
	struct graph *g = new_graph(&params, false);
	struct tensor *x = real3(g);

	(void)state;
	assert_ptr_equal(op_dropout(g, "n", x, 0.5), x);
	g->training = true;
	assert_ptr_equal(op_dropout(g, "n", x, 0), x);
	assert_ptr_not_equal(op_dropout(g, "n", x, 0.5), x);
	g->training = false;
	assert_null(op_dropout(g, "n", x, 1));
	assert_true(g->failed);
	graph_destroy(g);
	params_destroy(params);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_misfits),
		cmocka_unit_test(test_idle_dropout),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
