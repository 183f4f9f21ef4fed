/*
 * delta - the gated delta rule (S. Yang, J. Kautz, A. Hatamizadeh, "Gated delta networks: improving
 * Mamba2 with delta rule", 2024).
 *
 *     S_t = a_t S_(t-1) + b_t k_t' (v_t - k_t a_t S_(t-1)),  o_t = q_t S_t
 *     q, k, v = SiLU(convolution of x Wq, x Wk, x Wv), each q_t and k_t then of length 1
 *     a_t = exp(-exp(A) softplus(x_t Wd + d)),  b_t = sigmoid(x_t Wb), a number per head
 *     heads = RMSNorm(o_t) silu(x_t Ws)
 *
 * The convolution weighs the last n tokens, per channel; it starts as the token itself.  Names: Wq
 * q_proj, weights of the convolution q_conv.0 (the token itself) to q_conv.(n-1), likewise k and v;
 * A a_log, Wd and d dt, Wb beta, Ws swish.  There is no softmax and no score.  Decoding keeps the
 * state, E K numbers per layer and sequence, and the inputs of the convolution at n - 1 tokens.
 */
#include "models/model.h"

enum { MOST_TAPS = 16 };

struct delta_options {
	int64_t key_width, taps;
};

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	struct delta_options *o = options;

	o->key_width = config_int(c, "DELTA_KEY_DIM");
	o->taps = config_int(c, "DELTA_CONV");
	if (o->key_width == 0)
		o->key_width = m->head_dim > 1 ? m->head_dim / 2 : 1;
	if (o->key_width < 0)
		return fail(err, "DELTA_KEY_DIM=%lld must not be negative",
			    (long long)o->key_width);
	if (o->taps < 1 || o->taps > MOST_TAPS)
		return fail(err, "DELTA_CONV=%lld must be 1 to %d", (long long)o->taps, MOST_TAPS);
	if (m->position == POS_ROPE && o->key_width % 2)
		return fail(err, "rope needs an even key width, not %lld", (long long)o->key_width);
	return OK;
}

/* SiLU of the last tokens of x W, weighed per channel */
static struct tensor *convolution(struct block *b, const char *role, struct tensor *x,
				  int64_t width)
{
	const struct delta_options *o = b->m->attention_options;
	char weight[24], earlier[24], tap[24], name[24];
	struct tensor *sum = NULL;

	snprintf(name, sizeof(name), "%s_proj", role);
	x = block_linear(b, name, x, width, false);
	for (int64_t i = 0; i < o->taps; i++) {
		struct tensor *y;

		snprintf(weight, sizeof(weight), "%s_conv.%lld", role, (long long)i);
		snprintf(earlier, sizeof(earlier), "%s_earlier%lld", role, (long long)i);
		snprintf(tap, sizeof(tap), "%s_tap%lld", role, (long long)i);
		snprintf(name, sizeof(name), "%s_sum%lld", role, (long long)i);
		x = op_shift(b->g, earlier, x, i > 0, 0);
		y = op_multiply(b->g, tap, x, block_vector(b, weight, width, i == 0));
		sum = i == 0 ? y : op_add(b->g, name, sum, y);
	}
	snprintf(name, sizeof(name), "%s_convolved", role);
	return block_heads(b, op_silu(b->g, name, sum), b->m->heads);
}

/* Queries or keys of length 1 */
static struct tensor *unit(struct block *b, const char *role, struct tensor *x)
{
	const struct delta_options *o = b->m->attention_options;
	char rotated[24];

	snprintf(rotated, sizeof(rotated), "%s_rotated", role);
	x = block_unit(b, role, convolution(b, role, x, b->m->heads * o->key_width), -1);
	return block_rope(b, rotated, x, o->key_width);
}

/*
 * log a = -exp(A) softplus(x Wd + d).  d starts at -2.5: a state loses 8 % per token, about the
 * median of the paper's random start.
 */
static struct tensor *log_gates(struct block *b, struct tensor *x)
{
	const int64_t H = b->m->heads;
	struct tensor *rate = op_exp(b->g, "rate", block_vector(b, "a_log", H, 0));

	x = op_linear(b->g, "dt", x, block_matrix(b, "dt.weight", b->m->embd, H),
		      block_vector(b, "dt.bias", H, -2.5));
	/* The sign goes to the rate, so that fewer results are rounded to bfloat16. */
	rate = op_scale(b->g, "minus_rate", rate, -1);
	return op_multiply(b->g, "decay", op_softplus(b->g, "step", x, 0), rate);
}

static struct tensor *mix(struct block *b, struct tensor *x)
{
	const int64_t H = b->m->heads, E = b->m->embd;
	const struct linear_attention_attr attr = { .delta = true };
	const struct linear_attention_inputs in = {
		.q = unit(b, "q", x),
		.k = unit(b, "k", x),
		.v = convolution(b, "v", x, E),
		.decay = log_gates(b, x),
		.beta = op_sigmoid(b->g, "write", block_linear(b, "beta", x, H, false)),
	};
	struct tensor *heads = op_linear_attention(b->g, "heads", &attr, &in);
	struct tensor *gate = block_heads(b, block_linear(b, "swish", x, E, false), H);

	heads = op_norm(b->g, "o_norm", NORM_RMS, b->m->norm_eps, heads, NULL,
			block_vector(b, "o_norm.weight", b->m->head_dim, 1), NULL, NULL);
	return op_silu_gate(b->g, "opened", gate, heads);
}

static const struct attention_variant delta = {
	.name = "delta",
	.options_size = sizeof(struct delta_options),
	.read = read,
	.mix = mix,
	.keeps_state = true,
};
ATTENTION(delta);
