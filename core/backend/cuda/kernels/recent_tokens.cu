/*
 * recent_tokens: y = the tokens stored by the last run, then x.  Then it stores the last tokens of
 * y.
 */
#include "core/backend/cuda/primitives/tokens.cuh"

template <typename P> static void forward(const struct call *c)
{
	const struct tokens x = tokens_of(c->node->in[0]), y = tokens_of(c->node->out[0]);
	const struct tokens stored = tokens_of(c->node->out[1]);

	copy_tokens<P>(c, output<P>(c, 0), y, 0, output<P>(c, 1), stored, 0, stored.T);
	copy_tokens<P>(c, output<P>(c, 0), y, stored.T, input<P>(c, 0), x, 0, x.T);
	copy_tokens<P>(c, output<P>(c, 1), stored, 0, output<P>(c, 0), y, x.T, stored.T);
}

KERNELS(recent_tokens, forward<P>, NULL)
