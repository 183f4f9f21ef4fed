/*
 * Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon/) with the defaults of
 * torch.optim.Muon: Newton-Schulz steps (see the kernel) make the momentum of every matrix
 * approximately orthogonal, in the parameters' own precision.  Slices of a 3-D tensor are
 * matrices; AdamW updates embeddings and vectors.
 */
#include <math.h>

#include "core/optim/type.h"

static bool elementwise(const struct param *p)
{
	return p->role != PARAM_MATRIX;
}

static size_t workspace(const struct optimizer *o, const struct optim_matrices *m)
{
	return o->kernels->muon_workspace(m->rows, m->columns, m->n);
}

static double adjusted(enum muon_adjust adjust, double rows, double columns)
{
	if (adjust == MUON_MATCH_RMS_ADAMW)
		return 0.2 * sqrt(fmax(rows, columns));
	return sqrt(fmax(1, rows / columns));
}

static void update_matrices(struct optimizer *o, const struct optim_matrices *m)
{
	const struct muon_constants constants = {
		.lr_ratio = o->options.muon.lr_ratio,
		.adjust = adjusted(o->options.muon.adjust, (double)m->rows, (double)m->columns),
		.weight_decay = o->options.weight_decay,
		.momentum = o->options.muon.momentum,
		.eps = o->options.muon.eps,
		.nesterov = o->options.muon.nesterov,
		.steps = o->options.muon.steps,
	};

	o->kernels->muon(o->backend, &o->state->factors, &constants, m, &o->blocks, o->work);
}

static void update(struct optimizer *o)
{
	for (int i = 0; i < o->n_shapes; i++)
		update_matrices(o, &o->shapes[i]);
	optim_adamw_update(o);
}

const struct optim_type optim_muon = {
	.has_v = true,
	.elementwise = elementwise,
	.update = update,
	.workspace = workspace,
};
