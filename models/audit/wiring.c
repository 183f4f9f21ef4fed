#include "models/audit/auditor.h"

#include <math.h>
#include <string.h>

#define BATCHES 3 /* a parameter must get a gradient in one of these */

struct gradient_seen {
	bool any, finite;
};

static void see_gradient(void *context, int64_t first, int64_t n, double *values)
{
	struct gradient_seen *seen = context;

	(void)first;
	for (int64_t i = 0; i < n; i++) {
		seen->any |= values[i] != 0;
		seen->finite &= (bool)isfinite(values[i]); /* NaN is no gradient */
	}
}

static enum status has_gradient(const struct params *params, int index, bool *has,
				struct error *err)
{
	struct gradient_seen seen = { .any = false, .finite = true };

	if (param_visit(params, index, true, see_gradient, &seen, err) != OK)
		return FAIL;
	*has = seen.any && seen.finite;
	return OK;
}

/* reached[i] becomes true where parameter i has a gradient in some batch. */
static enum status find_reached(struct auditor *a, bool *reached, struct error *err)
{
	bool all = false;

	for (int batch = 0; batch < BATCHES && !all; batch++) {
		if (auditor_train(a, &a->training, batch, err) != OK)
			return FAIL;
		all = true;
		for (int i = 0; i < a->params->n; i++) {
			if (!reached[i] && has_gradient(a->params, i, &reached[i], err) != OK)
				return FAIL;
			all = all && reached[i];
		}
	}
	return OK;
}

/* Switch every loss but the cross-entropy on or off; returns their number. */
static int weigh_auxiliary(struct token_program *t, bool on)
{
	int count = 0;

	for (int i = 0; i < t->g->n_outputs; i++) {
		const struct graph_output *o = &t->g->outputs[i];

		if (!o->is_loss || strcmp(o->name, "main") == 0)
			continue;
		program_loss_weight(t->p, o->name, on ? o->loss_weight : 0);
		count++;
	}
	return count;
}

static enum status find_reached_by_main(struct auditor *a, struct error *err)
{
	enum status status;

	if (weigh_auxiliary(&a->training, false) == 0) {
		memcpy(a->by_main, a->by_any, (size_t)a->params->n * sizeof(*a->by_main));
		return OK;
	}
	status = find_reached(a, a->by_main, err);
	weigh_auxiliary(&a->training, true);
	return status;
}

enum status audit_wiring(struct auditor *a, struct error *err)
{
	if (find_reached(a, a->by_any, err) != OK || find_reached_by_main(a, err) != OK)
		return FAIL;
	for (int i = 0; i < a->params->n; i++) {
		const char *detail = !a->by_any[i]   ? "receives no gradient"
				     : a->by_main[i] ? ""
						     : "reached only by an auxiliary loss";

		if (auditor_add(a, "wiring", a->params->list[i].name, a->by_any[i], detail, err) !=
		    OK)
			return FAIL;
	}
	return OK;
}
