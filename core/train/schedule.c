#include "core/train/schedule.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>

#include "core/util/config.h"

const char *const schedule_names[] = {
	[SCHEDULE_COSINE] = "cosine", [SCHEDULE_CONSTANT] = "constant", NULL
};

struct schedule schedule_configured(struct config *c)
{
	struct schedule s = {
		.kind = (enum schedule_kind)config_choice(c, "SCHEDULE", schedule_names),
		.lr = config_real(c, "LEARNING_RATE"),
		.warmup = config_int(c, "WARMUP_ITERS"),
		.total = config_int(c, "GPT2_MAX_ITERS"),
	};

	s.min_lr = s.kind == SCHEDULE_COSINE ? config_real(c, "MIN_LEARNING_RATE") : s.lr;
	return s;
}

double schedule_rate(const struct schedule *s, int64_t t)
{
	assert(t >= 1);
	if (t <= s->warmup)
		return s->lr * (double)t / (double)s->warmup;
	if (s->kind == SCHEDULE_CONSTANT)
		return s->lr;
	if (t >= s->total)
		return s->min_lr;
	return s->min_lr +
	       0.5 * (s->lr - s->min_lr) *
		       (1 + cos(M_PI * (double)(t - s->warmup) / (double)(s->total - s->warmup)));
}
