/*
 * ws - WsFFN: swiglu with two losses on h1 = x W1, in training only.
 *
 *     z = h1 Wz, seen as n heads; Wz [F,F] starts block-diagonal (or stays so: z_blocks)
 *     aux_z = lambda_z mean |z_head|^2
 *     aux_c = lambda_c InfoNCE of the per-example, per-head means of z over the sequence
 */
#include <math.h>

#include "models/ffn/gated.h"

struct ws_options {
	int64_t heads;
	bool aux, blocks;
	double lambda_z, lambda_c, tau;
};

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	struct ws_options *o = options;

	o->aux = config_bool(c, "WS_AUX");
	if (!o->aux)
		return OK;
	o->heads = config_int(c, "WS_HEADS");
	o->blocks = config_bool(c, "WS_Z_BLOCKS");
	o->lambda_z = config_real(c, "WS_LAMBDA_Z");
	o->lambda_c = config_real(c, "WS_LAMBDA_C");
	o->tau = config_real(c, "WS_TAU");
	if (o->heads < 1 || m->hidden % o->heads)
		return fail(err, "the hidden width %lld is not divisible by WS_HEADS=%lld",
			    (long long)m->hidden, (long long)o->heads);
	if (!(o->tau > 0))
		return fail(err, "WS_TAU=%g must be positive", o->tau);
	if (!(o->lambda_z >= 0 && o->lambda_c >= 0))
		return fail(err, "WS_LAMBDA_Z and WS_LAMBDA_C must not be negative");
	return OK;
}

/* z [B,T,n,F/n] */
static struct tensor *project(struct block *b, const struct ws_options *o, struct tensor *h1)
{
	const int64_t F = b->m->hidden, width = F / o->heads;
	struct param_init init = {
		.kind = INIT_UNIFORM_BLOCKS,
		.value = 1 / sqrt((double)width),
		.blocks = (int)o->heads,
	};

	if (o->blocks)
		return op_head_linear(b->g, "z", block_heads(b, h1, o->heads),
				      graph_param(b->g, "z_proj.weight", &init, 3,
						  SHAPE(o->heads, width, width)));
	return block_heads(b,
			   op_linear(b->g, "z", h1,
				     graph_param(b->g, "z_proj.weight", &init, 2, SHAPE(F, F)),
				     NULL),
			   o->heads);
}

static struct tensor *hidden(struct block *b, struct tensor *x)
{
	const struct ws_options *o = b->m->ffn_options;
	struct tensor *h1, *z, *contrast, *similarity, *h = gated_hidden(b, x, &h1);

	if (!o->aux || !(b->g->training || b->probing))
		return h;
	z = project(b, o, h1);
	contrast = op_ws_contrast(b->g, "aux_c", z, o->tau, &similarity);
	if (b->probing) {
		graph_output(b->g, "head_similarity", similarity);
		return h;
	}
	graph_loss(b->g, "aux_z", op_ws_energy(b->g, "aux_z", z), o->lambda_z);
	graph_loss(b->g, "aux_c", contrast, o->lambda_c);
	return h;
}

static const struct model_switch switches[] = {
	{ .symbol = "WS_LAMBDA_Z", .off = "0", .through_loss = true },
	{ .symbol = "WS_LAMBDA_C", .off = "0", .through_loss = true },
	{ .symbol = NULL },
};

static bool switched_on(const void *options, const struct model_switch *s)
{
	const struct ws_options *o = options;

	return o->aux && (s == &switches[0] ? o->lambda_z : o->lambda_c) > 0;
}

static const struct ffn_variant ws = {
	.name = "ws",
	.options_size = sizeof(struct ws_options),
	.read = read,
	.hidden = hidden,
	.switches = switches,
	.switched_on = switched_on,
};
FFN(ws);
