/*
 * decide - what an update does, from the norm of its gradient.
 *
 * All that is decided, and all that decisions depend on, lies in one struct
 * optim_state in device memory: a device goes on to the next update without the
 * host.  One header for all devices, as core/util/philox.h: the host reads the
 * decisions at any time (optimizer_read()).
 */
#ifndef OPTIM_DECIDE_H
#define OPTIM_DECIDE_H

#include <math.h>

#include "core/optim/optim.h"

#ifdef __CUDACC__
#define OPTIM_FUNCTION static __host__ __device__ inline
#else
#define OPTIM_FUNCTION static inline
#endif

/* The same for all updates. */
struct optim_rule {
	double clip; /* global norm; 0: never */
	double weight_decay;
	double beta1, beta2; /* 0: no such moment */
	bool spam;	     /* what follows is AdamWSPAM's: see adamwspam.c */
	bool clip_elements;
	double theta, spike;
	int64_t interval, warmup;
};

/* Factors common to all elements: kernels.h says where they stand. */
struct optim_factors {
	double lr, shrink, scale;
	double rate, bias; /* lr / (1 - beta1^k), 1 / (1 - beta2^k): k is the age of the moments */
	double damp_m, damp_v;
	bool skip;    /* nothing is updated */
	bool restart; /* the moments begin at zero */
};

struct optim_request {
	int64_t t;
	double lr;
};

/* What the host has not read yet. */
struct optim_news {
	int64_t unread;
	bool stopped; /* by an update that was not finite: those after it do nothing */
	struct optim_report reports[OPTIM_REPORTS];
};

struct optim_state {
	struct optim_request request; /* what the host asks for */
	double squares;		      /* of the gradient */
	struct optim_scalars scalars;
	struct optim_factors factors;
	bool is_off; /* optimizer_switch() */
	struct optim_news news;
};

/* Constants of tools/reference/optim.py. */
#define SPAM_MIN_NORMS 10
#define SPAM_DAMP_M 0.5
#define SPAM_DAMP_V 0.9
#define SPAM_MIN_WARMUP 1e-3

/* Before the norm is known: are the entries of the gradient clipped? */
OPTIM_FUNCTION bool optim_clips_elements(const struct optim_rule *rule, const struct optim_state *s)
{
	return rule->clip_elements && s->scalars.updates > 0 &&
	       s->request.t - s->scalars.reset_at > 1;
}

OPTIM_FUNCTION bool spam_is_spike(const struct optim_rule *rule, const struct optim_scalars *s,
				  double norm)
{
	const int n = s->norm_count;
	double mean = 0, variance = 0;

	if (n < SPAM_MIN_NORMS || s->updates == 0)
		return false;
	for (int i = 0; i < n; i++)
		mean += s->norms[i];
	mean /= n;
	for (int i = 0; i < n; i++)
		variance += (s->norms[i] - mean) * (s->norms[i] - mean);
	variance /= n;
	return variance > 0 && (norm - mean) / sqrt(variance) > rule->spike;
}

OPTIM_FUNCTION void spam_remember(struct optim_scalars *s, double norm)
{
	if (s->norm_count == OPTIM_NORMS) {
		s->norm_count--;
		for (int i = 0; i < s->norm_count; i++)
			s->norms[i] = s->norms[i + 1];
	}
	s->norms[s->norm_count++] = norm;
}

OPTIM_FUNCTION double spam_warmup(const struct optim_rule *rule, const struct optim_scalars *s,
				  int64_t t)
{
	const int64_t age = t - s->reset_at;

	if (s->resets == 0 || age >= rule->warmup)
		return 1;
	return fmax(SPAM_MIN_WARMUP, 0.5 * (1 - cos(M_PI * (double)age / (double)rule->warmup)));
}

OPTIM_FUNCTION void spam_decide(const struct optim_rule *rule, struct optim_state *s,
				struct optim_report *report)
{
	const int64_t t = s->request.t;

	report->spike = spam_is_spike(rule, &s->scalars, report->norm);
	report->reset = rule->interval && t % rule->interval == 0;
	s->scalars.spikes += report->spike;
	spam_remember(&s->scalars, report->norm);
	if (report->reset) {
		s->scalars.reset_at = t - 1; /* this update is the first of the new age */
		s->scalars.resets++;
		s->factors.restart = true;
	}
	s->factors.lr *= spam_warmup(rule, &s->scalars, t);
	s->factors.damp_m = report->spike ? SPAM_DAMP_M : 1;
	s->factors.damp_v = report->spike ? SPAM_DAMP_V : 1;
}

/* The losses must be finite, too: all of them lie in device memory. */
OPTIM_FUNCTION bool optim_finite(double norm, const double *losses, int n)
{
	bool finite = isfinite(norm);

	for (int i = 0; i < n; i++)
		finite = finite && isfinite(losses[i]);
	return finite;
}

/* The factors of this update, a report of it, and what the next updates must know. */
OPTIM_FUNCTION void optim_decide(const struct optim_rule *rule, struct optim_state *s,
				 const double *losses, int n)
{
	struct optim_report *report = &s->news.reports[s->news.unread];
	struct optim_factors *f = &s->factors;
	double age;

	f->skip = true;
	f->restart = false;
	if (s->news.stopped || s->is_off)
		return;
	s->news.unread++;
	report->t = s->request.t;
	report->norm = sqrt(s->squares);
	report->finite = optim_finite(report->norm, losses, n);
	report->clipped = report->spike = report->reset = false;
	s->news.stopped = !report->finite;
	if (s->news.stopped)
		return;
	report->clipped = rule->clip > 0 && report->norm > rule->clip;
	f->skip = false;
	f->lr = s->request.lr;
	f->scale = report->clipped ? rule->clip / report->norm : 1;
	f->damp_m = f->damp_v = 1;
	if (rule->spam)
		spam_decide(rule, s, report);
	age = (double)(s->request.t - s->scalars.reset_at);
	f->shrink = 1 - f->lr * rule->weight_decay;
	f->rate = f->lr / (1 - pow(rule->beta1, age));
	f->bias = 1 / (1 - pow(rule->beta2, age));
	s->scalars.updates++;
}

#endif
