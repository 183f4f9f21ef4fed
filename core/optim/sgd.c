/*
 * SGD with momentum, no Nesterov, no dampening: m = mu m + g,  p = (1 - lr decay) p - lr m.
 * As torch.optim.SGD, except that the decay is decoupled, as in the other optimizers.
 */
#include "core/optim/type.h"

static void update(struct optimizer *o)
{
	const struct sgd_constants constants = { .momentum = o->options.sgd.momentum };

	o->kernels->sgd(o->backend, &o->state->factors, &constants, &o->segments, &o->blocks);
}

const struct optim_type optim_sgd = { .update = update };
