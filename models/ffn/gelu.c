/*
 * gelu - the feed-forward of GPT-2: GELU(x Wfc + b) Wproj + b.
 */
#include "models/model.h"

static struct tensor *hidden(struct block *b, struct tensor *x)
{
	return op_gelu(b->g, "gelu", block_linear(b, "c_fc", x, b->m->hidden, b->m->bias));
}

static struct tensor *whole(struct block *b, struct tensor *x)
{
	const int64_t F = b->m->hidden, E = b->m->embd;
	struct tensor *fc = block_matrix(b, "c_fc.weight", E, F);
	struct tensor *fc_bias = b->m->bias ? block_vector(b, "c_fc.bias", F, 0) : NULL;
	struct tensor *proj = block_matrix(b, "c_proj.weight", F, E);
	struct tensor *proj_bias = b->m->bias ? block_vector(b, "c_proj.bias", E, 0) : NULL;

	return op_linear_gelu_linear(b->g, "c_proj", x, fc, fc_bias, proj, proj_bias);
}

static const struct ffn_variant gelu = {
	.name = "gelu",
	.hidden = hidden,
	.whole = whole,
	.projection_bias = true,
};
FFN(gelu);
