/*
 * mla - attention through latents.
 *
 *     q = x Wq (per head); ck = x Wk, cv = x Wv of width L, shared by all heads
 *     ql_h = q_h U_h;  score = ql_h . ck / sqrt(L);  v_h = cv Up_h
 *
 * U is [H,D,L] or one [D,L] for all heads, Up likewise.  With ra_alpha > 0
 * the reciprocal score is added for |i-j| <= window:
 *     S_ij += ra_alpha ql_j . ck_i / sqrt(L)
 * Names: ck k_down, cv v_down, U q_to_latent, Up v_up.  Rope rotates ql and
 * ck.  Decoding keeps 2 L numbers per token and layer, ck and cv: each head
 * sums cv over tokens and applies Up_h to the sum.  With the reciprocal score
 * it also keeps the last `window` rows of ql.
 */
#include <math.h>

#include "models/model.h"

struct mla_options {
	int64_t latent;
	bool per_head_q, per_head_v;
	double ra_alpha;
	bool learn;
};

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	struct mla_options *o = options;

	o->latent = config_int(c, "RA_MLA_LATENT_DIM");
	o->per_head_q = config_bool(c, "MLA_PER_HEAD_Q");
	o->per_head_v = config_bool(c, "MLA_PER_HEAD_V");
	o->ra_alpha = config_real(c, "RA_MLA_RA_ALPHA");
	o->learn = o->ra_alpha > 0 && config_bool(c, "RECIP_LEARN_ALPHA");
	if (o->latent < 1)
		return fail(err, "RA_MLA_LATENT_DIM=%lld must be positive", (long long)o->latent);
	if (!(o->ra_alpha >= 0))
		return fail(err, "RA_MLA_RA_ALPHA=%g must not be negative", o->ra_alpha);
	if (m->window < 0)
		return fail(err, "RA_MLA_RA_WINDOW=%lld must not be negative",
			    (long long)m->window);
	if (m->position == POS_ROPE && o->latent % 2)
		return fail(err, "rope needs an even RA_MLA_LATENT_DIM, not %lld",
			    (long long)o->latent);
	return OK;
}

static struct tensor *latent_queries(struct block *b, const struct mla_options *o, struct tensor *x)
{
	const struct model *m = b->m;
	struct tensor *q = block_heads(b, block_linear(b, "q_proj", x, m->embd, false), m->heads);

	if (!o->per_head_q)
		return block_linear(b, "q_to_latent", q, o->latent, false);
	return op_head_linear(
		b->g, "q_to_latent", q,
		block_heads_matrix(b, "q_to_latent.weight", m->heads, m->head_dim, o->latent));
}

/* x Up, where x is one latent for all heads, [B,T,L], or one per head, [B,T,H,L]. */
static struct tensor *lift(struct block *b, const struct mla_options *o, struct tensor *x)
{
	const struct model *m = b->m;

	if (!o->per_head_v)
		return block_linear(b, "v_up", x, m->head_dim, false);
	return op_head_linear(
		b->g, "v_up", x,
		block_heads_matrix(b, "v_up.weight", m->heads, o->latent, m->head_dim));
}

static struct tensor *values(struct block *b, const struct mla_options *o, struct tensor *x)
{
	struct tensor *cv = block_linear(b, "v_down", x, o->latent, false);

	if (b->decoding)
		return block_heads(b, cv, 1);
	return o->per_head_v ? lift(b, o, cv) : block_heads(b, lift(b, o, cv), 1);
}

/* sum_j p_j (cv_j Up) = (sum_j p_j cv_j) Up */
static struct tensor *heads(struct block *b, struct tensor *o)
{
	return b->decoding ? lift(b, b->m->attention_options, o) : o;
}

static void project(struct block *b, struct tensor *x, struct projection *p)
{
	const struct mla_options *o = b->m->attention_options;
	struct tensor *ck = block_latent(b, block_linear(b, "k_down", x, o->latent, false));

	p->latent = ck;
	p->in.q = block_rope(b, "q_rotated", latent_queries(b, o, x), o->latent);
	p->in.k = block_rope(b, "k_rotated", block_heads(b, ck, 1), o->latent);
	p->in.v = values(b, o, x);
	p->attr.scale = 1 / sqrt((double)o->latent);
	if (o->ra_alpha > 0) {
		p->attr.band = o->ra_alpha;
		p->attr.band_window = b->m->window;
		if (o->learn)
			p->in.band = block_vector(b, "ra_alpha", 1, o->ra_alpha);
	}
}

static const struct model_switch switches[] = {
	{ .symbol = "RA_MLA_RA_ALPHA", .off = "0" },
	{ .symbol = NULL },
};

static bool switched_on(const void *options, const struct model_switch *s)
{
	const struct mla_options *o = options;

	(void)s;
	return o->ra_alpha > 0;
}

static const struct attention_variant mla = {
	.name = "mla",
	.options_size = sizeof(struct mla_options),
	.read = read,
	.project = project,
	.heads = heads,
	.has_latent = true,
	.switches = switches,
	.switched_on = switched_on,
};
ATTENTION(mla);
