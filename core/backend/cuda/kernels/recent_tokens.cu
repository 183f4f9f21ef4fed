#include "core/backend/cuda/primitives/tokens.cuh"

template <typename P> static void forward(const struct call *c)
{
	const struct tokens x = tokens_of(c->node->in[0]), y = tokens_of(c->node->out[0]);
	const struct tokens kept = tokens_of(c->node->out[1]);

	copy_tokens<P>(c, output<P>(c, 0), y, 0, output<P>(c, 1), kept, 0, kept.T);
	copy_tokens<P>(c, output<P>(c, 0), y, kept.T, input<P>(c, 0), x, 0, x.T);
	copy_tokens<P>(c, output<P>(c, 1), kept, 0, output<P>(c, 0), y, x.T, kept.T);
}

template <typename P> static constexpr struct kernels set()
{
	return { forward<P>, NULL };
}
KERNELS(recent_tokens, set)
