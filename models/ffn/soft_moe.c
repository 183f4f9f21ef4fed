/*
 * soft_moe - n gated experts with a hidden width of F/n, mixed by soft weights.
 * (J. Puigcerver et al., "From sparse to soft mixtures of experts", 2023; one slot per expert.)
 *
 *     r = s cos(x, phi_e)                      router_scale, router
 *     slot_e = sum_j D_je x_j,  D = softmax of r over tokens
 *     y = sum_e C_e f_e(slot_e),  C = softmax of r over slots,  f_e = swiglu
 *
 * The paper's D sees all tokens of a group.  Here a group is the token itself, so that D = 1 and y
 * is a dense soft mixture; or, with MOE_PREFIX, the tokens up to t: y_t is what the paper's layer
 * gives to the last of them.  |r| <= |s|, so exp(r) needs no maximum.  Decoding then keeps n (E +
 * 1) sums per layer.
 */
#include "models/model.h"

struct moe_options {
	int64_t experts;
	bool prefix;
};

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	struct moe_options *o = options;

	o->experts = config_int(c, "MOE_EXPERTS");
	o->prefix = config_bool(c, "MOE_PREFIX");
	if (o->experts < 2)
		return fail(err, "MOE_EXPERTS=%lld: one expert needs no router; take FFN=swiglu",
			    (long long)o->experts);
	if (m->hidden % o->experts)
		return fail(err, "the hidden width %lld is not divisible by MOE_EXPERTS=%lld",
			    (long long)m->hidden, (long long)o->experts);
	return OK;
}

/* r [B,T,n] */
static struct tensor *route(struct block *b, struct tensor *x, int64_t experts)
{
	struct tensor *phi = block_matrix(b, "router.weight", b->m->embd, experts);
	struct tensor *cosine = op_linear(b->g, "cosine", block_unit(b, "token", x, -1),
					  block_unit(b, "slot", phi, 0), NULL);

	return op_multiply(b->g, "route", cosine, block_vector(b, "router_scale", 1, 1));
}

/* Of the tokens up to each: [B,T,n,E] */
static struct tensor *slots_of_prefix(struct block *b, struct tensor *x, struct tensor *r)
{
	const int64_t n = tensor_dim(r, -1), B = b->B, T = b->T, E = b->m->embd;
	struct tensor *weight = op_exp(b->g, "dispatch", r), *sum, *total;

	x = graph_reshape(b->g, x, 4, SHAPE(B, T, 1, E));
	sum = op_multiply(b->g, "dispatched", x, graph_reshape(b->g, weight, 4, SHAPE(B, T, n, 1)));
	sum = op_cumsum(b->g, "slot_sums", sum);
	total = op_cumsum(b->g, "slot_totals", weight);
	return op_divide(b->g, "slots", sum, graph_reshape(b->g, total, 4, SHAPE(B, T, n, 1)));
}

static struct tensor *hidden(struct block *b, struct tensor *x)
{
	const struct moe_options *o = b->m->ffn_options;
	const int64_t n = o->experts, E = b->m->embd, width = b->m->hidden / n;
	struct tensor *r = route(b, x, n), *h1, *h, *share;

	if (!r)
		return NULL;
	if (o->prefix)
		x = slots_of_prefix(b, x, r);
	h1 = op_head_linear(b->g, "w1", x, block_heads_matrix(b, "w1.weight", n, E, width));
	h = op_head_linear(b->g, "w3", x, block_heads_matrix(b, "w3.weight", n, E, width));
	share = op_softmax(b->g, "combine", r, UNMASKED);
	if (b->probing)
		graph_output(b->g, "head_activity", share);
	h = op_head_gate(b->g, "mixture", op_silu_gate(b->g, "gated", h, h1), share, 1, NULL);
	return h ? graph_reshape(b->g, h, 3, SHAPE(b->B, b->T, b->m->hidden)) : NULL;
}

static const struct ffn_variant soft_moe = {
	.name = "soft_moe",
	.options_size = sizeof(struct moe_options),
	.read = read,
	.hidden = hidden,
};
FFN(soft_moe);
