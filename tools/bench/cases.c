#include "tools/bench/cases.h"

#include "core/ops/op_case.h"
#include "generated/pointwise_ops.h"
#include "generated/rowwise_ops.h"

/* Batch, width, heads, head width, hidden width, vocabulary, latent, gate, blocks. */
enum { B = 1, E = 768, H = 12, D = 64, F = 3072, V = BENCH_VOCAB, L = 128, G = 64, N = 8 };

#define PARAM(name, ...) case_param(g, name, __VA_ARGS__)
#define INDICES case_input(g, "tokens", I32, B, T)

/* A graph of one op, whose gradient comes from outside. */
#define BENCH(function, output)                          \
	static void function(struct graph *g, int64_t T) \
	{                                                \
		graph_seeded_output(g, "out", output);   \
	}

/* A graph of one op that is a loss. */
#define BENCH_LOSS(function, output)                     \
	static void function(struct graph *g, int64_t T) \
	{                                                \
		graph_loss(g, "loss", output, 1.0);      \
	}

static struct tensor *linear(struct graph *g, int64_t T, int64_t in, int64_t out)
{
	return op_linear(g, "y", PARAM("x", B, T, in), PARAM("w", in, out), PARAM("b", out));
}

BENCH(embedding, op_embedding(g, "y", PARAM("table", V, E), PARAM("positions", T, E), INDICES))
BENCH(linear_qkv, linear(g, T, E, 3 * E))
BENCH(linear_proj, linear(g, T, E, E))
BENCH(linear_up, linear(g, T, E, F))
BENCH(linear_down, linear(g, T, F, E))
BENCH(linear_narrow, linear(g, T, L, 4 * L))
BENCH(linear_tied, op_linear_transposed(g, "y", PARAM("x", B, T, L), PARAM("w", F, L)))
BENCH(heads_to_latent, op_head_linear(g, "y", PARAM("x", B, T, H, D), PARAM("w", H, D, L)))
BENCH(heads_from_latent, op_head_linear(g, "y", PARAM("x", B, T, H, L), PARAM("w", H, L, D)))
BENCH(heads_shared, op_head_linear(g, "y", PARAM("x", B, T, L), PARAM("w", H, L, D)))
BENCH(blocks, op_head_linear(g, "y", PARAM("x", B, T, N, F / N), PARAM("w", N, F / N, F / N)))

/* Weights: their size does not follow T. */
static void concat(struct graph *g, int64_t T)
{
	struct tensor *in[] = { PARAM("a", F, E), PARAM("b", F, L) };

	(void)T;
	graph_seeded_output(g, "out", op_concat(g, "y", 2, in, SHAPE(E, L)));
}

BENCH(matmul_scores, op_matmul(g, "y", PARAM("q", B, H, T, D), false, PARAM("k", B, H, T, D), true))
BENCH(matmul_values,
      op_matmul(g, "y", PARAM("p", B, H, T, T), false, PARAM("v", B, H, T, D), false))
BENCH(permute, op_permute(g, "y", PARAM("x", B, T, H, D), (const int[]){ 0, 2, 1, 3 }))
BENCH(expand, op_expand(g, "y", PARAM("x", E), 3, SHAPE(B, T, E)))
BENCH(sum, op_sum(g, "y", PARAM("x", B, T, E), 1))
BENCH(softmax, op_softmax(g, "y", PARAM("x", B, H, T, T), CAUSAL))
BENCH(logsumexp, op_logsumexp(g, "y", PARAM("x", B, H, T, T), CAUSAL))
BENCH(max, op_max(g, "y", PARAM("x", B, H, T, T), -1))
BENCH(add, op_add(g, "y", PARAM("a", B, T, F), PARAM("b", B, T, F)))
BENCH(multiply, op_multiply(g, "y", PARAM("a", B, T, F), PARAM("b", B, T, F)))
BENCH(scale, op_scale(g, "y", PARAM("x", B, T, F), 0.3))
BENCH(add_scaled, op_add_scaled(g, "y", PARAM("a", B, T, F), PARAM("b", B, T, F), 0.3, NULL))
BENCH(add_scaled_learned,
      op_add_scaled(g, "y", PARAM("a", B, T, F), PARAM("b", B, T, F), 0.3, PARAM("factor", 1)))
BENCH(add_linear, op_add_linear(g, "y", PARAM("a", B, T, F), PARAM("x", B, T, L), PARAM("w", F, L),
				true, 0.3, NULL))
BENCH(add_linear_learned, op_add_linear(g, "y", PARAM("a", B, T, F), PARAM("x", B, T, L),
					PARAM("w", F, L), true, 0.3, PARAM("factor", 1)))
BENCH(norm_layer, op_norm(g, "y", NORM_LAYER, 1e-5, PARAM("x", B, T, E), NULL, PARAM("w", E),
			  PARAM("b", E), NULL))
BENCH(norm_rms,
      op_norm(g, "y", NORM_RMS, 1e-6, PARAM("x", B, T, E), NULL, PARAM("w", E), NULL, NULL))
BENCH(rope, op_rope(g, "y", PARAM("x", B, T, H, D), 10000, D))
BENCH(gelu, op_gelu(g, "y", PARAM("x", B, T, F)))
BENCH(linear_gelu, op_linear_gelu(g, "y", PARAM("x", B, T, E), PARAM("w", E, F), PARAM("b", F)))
BENCH(linear_gelu_linear, op_linear_gelu_linear(g, "y", PARAM("x", B, T, E), PARAM("w", E, F),
						PARAM("b", F), PARAM("v", F, E), PARAM("c", E)))
BENCH(silu_gate, op_silu_gate(g, "y", PARAM("gate", B, T, F), PARAM("x", B, T, F)))
BENCH(softplus, op_softplus(g, "y", PARAM("x", B, T, F), 1e-4))
BENCH(sigmoid, op_sigmoid(g, "y", PARAM("x", B, T, F)))
BENCH(dropout, op_dropout(g, "y", PARAM("x", B, T, F), 0.1))
BENCH(running_mean, op_running_mean(g, "y", PARAM("x", B, T, G)))
BENCH(cumsum, op_cumsum(g, "y", PARAM("x", B, T, E)))
BENCH(scan, op_scan(g, "y", PARAM("a", B, T, E), PARAM("b", B, T, E)))
BENCH(shift, op_shift(g, "y", PARAM("x", B, T, E), 1, 0))
BENCH(gather, op_gather(g, "y", PARAM("x", V, E), INDICES))
BENCH(scatter, op_scatter(g, "y", PARAM("x", B, T, E), INDICES, V, false))
static struct tensor *linear_scan(struct graph *g, struct tensor *decay, struct tensor *beta)
{
	const int64_t T = decay->dim[1];
	const struct linear_attention_attr attr = { .delta = beta != NULL };
	const struct linear_attention_inputs in = { PARAM("q", B, T, H, D), PARAM("k", B, T, H, D),
						    PARAM("v", B, T, H, D), decay, beta };

	return op_linear_attention(g, "y", &attr, &in);
}

/* Inputs of a bench are drawn around 0: a decay must not be positive. */
#define DECAY(...) op_scale(g, "decay", op_softplus(g, "size", PARAM("g", __VA_ARGS__), 0), -0.05)
BENCH(gated_linear_attention, linear_scan(g, DECAY(B, T, H, D), NULL))
BENCH(gated_delta_rule, linear_scan(g, DECAY(B, T, H), PARAM("beta", B, T, H)))
BENCH(head_gate, op_head_gate(g, "y", PARAM("o", B, T, H, D), PARAM("gate", B, T, H), 0.1, NULL))
BENCH(scalar_expand, op_scalar_expand(g, "y", PARAM("x", B, T, L), PARAM("s", H), F))
BENCH(scalar_pool, op_scalar_pool(g, "y", PARAM("x", B, T, F), PARAM("s", H), L))
BENCH_LOSS(ws_energy, op_ws_energy(g, "y", PARAM("z", B, T, N, F / N)))
BENCH_LOSS(ws_contrast, op_ws_contrast(g, "y", PARAM("z", B, T, N, F / N), 0.07, NULL))

static struct head_loss_outputs head(struct graph *g, int64_t T)
{
	return op_head_loss(g, "head", PARAM("x", B, T, E), PARAM("w", V, E), INDICES,
			    case_input(g, "weights", g->type, 2));
}

BENCH_LOSS(head_loss, head(g, T).main)

static void head_scores(struct graph *g, int64_t T)
{
	graph_output(g, "main", head(g, T).main);
}

static void norm_residual(struct graph *g, int64_t T)
{
	struct tensor *x = PARAM("x", B, T, E), *residual = PARAM("residual", B, T, E), *sum;

	graph_seeded_output(
		g, "y",
		op_norm(g, "y", NORM_LAYER, 1e-5, x, residual, PARAM("w", E), PARAM("b", E), &sum));
	graph_seeded_output(g, "sum", sum);
}

static void gaussian(struct graph *g, int64_t T, const struct w2_attr *attr)
{
	struct tensor *tau = attr->score == W2_WASSERSTEIN ? PARAM("tau", H) : NULL;
	struct tensor *x = PARAM("x", B, T, H, 2 * D), *bias;

	graph_seeded_output(g, "y", op_w2_gaussian(g, "y", x, tau, attr, &bias));
	if (!attr->scaled)
		graph_seeded_output(g, "bias", bias);
}

#define GAUSSIAN(name, ...)                                                                        \
	static void name(struct graph *g, int64_t T)                                               \
	{                                                                                          \
		gaussian(g, T, &(const struct w2_attr){ .eps = 1e-4, .theta = 1e4, __VA_ARGS__ }); \
	}
GAUSSIAN(w2_queries, .score = W2_WASSERSTEIN, .scaled = true)
GAUSSIAN(w2_keys, .score = W2_WASSERSTEIN)
GAUSSIAN(w2_overlap, .score = W2_OVERLAP)

/* Attention, and the ops that read what it made. */
struct attending {
	struct attention_attr attr;
	struct attention_inputs in;
	struct attention_outputs out;
};

static struct attending attend(struct graph *g, int64_t T, enum route_mode mode, int64_t groups,
			       int64_t width)
{
	struct attending a = {
		.attr = { .scale = 0.125,
			  .band_window = -1,
			  .route = { .mode = mode, .k = 8, .tau = 0.5, .normalize = true } },
		.in = { .q = PARAM("q", B, T, H, width),
			.k = PARAM("k", B, T, groups, width),
			.v = PARAM("v", B, T, groups, width) },
	};

	a.out = op_attention(g, "attention", &a.attr, &a.in);
	return a;
}

BENCH(attention_dot, attend(g, T, ROUTE_NONE, H, D).out.o)
BENCH(attention_latent, attend(g, T, ROUTE_NONE, 1, L).out.o)
BENCH(attention_topk, attend(g, T, ROUTE_TOPK, 1, L).out.o)

static void mix_topk(struct graph *g, int64_t T)
{
	struct attending a = attend(g, T, ROUTE_TOPK, 1, L);
	struct tensor *x = PARAM("x", B, T, F);

	graph_seeded_output(g, "out",
			    op_mix_topk(g, "y", x, a.out.route_index, a.out.route_weight));
}

static void mix_rows(struct graph *g, int64_t T)
{
	struct attending a = attend(g, T, ROUTE_RMS, 1, L);

	graph_seeded_output(g, "out",
			    op_mix_rows(g, "y", PARAM("x", B, T, F), &a.attr, &a.in, a.out.lse));
}

static void attention_probe(struct graph *g, int64_t T)
{
	struct attending a = attend(g, T, ROUTE_TOPK, 1, L);

	graph_output(g, "out", op_attention_probe(g, "y", &a.attr, &a.in, NULL, a.out.lse, 64));
}

static void keep(struct graph *g, int64_t T)
{
	graph_output(g, "out", op_cache(g, "y", PARAM("x", B, T, F)));
}

static void recent(struct graph *g, int64_t T)
{
	(void)T; /* one new token */
	graph_output(g, "out", op_recent_tokens(g, "y", PARAM("x", B, 1, H, L), 64));
}

const struct bench benches[] = {
	{ OP_embedding, "table and positions", embedding },
	{ OP_linear, "768 to 2304", linear_qkv },
	{ OP_linear, "768 to 768", linear_proj },
	{ OP_linear, "768 to 3072", linear_up },
	{ OP_linear, "3072 to 768", linear_down },
	{ OP_linear, "128 to 512", linear_narrow },
	{ OP_linear, "128 to 3072, transposed", linear_tied },
	{ OP_head_linear, "12 of 64 to 128", heads_to_latent },
	{ OP_head_linear, "12 of 128 to 64", heads_from_latent },
	{ OP_head_linear, "12 of 128 to 64, shared", heads_shared },
	{ OP_head_linear, "8 blocks of 384", blocks },
	{ OP_matmul, "12 of 64, scores", matmul_scores },
	{ OP_matmul, "12 of 64, values", matmul_values },
	{ OP_permute, "12 of 64", permute },
	{ OP_expand, "768", expand },
	{ OP_sum, "768", sum },
	{ OP_softmax, "12, causal", softmax },
	{ OP_logsumexp, "12, causal", logsumexp },
	{ OP_max, "12", max },
	{ OP_add, "3072", add },
	{ OP_multiply, "3072", multiply },
	{ OP_scale, "3072", scale },
	{ OP_add_scaled, "3072", add_scaled },
	{ OP_add_scaled_learned, "3072", add_scaled_learned },
	{ OP_concat, "768 and 128 columns", concat },
	{ OP_add_linear, "128 to 3072, transposed", add_linear },
	{ OP_add_linear_learned, "128 to 3072, transposed", add_linear_learned },
	{ OP_norm, "layer, 768", norm_layer },
	{ OP_norm, "rms, 768", norm_rms },
	{ OP_norm_residual, "layer, 768", norm_residual },
	{ OP_rope, "12 of 64", rope },
	{ OP_gelu, "3072", gelu },
	{ OP_linear_gelu, "768 to 3072", linear_gelu },
	{ OP_linear_gelu_linear, "768 to 3072 to 768", linear_gelu_linear },
	{ OP_silu_gate, "3072", silu_gate },
	{ OP_softplus, "3072", softplus },
	{ OP_sigmoid, "3072", sigmoid },
	{ OP_dropout, "3072", dropout },
	{ OP_attention, "12 of 64", attention_dot },
	{ OP_attention, "latent 128", attention_latent },
	{ OP_attention, "latent 128, topk 8", attention_topk },
	{ OP_mix_topk, "3072, topk 8", mix_topk },
	{ OP_mix_rows, "3072, rms", mix_rows },
	{ OP_cache, "3072", keep },
	{ OP_recent_tokens, "64 of 12 of 128", recent },
	{ OP_running_mean, "64", running_mean },
	{ OP_cumsum, "768", cumsum },
	{ OP_scan, "768", scan },
	{ OP_shift, "768", shift },
	{ OP_gather, "768 of 50304 rows", gather },
	{ OP_scatter, "768 to 50304 rows", scatter },
	{ OP_linear_attention, "12 of 64, decay per channel", gated_linear_attention },
	{ OP_linear_attention, "12 of 64, delta rule", gated_delta_rule },
	{ OP_head_gate, "12 of 64", head_gate },
	{ OP_w2_gaussian, "queries, 12 of 64", w2_queries },
	{ OP_w2_gaussian, "keys, 12 of 64", w2_keys },
	{ OP_w2_gaussian, "overlap, 12 of 64", w2_overlap },
	{ OP_scalar_expand, "128 to 3072", scalar_expand },
	{ OP_scalar_pool, "3072 to 128", scalar_pool },
	{ OP_ws_energy, "8 of 384", ws_energy },
	{ OP_ws_contrast, "8 of 384", ws_contrast },
	{ OP_head_loss, "768 to 50304", head_loss },
	{ OP_head_loss, "768 to 50304, no training", head_scores },
	{ OP_attention_probe, "latent 128", attention_probe },
};

const int n_benches = (int)(sizeof(benches) / sizeof(benches[0]));

static bool has_bench(int op)
{
	for (int i = 0; i < n_benches; i++)
		if ((int)benches[i].op == op)
			return true;
	return false;
}

/* Pointwise and row-wise ops share their kernels: some of them stand for all. */
static bool shares_kernels(int op)
{
	static const enum op_id ops[] = {
#define X(name) OP_##name,
		POINTWISE_OPS(X) ROWWISE_OPS(X)
#undef X
	};

	for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
		if ((int)ops[i] == op)
			return true;
	return false;
}

enum status benches_complete(struct error *err)
{
	for (int i = 0; i < OP_COUNT; i++)
		if (!has_bench(i) && !shares_kernels(i))
			return fail(err, "op %s has no shapes in tools/bench/cases.c",
				    op_table[i]->name);
	return OK;
}
