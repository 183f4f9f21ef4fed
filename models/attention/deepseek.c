/*
 * deepseek - multi-head latent attention as DeepSeek-V2 published it (DeepSeek-AI, "DeepSeek-V2",
 * 2024, section 2.1).
 *
 *     cq = RMSNorm(x Wdq) of width Q;  q_h = cq Wuq_h;  qr_h = rope(cq Wqr_h)
 *     c = RMSNorm(x Wdkv) of width L;  k_h = c U_h';  v_h = c Up_h;  kr = rope(x Wkr)
 *     score_h = (q_h . k_h + qr_h . kr) / sqrt(D + R)
 *
 * c and the rope key kr [R] are shared by the heads.  U_h is absorbed into the queries:
 * q_h . (c U_h') = (q_h U_h) . c.  So a head's query is [q_h U_h | qr_h], and the key of all heads
 * is [c | kr], whose first L channels are the values that decoding reads: it keeps L + R numbers
 * per token and layer, and applies Up_h to the weighted sum of c.  Without POS=rope there is no
 * rope key, and R = 0. Names: Wdq q_down, Wuq q_proj, Wqr q_rope, Wdkv kv_down, U q_to_latent, Up
 * v_up, Wkr k_rope.
 */
#include <math.h>

#include "models/model.h"

struct deepseek_options {
	int64_t latent, query_latent, rope;
};

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	struct deepseek_options *o = options;

	o->latent = config_int(c, "RA_MLA_LATENT_DIM");
	o->query_latent = config_int(c, "DEEPSEEK_QUERY_LATENT_DIM");
	o->rope = config_int(c, "DEEPSEEK_ROPE_DIM");
	if (o->latent < 1 || o->query_latent < 0 || o->rope < 0)
		return fail(err,
			    "RA_MLA_LATENT_DIM=%lld must be positive, and "
			    "DEEPSEEK_QUERY_LATENT_DIM=%lld and DEEPSEEK_ROPE_DIM=%lld not "
			    "negative",
			    (long long)o->latent, (long long)o->query_latent, (long long)o->rope);
	if (o->query_latent == 0)
		o->query_latent = m->embd > 4 ? m->embd / 4 : 1;
	if (o->rope == 0)
		o->rope = m->head_dim > 4 ? m->head_dim / 4 * 2 : 2;
	if (o->rope % 2)
		return fail(err, "rope needs an even DEEPSEEK_ROPE_DIM, not %lld",
			    (long long)o->rope);
	if (m->position != POS_ROPE)
		o->rope = 0;
	return OK;
}

/* RMSNorm(x W) with parameters "name_down" and "name_norm" */
static struct tensor *latent(struct block *b, const char *name, struct tensor *x, int64_t width)
{
	char down[24], norm[24], weight[32];

	snprintf(down, sizeof(down), "%s_down", name);
	snprintf(norm, sizeof(norm), "%s_norm", name);
	snprintf(weight, sizeof(weight), "%s_norm.weight", name);
	return op_norm(b->g, norm, NORM_RMS, b->m->norm_eps, block_linear(b, down, x, width, false),
		       NULL, block_vector(b, weight, width, 1), NULL, NULL);
}

/* [content | x W rotated]: content [B,T,heads,L], the second part with R channels per head */
static struct tensor *with_rope(struct block *b, const char *role, struct tensor *content,
				struct tensor *x, int64_t heads)
{
	const struct deepseek_options *o = b->m->attention_options;
	const int64_t width[] = { o->latent, o->rope }, rows = b->B * b->T * heads;
	struct tensor *part[2] = { content };
	char name[24], rotated[24];

	if (o->rope == 0)
		return content;
	snprintf(name, sizeof(name), "%s_rope", role);
	snprintf(rotated, sizeof(rotated), "%s_rotated", role);
	x = block_heads(b, block_linear(b, name, x, heads * o->rope, false), heads);
	part[1] = block_rope(b, rotated, x, o->rope);
	for (int i = 0; i < 2; i++)
		part[i] = graph_reshape(b->g, part[i], 2, SHAPE(rows, width[i]));
	return graph_reshape(b->g, op_concat(b->g, role, 2, part, width), 4,
			     SHAPE(b->B, b->T, heads, o->latent + o->rope));
}

/* x Up_h, where x is one latent for all heads, [B,T,L], or one per head, [B,T,H,L]. */
static struct tensor *lift(struct block *b, struct tensor *x)
{
	const struct model *m = b->m;
	const struct deepseek_options *o = m->attention_options;

	return op_head_linear(
		b->g, "v_up", x,
		block_heads_matrix(b, "v_up.weight", m->heads, o->latent, m->head_dim));
}

/* sum_j p_j (c_j Up_h) = (sum_j p_j c_j) Up_h */
static struct tensor *heads(struct block *b, struct tensor *o)
{
	return b->decoding ? lift(b, o) : o;
}

static void project(struct block *b, struct tensor *x, struct projection *p)
{
	const struct model *m = b->m;
	const struct deepseek_options *o = m->attention_options;
	struct tensor *cq = latent(b, "q", x, o->query_latent);
	struct tensor *c = block_latent(b, latent(b, "kv", x, o->latent));
	struct tensor *q = block_heads(b, block_linear(b, "q_proj", cq, m->embd, false), m->heads);

	q = op_head_linear(
		b->g, "q_to_latent", q,
		block_heads_matrix(b, "q_to_latent.weight", m->heads, m->head_dim, o->latent));
	p->latent = c;
	p->in.q = with_rope(b, "q", q, cq, m->heads);
	p->in.k = with_rope(b, "k", block_heads(b, c, 1), x, 1);
	if (b->decoding)
		p->values_in_keys = o->latent;
	else
		p->in.v = lift(b, c);
	p->attr.scale = 1 / sqrt((double)(m->head_dim + o->rope));
}

static const struct attention_variant deepseek = {
	.name = "deepseek",
	.options_size = sizeof(struct deepseek_options),
	.read = read,
	.project = project,
	.heads = heads,
	.has_latent = true,
};
ATTENTION(deepseek);
