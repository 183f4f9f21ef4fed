/*
 * gla - gated linear attention (S. Yang et al., "Gated linear attention transformers with
 * hardware-efficient training", 2023).
 *
 *     S_t = diag(a_t) S_(t-1) + k_t' v_t,  o_t = q_t S_t / sqrt(K)
 *     a_t = sigmoid(x_t Wd Wu + b)^(1/tau), a gate per head and channel of the keys
 *     heads = RMSNorm(o_t) silu(x_t Ws)
 *
 * Names: Wd forget_down [E,R], Wu forget_up [R,H K] with bias b, Ws swish.  There is no softmax and
 * no score.  Decoding keeps the state, E K numbers per layer and sequence, and nothing per token.
 */
#include <math.h>

#include "models/model.h"

struct gla_options {
	int64_t key_width, rank;
	double tau;
};

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	struct gla_options *o = options;

	o->key_width = config_int(c, "GLA_KEY_DIM");
	o->rank = config_int(c, "GLA_GATE_RANK");
	o->tau = config_real(c, "GLA_TAU");
	if (o->key_width == 0)
		o->key_width = m->head_dim > 1 ? m->head_dim / 2 : 1;
	if (o->key_width < 0 || o->rank < 1)
		return fail(err, "GLA_KEY_DIM=%lld and GLA_GATE_RANK=%lld must be positive",
			    (long long)o->key_width, (long long)o->rank);
	if (!(o->tau > 0))
		return fail(err, "GLA_TAU=%g must be positive", o->tau);
	if (m->position == POS_ROPE && o->key_width % 2)
		return fail(err, "rope needs an even key width, not %lld", (long long)o->key_width);
	return OK;
}

static struct tensor *keys(struct block *b, const char *role, struct tensor *x)
{
	const struct gla_options *o = b->m->attention_options;
	char proj[20], rotated[20];

	snprintf(proj, sizeof(proj), "%s_proj", role);
	snprintf(rotated, sizeof(rotated), "%s_rotated", role);
	x = block_linear(b, proj, x, b->m->heads * o->key_width, false);
	return block_rope(b, rotated, block_heads(b, x, b->m->heads), o->key_width);
}

/* log a = -softplus(-z) / tau */
static struct tensor *log_gates(struct block *b, struct tensor *x)
{
	const struct gla_options *o = b->m->attention_options;

	x = block_linear(b, "forget_down", x, o->rank, false);
	x = block_linear(b, "forget_up", x, b->m->heads * o->key_width, true);
	x = op_softplus(b->g, "forget", op_scale(b->g, "forget_in", x, -1), 0);
	return block_heads(b, op_scale(b->g, "decay", x, -1 / o->tau), b->m->heads);
}

static struct tensor *mix(struct block *b, struct tensor *x)
{
	const struct gla_options *o = b->m->attention_options;
	const struct linear_attention_attr attr = { .delta = false };
	const struct linear_attention_inputs in = {
		.q = op_scale(b->g, "q", keys(b, "q", x), 1 / sqrt((double)o->key_width)),
		.k = keys(b, "k", x),
		.v = block_heads(b, block_linear(b, "v_proj", x, b->m->embd, false), b->m->heads),
		.decay = log_gates(b, x),
	};
	struct tensor *heads = op_linear_attention(b->g, "heads", &attr, &in);
	struct tensor *gate = block_linear(b, "swish", x, b->m->embd, false);

	heads = op_norm(b->g, "o_norm", NORM_RMS, b->m->norm_eps, heads, NULL,
			block_vector(b, "o_norm.weight", b->m->head_dim, 1), NULL, NULL);
	return op_silu_gate(b->g, "opened", block_heads(b, gate, b->m->heads), heads);
}

static const struct attention_variant gla = {
	.name = "gla",
	.options_size = sizeof(struct gla_options),
	.read = read,
	.mix = mix,
	.keeps_state = true,
};
ATTENTION(gla);
