#include "core/train/phases.h"

#include <time.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum phase phases_enter(struct phases *p, enum phase next)
{
	enum phase before;
	double seconds;

	if (!p)
		return next;
	seconds = now();
	before = p->now;
	if (p->since > 0)
		p->seconds[before] += seconds - p->since;
	p->since = seconds;
	p->now = next;
	return before;
}

void phases_print(const struct phases *p, FILE *file)
{
	static const char *const names[] = { "start",	 "audits",     "data",
					     "training", "evaluation", "records" };

	for (int i = 0; i < PHASES; i++)
		fprintf(file, "%s\"%s\": %.6f", i ? ", " : "{", names[i], p->seconds[i]);
	fprintf(file, "}\n");
}
