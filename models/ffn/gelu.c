/*
 * gelu - the feed-forward of GPT-2: GELU(x Wfc + b) Wproj + b.
 */
#include "models/model.h"

static struct tensor *hidden(struct block *b, struct tensor *x)
{
	return op_gelu(b->g, "gelu", block_linear(b, "c_fc", x, b->m->hidden, b->m->bias));
}

static const struct ffn_variant gelu = {
	.name = "gelu",
	.hidden = hidden,
	.projection_bias = true,
};
FFN(gelu);
