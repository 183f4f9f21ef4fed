/*
 * ws - WsFFN: swiglu with two losses on h1 = x W1, in training only.
 *
 *     z = h1 Wz, seen as n heads; Wz [F,F] starts block-diagonal (or stays so: z_blocks)
 *     aux_z = lambda_z mean |z_head|^2
 *     aux_c = lambda_c InfoNCE of the per-example, per-head means of z over the sequence
 *     aux_l = lambda_l cross-entropy of the targets, where the output head reads z Wl
 *
 * InfoNCE pairs each mean with itself; or (halves), the mean u of the first half with the mean v of
 * the second: mean_i(logsumexp_j(cos(u_i, v_j) / tau) - cos(u_i, v_i) / tau).  aux_l and the halves
 * are ours: the recipe names a head from z to logits and other positives without a formula.
 */
#include <math.h>

#include "models/ffn/gated.h"

struct ws_options {
	int64_t heads;
	bool aux, blocks, halves;
	double lambda_z, lambda_c, lambda_l, tau;
};

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	static const char *const positives[] = { "self", "halves", NULL };
	struct ws_options *o = options;

	o->aux = config_bool(c, "WS_AUX");
	if (!o->aux)
		return OK;
	o->heads = config_int(c, "WS_HEADS");
	o->blocks = config_bool(c, "WS_Z_BLOCKS");
	o->lambda_z = config_real(c, "WS_LAMBDA_Z");
	o->lambda_c = config_real(c, "WS_LAMBDA_C");
	o->lambda_l = config_real(c, "WS_LAMBDA_LOGITS");
	o->tau = config_real(c, "WS_TAU");
	o->halves = config_choice(c, "WS_POSITIVES", positives) == 1;
	if (o->heads < 1 || m->hidden % o->heads)
		return fail(err, "the hidden width %lld is not divisible by WS_HEADS=%lld",
			    (long long)m->hidden, (long long)o->heads);
	if (!(o->tau > 0))
		return fail(err, "WS_TAU=%g must be positive", o->tau);
	if (!(o->lambda_z >= 0 && o->lambda_c >= 0 && o->lambda_l >= 0))
		return fail(err,
			    "WS_LAMBDA_Z, WS_LAMBDA_C and WS_LAMBDA_LOGITS must not be negative");
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

/* Of the first half of the tokens, or of the second; of an odd number both have the middle one. */
static double share_of_half(const struct block *b, int64_t half, int64_t t)
{
	const int64_t n = (b->T + 1) / 2;

	return (half ? t >= b->T - n : t < n) ? 1 / (double)n : 0;
}

static double share_of_first(const struct block *b, int64_t row, int64_t t)
{
	(void)row;
	return share_of_half(b, 0, t);
}

static double share_of_second(const struct block *b, int64_t row, int64_t t)
{
	(void)row;
	return share_of_half(b, 1, t);
}

/* Unit means over some tokens, of every example and head: [B n,F/n] */
static struct tensor *unit_means(struct block *b, const char *name, struct tensor *z,
				 double (*share)(const struct block *b, int64_t row, int64_t t))
{
	const int64_t F = b->m->hidden, n = tensor_dim(z, 2);
	char table[24];
	struct tensor *mean;

	snprintf(table, sizeof(table), "%s_shares", name);
	mean = op_matmul(b->g, name, block_distance_table(b, table, b->g->type, 1, b->T, share),
			 false, graph_reshape(b->g, z, 3, SHAPE(b->B, b->T, F)), false);
	return mean ? block_unit(b, name, graph_reshape(b->g, mean, 2, SHAPE(b->B * n, F / n)), -1)
		    : NULL;
}

static double number(const struct block *b, int64_t row, int64_t i)
{
	(void)b, (void)row;
	return (double)i;
}

/* Of the sum of nll, and of the squares of logsumexp. */
static double mean_and_nothing(const struct block *b, int64_t row, int64_t i)
{
	const struct ws_options *o = b->m->ffn_options;

	(void)row;
	return i == 0 ? 1 / (double)(b->B * o->heads) : 0;
}

/* InfoNCE is the cross-entropy of an output head whose table is v, with target i at u_i. */
static struct tensor *contrast_of_halves(struct block *b, const struct ws_options *o,
					 struct tensor *z)
{
	const int64_t n = b->B * o->heads;
	struct tensor *u = unit_means(b, "first", z, share_of_first);
	struct tensor *v = unit_means(b, "second", z, share_of_second), *own, *weights;

	if (!u || !v)
		return NULL;
	u = graph_reshape(b->g, op_scale(b->g, "first_scaled", u, 1 / o->tau), 3,
			  SHAPE(1, n, tensor_dim(u, -1)));
	own = block_distance_table(b, "own", I32, 1, n, number);
	weights = block_distance_table(b, "mean", b->g->type, 1, 2, mean_and_nothing);
	return op_head_loss(b->g, "aux_c", u, v, own, graph_reshape(b->g, weights, 1, SHAPE(2)))
		.main;
}

static void add_losses(struct block *b, const struct ws_options *o, struct tensor *z)
{
	const int64_t F = b->m->hidden;
	struct tensor *x;

	graph_loss(b->g, "aux_z", op_ws_energy(b->g, "aux_z", z), o->lambda_z);
	graph_loss(b->g, "aux_c",
		   o->halves ? contrast_of_halves(b, o, z)
			     : op_ws_contrast(b->g, "aux_c", z, o->tau, NULL),
		   o->lambda_c);
	if (!(o->lambda_l > 0))
		return;
	x = block_linear(b, "z_logits", graph_reshape(b->g, z, 3, SHAPE(b->B, b->T, F)), b->m->embd,
			 false);
	graph_loss(b->g, "aux_l", block_target_loss(b, "aux_l", x), o->lambda_l);
}

static struct tensor *hidden(struct block *b, struct tensor *x)
{
	const struct ws_options *o = b->m->ffn_options;
	struct tensor *h1, *z, *similarity, *h = gated_hidden(b, x, &h1);

	if (!o->aux || !(b->g->training || b->probing))
		return h;
	z = project(b, o, h1);
	if (!z)
		return NULL;
	if (!b->probing) {
		add_losses(b, o, z);
		return h;
	}
	op_ws_contrast(b->g, "aux_c", z, o->tau, &similarity);
	graph_output(b->g, "head_similarity", similarity);
	z = op_sum(b->g, "head_energy", op_square(b->g, "head_squares", z), -1);
	graph_output(b->g, "head_activity", graph_reshape(b->g, z, 3, SHAPE(b->B, b->T, o->heads)));
	return h;
}

static const struct model_switch switches[] = {
	{ .symbol = "WS_LAMBDA_Z", .off = "0", .through_loss = true },
	{ .symbol = "WS_LAMBDA_C", .off = "0", .through_loss = true },
	{ .symbol = "WS_LAMBDA_LOGITS", .off = "0", .through_loss = true },
	{ .symbol = NULL },
};

static bool switched_on(const void *options, const struct model_switch *s)
{
	const struct ws_options *o = options;

	return o->aux && (s == &switches[0]   ? o->lambda_z
			  : s == &switches[1] ? o->lambda_c
					      : o->lambda_l) > 0;
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
