/*
 * differential - the difference of two softmaxes, which cancels what both attend to.
 *
 *     P1 = softmax(Q1 K1' / sqrt(d)),  P2 = softmax(Q2 K2' / sqrt(d)),  d = D/2
 *     head = (1 - lambda_init) RMSNorm((P1 - lambda P2) V)
 *     lambda = exp(lambda_q1 . lambda_k1) - exp(lambda_q2 . lambda_k2) + lambda_init
 *     lambda_init = 0.8 - 0.6 exp(-0.3 (layer - 1)), layers count from 1
 *
 * (T. Ye et al., "Differential Transformer", 2024.)  q_proj and k_proj hold the first halves of all
 * heads, then the second ones.  The heads of a layer share lambda and the weight of the norm.  All
 * of it is general ops, which keep no state for decoding.
 */
#include <math.h>

#include "models/model.h"

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	(void)options, (void)c;
	if (m->head_dim % (m->position == POS_ROPE ? 4 : 2))
		return fail(err,
			    "ATTENTION=differential halves each head: the head width %lld is no "
			    "multiple of %d",
			    (long long)m->head_dim, m->position == POS_ROPE ? 4 : 2);
	return OK;
}

/* x [B,T,H,n] as [B,H,T,n], or back */
static struct tensor *swap(struct block *b, const char *name, struct tensor *x)
{
	return op_permute(b->g, name, x, (const int[]){ 0, 2, 1, 3 });
}

/* Half `i` of the queries or keys of all heads: [B,H,T,d] */
static struct tensor *half(struct block *b, const char *role, struct tensor *x, int i)
{
	const int64_t width = b->m->embd / 2;
	char rotated[24], name[24];

	snprintf(rotated, sizeof(rotated), "%s%d_rotated", role, i + 1);
	snprintf(name, sizeof(name), "%s%d", role, i + 1);
	x = block_heads(b, graph_slice(b->g, x, i * width, width), b->m->heads);
	return swap(b, name, block_rope(b, rotated, x, b->m->head_dim / 2));
}

/* Softmax number i of the scores of all heads: [B,H,T,T] */
static struct tensor *probabilities(struct block *b, struct tensor *q, struct tensor *k, int i)
{
	const double d = (double)b->m->head_dim / 2;
	char scores[24], scaled[24], name[24];

	snprintf(scores, sizeof(scores), "scores%d", i + 1);
	snprintf(scaled, sizeof(scaled), "scaled%d", i + 1);
	snprintf(name, sizeof(name), "probabilities%d", i + 1);
	q = op_scale(b->g, scaled, half(b, "q", q, i), 1 / sqrt(d));
	return op_softmax(b->g, name, op_matmul(b->g, scores, q, false, half(b, "k", k, i), true),
			  CAUSAL);
}

/* exp(lambda_q . lambda_k) of vectors number i, drawn from N(0, 0.1) as in the paper's code */
static struct tensor *exponent(struct block *b, int i)
{
	const struct param_init init = { .kind = INIT_NORMAL, .value = 0.1 };
	const int64_t d = b->m->head_dim / 2;
	char q[24], k[24], products[24], sum[24], name[24];

	snprintf(q, sizeof(q), "lambda_q%d", i + 1);
	snprintf(k, sizeof(k), "lambda_k%d", i + 1);
	snprintf(products, sizeof(products), "lambda_products%d", i + 1);
	snprintf(sum, sizeof(sum), "lambda_sum%d", i + 1);
	snprintf(name, sizeof(name), "lambda_exp%d", i + 1);
	return op_exp(b->g, name,
		      op_sum(b->g, sum,
			     op_multiply(b->g, products, graph_param(b->g, q, &init, 1, &d),
					 graph_param(b->g, k, &init, 1, &d)),
			     0));
}

static struct tensor *mix(struct block *b, struct tensor *x)
{
	const struct model *m = b->m;
	const double init = 0.8 - 0.6 * exp(-0.3 * b->layer);
	struct tensor *q = block_linear(b, "q_proj", x, m->embd, false);
	struct tensor *k = block_linear(b, "k_proj", x, m->embd, false);
	struct tensor *v = block_heads(b, block_linear(b, "v_proj", x, m->embd, false), m->heads);
	struct tensor *lambda, *p;

	lambda = op_subtract(b->g, "lambda_learned", exponent(b, 0), exponent(b, 1));
	lambda = op_add_constant(b->g, "lambda", lambda, init);
	p = op_add_scaled(b->g, "difference", probabilities(b, q, k, 0), probabilities(b, q, k, 1),
			  0, op_scale(b->g, "minus_lambda", lambda, -1));
	p = op_dropout(b->g, "probabilities_dropped", p, m->dropout);
	x = swap(b, "heads", op_matmul(b->g, "mixed", p, false, swap(b, "values", v), false));
	x = op_norm(b->g, "subln", NORM_RMS, m->norm_eps, x, NULL,
		    block_vector(b, "subln.weight", m->head_dim, 1), NULL, NULL);
	return op_scale(b->g, "normed", x, 1 - init);
}

static const struct attention_variant differential = {
	.name = "differential",
	.read = read,
	.mix = mix,
};
ATTENTION(differential);
