/*
 * gate - mechanism 1: the feed-forward gates the heads of the next layer.
 *
 *     g = sigmoid(pool(h Wp) Wh);  head i at position t is multiplied by 1 - alpha + alpha g_i
 *
 * Wp [F,G] gate_proj, Wh [G,H] gate_to_heads.  Pool: the running mean over
 * s <= t (causal), the token itself, or the mean over all T (sequence: sees
 * the future, cannot decode; kept as a labelled arm that shows the leak).
 * Decoding keeps one G-vector per sequence in every layer that sends (token: none).
 * Without decoding, the same is computed as pool(h (Wp Wh)): pooling is linear, and
 * H heads are fewer channels to pool than G.
 */
#include "models/model.h"

enum pooling { POOL_CAUSAL, POOL_TOKEN, POOL_SEQUENCE };

struct gate_options {
	double alpha;
	int64_t dim;
	enum pooling pool;
};

static enum status read(void *options, const struct model *m, struct config *c, struct error *err)
{
	static const char *const pools[] = { "causal", "token", "sequence", NULL };
	struct gate_options *o = options;

	(void)m;
	o->alpha = config_real(c, "GATE_ALPHA");
	o->dim = config_int(c, "GATE_DIM");
	o->pool = (enum pooling)config_choice(c, "GATE_POOL", pools);
	if (o->dim < 1)
		return fail(err, "GATE_DIM=%lld must be positive", (long long)o->dim);
	return OK;
}

static struct tensor *pooled(struct block *b, enum pooling pool, struct tensor *x)
{
	switch (pool) {
	case POOL_CAUSAL:
		return op_running_mean(b->g, "gate_pooled", x);
	case POOL_SEQUENCE:
		if (b->decoding)
			graph_fail(b->g,
				   "GATE_POOL=sequence reads tokens that are not there yet: it "
				   "cannot decode");
		return op_mean(b->g, "gate_pooled", x, 1);
	case POOL_TOKEN:
		break;
	}
	return x;
}

/* pool(h Wp) Wh */
static struct tensor *before_sigmoid(struct block *b, const struct gate_options *o,
				     struct tensor *h)
{
	struct tensor *w = block_matrix(b, "gate_proj.weight", b->m->hidden, o->dim);
	struct tensor *to_heads = block_matrix(b, "gate_to_heads.weight", o->dim, b->m->heads), *g;

	if (!b->decoding)
		w = op_linear(b->g, "gate_folded", w, to_heads, NULL);
	g = pooled(b, o->pool, block_read_hidden(b, "gate_proj", h, w, false));
	return b->decoding ? op_linear(b->g, "gate_to_heads", g, to_heads, NULL) : g;
}

static struct tensor *hidden(struct block *b, const void *options, struct tensor *h,
			     struct message *out)
{
	const struct gate_options *o = options;
	struct tensor *g;

	if (b->last)
		return h;
	g = before_sigmoid(b, o, h);
	out->value = op_sigmoid(b->g, "gate_sent", g);
	out->alpha = block_alpha(b, "gate_alpha", o->alpha);
	if (b->probing)
		graph_output(b->g, "gate", out->value);
	return h;
}

static struct tensor *heads(struct block *b, const void *options, const struct message *in,
			    struct tensor *o)
{
	const struct gate_options *options_ = options;

	if (!in->value)
		return o;
	return op_head_gate(b->g, "head_gated", o, in->value, options_->alpha, in->alpha);
}

static const struct mechanism gate = {
	.name = "attn_gate",
	.symbol = "RA_MLA_MLP_ATTN_GATE",
	.order = 3,
	.options_size = sizeof(struct gate_options),
	.read = read,
	.hidden = hidden,
	.plain_reader = true,
	.heads = heads,
};
MECHANISM(gate);
