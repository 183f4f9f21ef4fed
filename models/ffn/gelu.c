/*
 * gelu - the feed-forward of GPT-2: GELU(x Wfc + b) Wproj + b.
 */
#include "models/model.h"

static struct tensor *fc_weight(struct block *b)
{
	return block_matrix(b, "c_fc.weight", b->m->embd, b->m->hidden);
}

static struct tensor *fc_bias(struct block *b)
{
	return b->m->bias ? block_vector(b, "c_fc.bias", b->m->hidden, 0) : NULL;
}

/* Decoding keeps the nodes apart: devices have kernels of their own for its few rows. */
static struct tensor *hidden(struct block *b, struct tensor *x)
{
	struct tensor *w = fc_weight(b), *bias = fc_bias(b);

	if (b->decoding)
		return op_gelu(b->g, "gelu", op_linear(b->g, "c_fc", x, w, bias));
	return op_linear_gelu(b->g, "gelu", x, w, bias);
}

static struct tensor *whole(struct block *b, struct tensor *x)
{
	const int64_t F = b->m->hidden, E = b->m->embd;
	struct tensor *fc = fc_weight(b), *bias = fc_bias(b);
	struct tensor *proj = block_matrix(b, "c_proj.weight", F, E);
	struct tensor *proj_bias = b->m->bias ? block_vector(b, "c_proj.bias", E, 0) : NULL;

	return op_linear_gelu_linear(b->g, "c_proj", x, fc, bias, proj, proj_bias);
}

static const struct ffn_variant gelu = {
	.name = "gelu",
	.hidden = hidden,
	.whole = whole,
	.projection_bias = true,
};
FFN(gelu);
