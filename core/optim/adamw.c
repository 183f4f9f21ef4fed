/*
 * AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101): Adam with decoupled decay.
 *
 *     m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *     p = (1 - lr decay) p - lr (m / (1 - beta1^k)) / (sqrt(v / (1 - beta2^k)) + eps)
 *
 * k is the age of the moments: the number of the update since the last reset.
 */
#include "core/optim/type.h"

void optim_adamw_update(struct optimizer *o)
{
	const struct adamw_constants constants = {
		.beta1 = o->options.beta1,
		.beta2 = o->options.beta2,
		.eps = o->options.eps,
	};

	o->kernels->adamw(o->backend, &o->state->factors, &constants, &o->segments, &o->blocks);
}

const struct optim_type optim_adamw = { .has_v = true, .update = optim_adamw_update };
