/*
 * AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101): Adam with decoupled decay.
 *
 *     m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
 *     p = (1 - lr decay) p - lr (m / (1 - beta1^k)) / (sqrt(v / (1 - beta2^k)) + eps)
 *
 * k is the age of the moments: the number of the update since the last reset.
 */
#include <math.h>

#include "core/optim/type.h"

void optim_adamw_update(struct optimizer *o, const struct optim_step *step, double damp_m,
			double damp_v)
{
	const struct optim_options *options = &o->options;
	const double age = (double)(step->t - o->scalars.reset_at);
	const struct adamw_step s = {
		.lr = step->lr,
		.shrink = optim_shrink(o, step->lr),
		.scale = step->scale,
		.beta1 = options->beta1,
		.beta2 = options->beta2,
		.eps = options->eps,
		.correction1 = 1 - pow(options->beta1, age),
		.correction2 = 1 - pow(options->beta2, age),
		.damp_m = damp_m,
		.damp_v = damp_v,
	};

	o->kernels->adamw(o->params->backend, &s, &o->segments, o->params->data, o->params->grad, o->m, o->v, o->vmax);
}

static void update(struct optimizer *o, const struct optim_step *step, struct optim_report *report)
{
	(void)report;
	optim_adamw_update(o, step, 1, 1);
}

const struct optim_type optim_adamw = { .has_v = true, .update = update };
