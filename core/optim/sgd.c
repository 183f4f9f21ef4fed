/*
 * SGD with momentum, no Nesterov, no dampening: m = mu m + g,  p = (1 - lr decay) p - lr m.
 * As torch.optim.SGD, except that the decay is decoupled, as in the other optimizers.
 */
#include "core/optim/type.h"

static void update(struct optimizer *o, const struct optim_step *step, struct optim_report *report)
{
	const struct sgd_step s = {
		.lr = step->lr,
		.shrink = optim_shrink(o, step->lr),
		.scale = step->scale,
		.momentum = o->options.sgd.momentum,
	};

	(void)report;
	o->kernels->sgd(o->params->backend, &s, &o->segments, o->params->data, o->params->grad, o->m);
}

const struct optim_type optim_sgd = { .update = update };
