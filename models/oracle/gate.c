/*
 * gate, mechanism 1: g = sigmoid(pool(h Wp) Wh); layer l + 1 multiplies head i by
 * 1 - alpha + alpha g_i.  Pool: running mean over s <= t, the token, or the mean over all T.
 */
#include "models/oracle/oracle.h"

static void pool(struct oracle *o, double *x, int64_t G)
{
	const int64_t T = o->T;
	const bool sequence = oracle_is(o, "GATE_POOL", "sequence");

	if (oracle_is(o, "GATE_POOL", "token"))
		return;
	for (int64_t column = 0; column < o->B * G; column++) {
		double *at = x + column / G * T * G + column % G, sum = 0;

		for (int64_t t = 0; t < T; t++) {
			sum += at[t * G];
			at[t * G] = sum / (double)(t + 1);
		}
		for (int64_t t = 0; sequence && t < T; t++)
			at[t * G] = sum / (double)T;
	}
}

static void hidden(struct oracle *o, double *h, struct oracle_message *out)
{
	const int64_t G = config_int(o->config, "GATE_DIM");
	double *pooled;

	if (o->last)
		return;
	pooled = oracle_linear(o, "gate_proj", h, o->F, G, false);
	if (pooled)
		pool(o, pooled, G);
	out->value = oracle_linear(o, "gate_to_heads", pooled, G, o->H, false);
	out->count = o->B * o->T * o->H;
	out->alpha = oracle_alpha(o, "gate_alpha", "GATE_ALPHA");
}

static void heads(struct oracle *o, const struct oracle_message *in, double *heads)
{
	for (int64_t i = 0; i < o->B * o->T * o->E; i++)
		heads[i] *= 1 - in->alpha + in->alpha * oracle_sigmoid(in->value[i / o->D]);
}

static const struct oracle_mechanism gate = {
	.symbol = "RA_MLA_MLP_ATTN_GATE",
	.order = 3,
	.hidden = hidden,
	.heads = heads,
};
ORACLE_MECHANISM(gate);
