/*
 * gated - the hidden activation that swiglu and ws share.
 */
#ifndef MODELS_FFN_GATED_H
#define MODELS_FFN_GATED_H

#include "models/model.h"

/* SiLU(x W3) * h1 with h1 = x W1; h1 is returned, too. */
static inline struct tensor *gated_hidden(struct block *b, struct tensor *x, struct tensor **h1)
{
	*h1 = block_linear(b, "w1", x, b->m->hidden, false);
	return op_silu_gate(b->g, "gated", block_linear(b, "w3", x, b->m->hidden, false), *h1);
}

#endif
