/*
 * latent, mechanism 3: h += alpha to_mlp(ck); ctx = to_attn(h), of h before that, goes to layer
 * l + 1, where ck += alpha ctx.  tied_transpose: one W [F,L], ck W' and h W; untied: two
 * matrices; bottleneck: F -> r -> L; per_head_scalar: hidden channel c receives
 * s[cH/F] ck[cL/F], latent channel i s'[iH/L] times the mean of the hidden channels that map to i.
 */
#include "models/oracle/oracle.h"

/* y[token] += W' x[token], W [out,in] */
static void add_transposed(const struct oracle *o, const double *x, int64_t in, const double *w,
			   int64_t out, double *y)
{
	for (int64_t r = 0; r < o->B * o->T; r++)
		for (int64_t i = 0; i < out; i++)
			for (int64_t j = 0; j < in; j++)
				y[r * out + i] += x[r * in + j] * w[i * in + j];
}

static double *scalars_to_hidden(struct oracle *o, const double *ck)
{
	const int64_t F = o->F;
	const double *s = oracle_weights(o, "coupler.attn_to_mlp", o->H);
	double *y = oracle_array(o, o->B * o->T * F);

	for (int64_t i = 0; s && y && i < o->B * o->T * F; i++)
		y[i] = s[i % F * o->H / F] * ck[i / F * o->L + i % F * o->L / F];
	return y;
}

static double *scalars_to_latent(struct oracle *o, const double *h)
{
	const int64_t F = o->F, L = o->L;
	const double *s = oracle_weights(o, "coupler.mlp_to_attn", o->H);
	double *y = oracle_array(o, o->B * o->T * L);

	for (int64_t i = 0; s && y && i < o->B * o->T * L; i++) {
		double sum = 0, count = 0;

		for (int64_t c = 0; c < F; c++)
			if (c * L / F == i % L) {
				sum += h[i / L * F + c];
				count++;
			}
		y[i] = s[i % L * o->H / L] * sum / count;
	}
	return y;
}

static double *to_hidden(struct oracle *o, const double *ck)
{
	const double *w;
	double *y;

	if (oracle_is(o, "RA_MLA_MLP_TYING_MODE", "per_head_scalar"))
		return scalars_to_hidden(o, ck);
	if (!oracle_is(o, "RA_MLA_MLP_TYING_MODE", "tied_transpose"))
		return oracle_linear(o, "coupler.attn_to_mlp", ck, o->L, o->F, false);
	w = oracle_weights(o, "coupler.weight", o->F * o->L);
	y = oracle_array(o, o->B * o->T * o->F);
	if (y)
		add_transposed(o, ck, o->L, w, o->F, y);
	return y;
}

static double *to_latent(struct oracle *o, const double *h)
{
	const double *w;
	double *y;

	if (oracle_is(o, "RA_MLA_MLP_TYING_MODE", "per_head_scalar"))
		return scalars_to_latent(o, h);
	if (oracle_is(o, "RA_MLA_MLP_TYING_MODE", "bottleneck")) {
		const int64_t r = config_int(o->config, "RECIP_LATENT");

		return oracle_linear(o, "coupler.mlp_to_attn",
				     oracle_linear(o, "coupler.mlp_down", h, o->F, r, false), r,
				     o->L, false);
	}
	if (oracle_is(o, "RA_MLA_MLP_TYING_MODE", "untied"))
		return oracle_linear(o, "coupler.mlp_to_attn", h, o->F, o->L, false);
	w = oracle_weights(o, "coupler.weight", o->F * o->L);
	y = oracle_array(o, o->B * o->T * o->L);
	if (y)
		oracle_product(h, o->B * o->T, o->F, w, o->L, y);
	return y;
}

static void hidden(struct oracle *o, double *h, struct oracle_message *out)
{
	const double alpha = oracle_alpha(o, "recip_alpha", "RECIP_ALPHA"), *added;
	double *ck = o->latent;

	if (!ck) {
		oracle_fail(o, "latent reciprocity needs an attention with latents");
		return;
	}
	if (!o->last) {
		out->value = to_latent(o, h);
		out->count = o->B * o->T * o->L;
		out->alpha = oracle_alpha(o, "recip_alpha_next", "RECIP_ALPHA");
	}
	if (config_bool(o->config, "RECIP_DETACH"))
		ck = oracle_constant(o, ck, o->B * o->T * o->L);
	added = ck ? to_hidden(o, ck) : NULL;
	for (int64_t i = 0; added && i < o->B * o->T * o->F; i++)
		h[i] += alpha * added[i];
}

static void latent(struct oracle *o, const struct oracle_message *in, double *ck)
{
	for (int64_t i = 0; i < o->B * o->T * o->L; i++)
		ck[i] += in->alpha * in->value[i];
}

static const struct oracle_mechanism recip = {
	.symbol = "RA_MLA_MLP_LATENT_RECIP",
	.order = 1,
	.latent = latent,
	.hidden = hidden,
};
ORACLE_MECHANISM(recip);
