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
 */
#include <math.h>
#include <string.h>

#include "core/optim/type.h"

/* Constants of tools/reference/optim.py. */
#define MIN_NORMS 10
#define SPIKE_DAMP_M 0.5
#define SPIKE_DAMP_V 0.9
#define MIN_WARMUP_FACTOR 1e-3

static double norm(struct optimizer *o, int64_t t)
{
	const struct optim_scalars *s = &o->scalars;
	const struct params *p = o->params;

	if (o->options.spam.clip_elements && s->updates > 0 && t - s->reset_at > 1)
		return sqrt(
			o->kernels->clip_elements(o->params->backend, p->grad, o->v, o->options.spam.theta, p->total));
	return sqrt(o->kernels->sum_squares(o->params->backend, p->grad, p->total));
}

static bool is_spike(const struct optimizer *o, double norm_now)
{
	const struct optim_scalars *s = &o->scalars;
	const int n = s->norm_count;
	double mean = 0, variance = 0;

	if (n < MIN_NORMS || s->updates == 0)
		return false;
	for (int i = 0; i < n; i++)
		mean += s->norms[i];
	mean /= n;
	for (int i = 0; i < n; i++)
		variance += (s->norms[i] - mean) * (s->norms[i] - mean);
	variance /= n;
	return variance > 0 && (norm_now - mean) / sqrt(variance) > o->options.spam.spike;
}

static void remember(struct optim_scalars *s, double norm_now)
{
	if (s->norm_count == OPTIM_NORMS)
		memmove(s->norms, s->norms + 1, (size_t)--s->norm_count * sizeof(*s->norms));
	s->norms[s->norm_count++] = norm_now;
}

static void reset(struct optimizer *o, int64_t t)
{
	const struct backend *backend = o->params->backend;
	const size_t bytes = (size_t)o->params->total * dtype_size(o->params->type);

	backend->zero(backend, o->m, bytes);
	backend->zero(backend, o->v, bytes);
	backend->zero(backend, o->vmax, bytes);
	o->scalars.reset_at = t - 1; /* this update is the first of the new age */
	o->scalars.resets++;
}

static double warmup_factor(const struct optimizer *o, int64_t t)
{
	const int64_t warmup = o->options.spam.warmup, age = t - o->scalars.reset_at;

	if (o->scalars.resets == 0 || age >= warmup)
		return 1;
	return fmax(MIN_WARMUP_FACTOR, 0.5 * (1 - cos(M_PI * (double)age / (double)warmup)));
}

static void update(struct optimizer *o, const struct optim_step *step, struct optim_report *report)
{
	const int64_t interval = o->options.spam.interval;
	struct optim_step warm = *step;

	report->spike = is_spike(o, report->norm);
	report->reset = interval && step->t % interval == 0;
	o->scalars.spikes += report->spike;
	remember(&o->scalars, report->norm);
	if (report->reset)
		reset(o, step->t);
	warm.lr *= warmup_factor(o, step->t);
	optim_adamw_update(o, &warm, report->spike ? SPIKE_DAMP_M : 1,
			   report->spike ? SPIKE_DAMP_V : 1);
}

const struct optim_type optim_adamwspam = {
	.has_v = true,
	.has_vmax = true,
	.norm = norm,
	.update = update,
};
