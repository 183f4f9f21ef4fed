/*
 * linear_attention: a scan with a matrix as the state of each head; linear_attention.h has the
 * formulas.  Output 1 holds the state before each chunk and after the last one, [n+1,B H,D,K], for
 * the backward pass; if runs continue each other, it is the last state [B,H,D,K].
 */
#include "core/ops/linear_attention.h"

#include "core/ops/rule.h"

struct tensor *op_linear_attention(struct graph *g, const char *name,
				   const struct linear_attention_attr *attr,
				   const struct linear_attention_inputs *in)
{
	struct tensor *const list[LA_INPUTS] = { in->q, in->k, in->v, in->decay, in->beta };

	return node_out(graph_node(g, OP_linear_attention, name, attr, LA_INPUTS, list), 0);
}

static bool has_heads(const struct tensor *t, const int64_t *dim, int ndim)
{
	return is_tokens(t) && t->ndim == ndim && t->dim[0] == dim[0] && t->dim[1] == dim[1] &&
	       t->dim[2] == dim[2];
}

static enum status infer(struct graph *g, struct node *n)
{
	const struct tensor *q = n->in[LA_Q], *k = n->in[LA_K], *v = n->in[LA_V];
	const struct tensor *decay = n->in[LA_DECAY], *beta = n->in[LA_BETA];
	struct linear_attention_sizes s;

	if (!is_tokens(q) || q->ndim != 4)
		return graph_misfit(g, n, "q must be real [B,T,H,K] with whole tokens");
	if (!is_tokens(k) || !tensor_same_shape(q, k))
		return graph_misfit(g, n, "k must have the shape of q");
	if (!has_heads(v, q->dim, 4))
		return graph_misfit(g, n, "v must be [B,T,H,D]");
	if (decay &&
	    !(has_heads(decay, q->dim, 3) || (is_tokens(decay) && tensor_same_shape(q, decay))))
		return graph_misfit(g, n, "the decay must be [B,T,H] or [B,T,H,K]");
	if (beta && !has_heads(beta, q->dim, 3))
		return graph_misfit(g, n, "beta must be [B,T,H]");
	if (graph_out_like(g, n, NULL, v) != OK)
		return FAIL;
	s = linear_attention_sizes_of(n);
	return g->state ? graph_out_state(g, n, "state", 4, SHAPE(s.B, s.H, s.D, s.K))
			: graph_out_constant(g, n, "states", g->type, 4,
					     SHAPE(s.n + 1, s.B * s.H, s.D, s.K));
}

/* Per token: products with the state, and with half of a chunk. */
static void cost(const struct node *n, struct op_cost *c)
{
	const struct linear_attention_sizes s = linear_attention_sizes_of(n);
	const double token = (s.delta ? 6 : 4) * (double)(s.K * s.D) +
			     (s.delta ? 2 : 1) * (double)(s.C * (s.K + s.D));
	double in = 0;

	for (int i = 0; i < LA_INPUTS; i++)
		in += n->in[i] ? (double)tensor_bytes(n->in[i]) : 0;
	c->forward_flops = (double)(s.B * s.T * s.H) * token;
	c->backward_flops = 2 * c->forward_flops;
	c->forward_bytes = in + (double)tensor_bytes(n->out[0]) + (double)tensor_bytes(n->out[1]);
	c->backward_bytes =
		2 * in + (double)tensor_bytes(n->out[0]) + (double)tensor_bytes(n->out[1]);
}

/* -------------------------------------------------------------------- cases */

enum gates { NO_DECAY = 0, HEAD_DECAY = 1, CHANNEL_DECAY = 2, BETA = 4, DELTA = 8 };

/* -softplus(x) / 4: gates of which a chunk's product is small, not zero. */
static struct tensor *decay_of(struct graph *g, struct tensor *x)
{
	return op_scale(g, "decay", op_softplus(g, "softplus", x, 0), -0.25);
}

/* q, k, v as slices of one activation.  Keys are short: with the delta rule states stay small. */
static void apply(struct graph *g, int64_t B, int64_t T, int64_t H, int64_t K, int64_t D, int gates)
{
	struct tensor *x = op_gelu(g, "gelu", case_param(g, "p", B, T, H * (2 * K + D)));
	struct tensor *k =
		op_scale(g, "keys", op_tanh(g, "tanh", case_param(g, "k", B, T, H * K)), 0.5);
	struct linear_attention_inputs in = { .q = NULL };

	if (!x || !k)
		return;
	in.q = graph_reshape(g, graph_slice(g, x, 0, H * K), 4, SHAPE(B, T, H, K));
	in.k = graph_reshape(g, k, 4, SHAPE(B, T, H, K));
	in.v = graph_reshape(g, graph_slice(g, x, H * K, H * D), 4, SHAPE(B, T, H, D));
	case_add_to(g, "rest", graph_slice(g, x, H * (K + D), H * K), NULL);
	if (gates & HEAD_DECAY)
		in.decay = decay_of(g, case_param(g, "g", B, T, H));
	if (gates & CHANNEL_DECAY)
		in.decay = decay_of(g, case_param(g, "g", B, T, H, K));
	if (gates & BETA)
		in.beta = op_sigmoid(g, "beta", case_param(g, "b", B, T, H));
	graph_seeded_output(
		g, "o",
		op_linear_attention(g, "scan",
				    &(struct linear_attention_attr){ (gates & DELTA) != 0 }, &in));
}

BUILD_CASE(case_plain, apply(g, 2, 5, 3, 4, 3, NO_DECAY))
BUILD_CASE(case_one, apply(g, 1, 1, 1, 1, 1, CHANNEL_DECAY | BETA | DELTA))
BUILD_CASE(case_plain_chunks, apply(g, 1, 131, 2, 3, 4, BETA))
BUILD_CASE(case_head, apply(g, 2, 67, 2, 3, 5, HEAD_DECAY))
BUILD_CASE(case_gated, apply(g, 2, 70, 2, 8, 8, CHANNEL_DECAY))
BUILD_CASE(case_delta, apply(g, 2, 64, 1, 5, 3, BETA | DELTA))
BUILD_CASE(case_gated_delta, apply(g, 1, 131, 2, 6, 4, HEAD_DECAY | BETA | DELTA))
BUILD_CASE(case_channel_delta, apply(g, 2, 66, 2, 4, 5, CHANNEL_DECAY | BETA | DELTA))

/* One tensor is queries, keys, values and decay; it is negative. */
static void case_same(struct graph *g)
{
	struct tensor *x = decay_of(g, case_param(g, "x", 2, 9, 2, 3));
	const struct linear_attention_inputs in = { x, x, x, x, NULL };

	graph_seeded_output(
		g, "o",
		op_linear_attention(g, "scan", &(struct linear_attention_attr){ true }, &in));
}

/* Only v has a gradient. */
static void case_fixed(struct graph *g)
{
	const struct linear_attention_inputs in = {
		.q = case_input(g, "q", g->type, 1, 7, 2, 3),
		.k = case_input(g, "k", g->type, 1, 7, 2, 3),
		.v = case_param(g, "v", 1, 7, 2, 4),
		.beta = case_input(g, "beta", g->type, 1, 7, 2),
	};

	graph_seeded_output(
		g, "o",
		op_linear_attention(g, "scan", &(struct linear_attention_attr){ true }, &in));
}

OP_CASES(linear_attention) = {
	OP_CASE("plain", case_plain),
	OP_CASE("one token", case_one),
	OP_CASE("plain, several chunks", case_plain_chunks),
	OP_CASE("decay per head", case_head),
	OP_CASE("decay per channel", case_gated),
	OP_CASE("delta rule", case_delta),
	OP_CASE("gated delta rule", case_gated_delta),
	OP_CASE("delta rule, decay per channel", case_channel_delta),
	OP_CASE("one tensor for all", case_same),
	OP_CASE("only values have gradients", case_fixed),
	OP_CASES_END,
};

#define ALL (BIT(LA_INPUTS) - 1)

const struct op op_desc_linear_attention = {
	.name = "linear_attention",
	.attr_size = sizeof(struct linear_attention_attr),
	.min_inputs = LA_DECAY,
	.max_inputs = LA_INPUTS,
	.infer = infer,
	.cost = cost,
	.strided_in = ALL,
	.strided_heads_in = ALL,
	.saves_in = ALL,
	.saves_out = BIT(1),
	.bf16_in = ALL & ~BIT(LA_DECAY), /* decays add up */
	.bf16_out = BIT(0),
	.cases = linear_attention_cases,
};
