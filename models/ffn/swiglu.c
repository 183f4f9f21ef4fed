/*
 * swiglu - (SiLU(x W3) * (x W1)) Wproj, no biases.
 * (N. Shazeer, "GLU variants improve transformer", 2020.)
 */
#include "models/ffn/gated.h"

static struct tensor *hidden(struct block *b, struct tensor *x)
{
	struct tensor *h1;

	return gated_hidden(b, x, &h1);
}

static const struct ffn_variant swiglu = {
	.name = "swiglu",
	.hidden = hidden,
};
FFN(swiglu);
