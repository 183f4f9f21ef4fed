/*
 * latent - mechanism 3: attention latents and hidden activation read each other.
 *
 *     h += alpha to_mlp(ck)           ck of this layer, after the addition below, before rotation
 *     ctx = to_attn(h)                h before the addition above; sent to layer l+1
 *     ck += alpha ctx                 in layer l+1, before the scores
 *
 * Tying: untied two matrices; tied_transpose one W [F,L], ck W' and h W;
 * bottleneck F -> r -> L and L -> F; per_head_scalar 2H scalars and no
 * matrix: hidden channel c receives s[cH/F] ck[cL/F], latent channel i
 * receives s'[iH/L] times the mean of the hidden channels that map to it.
 */
#include "models/model.h"

enum tying { TYING_UNTIED, TYING_TRANSPOSE, TYING_SCALAR, TYING_BOTTLENECK };

struct latent_options {
	double alpha;
	enum tying tying;
	int64_t bottleneck;
	bool detach;
};

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	static const char *const modes[] = { "untied", "tied_transpose", "per_head_scalar",
					     "bottleneck", NULL };
	struct latent_options *o = options;

	o->alpha = config_real(c, "RECIP_ALPHA");
	o->detach = config_bool(c, "RECIP_DETACH");
	o->tying = (enum tying)config_choice(c, "RA_MLA_MLP_TYING_MODE", modes);
	if (o->tying == TYING_BOTTLENECK) {
		o->bottleneck = config_int(c, "RECIP_LATENT");
		if (o->bottleneck < 1)
			return fail(err, "RECIP_LATENT=%lld must be positive",
				    (long long)o->bottleneck);
	}
	if (!m->attention->has_latent)
		return fail(
			err,
			"latent reciprocity needs an attention with latents (mla, deepseek); '%s' "
			"has none",
			m->attention->name);
	return OK;
}

static struct tensor *receive(struct block *b, const void *options, const struct message *in,
			      struct tensor *latent)
{
	const struct latent_options *o = options;

	if (!in->value)
		return latent;
	return op_add_scaled(b->g, "latent_received", latent, in->value, o->alpha, in->alpha);
}

/* [F,L] of tied_transpose, else [L,F] */
static struct tensor *weight_to_hidden(struct block *b, const struct latent_options *o, int64_t L)
{
	const int64_t F = b->m->hidden;

	return o->tying == TYING_TRANSPOSE ? block_matrix(b, "coupler.weight", F, L)
					   : block_matrix(b, "coupler.attn_to_mlp.weight", L, F);
}

static struct tensor *to_hidden(struct block *b, const struct latent_options *o,
				struct tensor *latent)
{
	struct tensor *w;

	if (o->tying == TYING_SCALAR)
		return op_scalar_expand(b->g, "coupler.to_mlp", latent,
					block_vector(b, "coupler.attn_to_mlp", b->m->heads, 1),
					b->m->hidden);
	w = weight_to_hidden(b, o, tensor_dim(latent, -1));
	if (o->tying == TYING_TRANSPOSE)
		return op_linear_transposed(b->g, "coupler.to_mlp", latent, w);
	return op_linear(b->g, "coupler.attn_to_mlp", latent, w, NULL);
}

/* Decoding keeps product and sum apart: devices have kernels of their own for its few rows. */
static struct tensor *add_to_hidden(struct block *b, const struct latent_options *o,
				    struct tensor *h, struct tensor *latent)
{
	struct tensor *w;

	if (!latent)
		return NULL;
	if (o->tying == TYING_SCALAR || b->decoding) {
		latent = to_hidden(b, o, latent);
		return op_add_scaled(b->g, "latent_added", h, latent, o->alpha,
				     block_alpha(b, "recip_alpha", o->alpha));
	}
	w = weight_to_hidden(b, o, tensor_dim(latent, -1));
	return op_add_linear(b->g, "latent_added", h, latent, w, o->tying == TYING_TRANSPOSE,
			     o->alpha, block_alpha(b, "recip_alpha", o->alpha));
}

static struct tensor *to_latent(struct block *b, const struct latent_options *o, struct tensor *h,
				int64_t L)
{
	switch (o->tying) {
	case TYING_TRANSPOSE:
		return op_linear(b->g, "coupler.to_attn", h,
				 block_matrix(b, "coupler.weight", b->m->hidden, L), NULL);
	case TYING_SCALAR:
		return op_scalar_pool(b->g, "coupler.to_attn", h,
				      block_vector(b, "coupler.mlp_to_attn", b->m->heads, 1), L);
	case TYING_BOTTLENECK:
		h = block_linear(b, "coupler.mlp_down", h, o->bottleneck, false);
		break;
	case TYING_UNTIED:
		break;
	}
	return block_linear(b, "coupler.mlp_to_attn", h, L, false);
}

static struct tensor *hidden(struct block *b, const void *options, struct tensor *h,
			     struct message *out)
{
	const struct latent_options *o = options;
	struct tensor *latent = b->projection.latent;

	if (!latent)
		return NULL;
	if (!b->last) {
		out->value = to_latent(b, o, h, tensor_dim(latent, -1));
		out->alpha = block_alpha(b, "recip_alpha_next", o->alpha);
	}
	if (o->detach)
		latent = graph_detach(b->g, latent);
	return add_to_hidden(b, o, h, latent);
}

static const struct mechanism latent = {
	.name = "latent_recip",
	.symbol = "RA_MLA_MLP_LATENT_RECIP",
	.order = 1,
	.options_size = sizeof(struct latent_options),
	.read = read,
	.latent = receive,
	.hidden = hidden,
};
MECHANISM(latent);
