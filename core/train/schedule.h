/*
 * schedule - the learning rate of an update.
 *
 *     t <= w:  lr t / w                                     warm-up
 *     cosine:  min + (lr - min) (1 + cos(pi (t - w) / (n - w))) / 2,  min from update n on
 *     constant: lr
 *
 * t counts updates from 1, w is the warm-up, n the total.
 */
#ifndef CORE_TRAIN_SCHEDULE_H
#define CORE_TRAIN_SCHEDULE_H

#include <stdint.h>

enum schedule_kind { SCHEDULE_COSINE, SCHEDULE_CONSTANT };
extern const char *const schedule_names[]; /* by kind, NULL at the end */

struct schedule {
	enum schedule_kind kind;
	double lr, min_lr;
	int64_t warmup, total;
};

struct config;

/* What the configuration says; config_check() reports what it lacks. */
struct schedule schedule_configured(struct config *c);

double schedule_rate(const struct schedule *s, int64_t t);

#endif
