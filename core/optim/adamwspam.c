/*
 * AdamWSPAM: AdamW with AMSGrad that distrusts spikes, after SPAM (Huang et al. 2025,
 * arXiv:2501.06842).  One update does, in this order:
 *
 *     clip every entry of g to +-sqrt(theta v)
 *     if the norm lies more than `spike` standard deviations above the mean of the last
 *             100 norms (of at least 10):  m *= 0.5, v *= 0.9
 *     clip g to the global norm
 *     every `interval` updates:  m = v = vmax = 0, and their age starts again
 *     for `warmup` updates after such a reset:  lr *= (1 - cos(pi k / warmup)) / 2, k the age
 *     AdamW with vmax = max(vmax, v) in place of v
 *
 * decide.h decides all of it.
 */
#include "core/optim/type.h"

static void update(struct optimizer *o)
{
	o->kernels->restart(o->backend, &o->state->factors, &o->segments, &o->blocks);
	optim_adamw_update(o);
}

const struct optim_type optim_adamwspam = {
	.has_v = true,
	.has_vmax = true,
	.update = update,
};
