/*
 * Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon/) with the defaults of
 * torch.optim.Muon: Newton-Schulz steps (see the kernel) make the momentum of every matrix
 * approximately orthogonal, in the parameters' own precision.  Slices of a 3-D tensor are
 * matrices; AdamW updates embeddings and vectors.
 */
#include <math.h>

#include "core/optim/type.h"

/* The last two dimensions. */
static void matrix_size(const struct param *p, int64_t *rows, int64_t *columns)
{
	*rows = p->dim[p->ndim - 2];
	*columns = p->dim[p->ndim - 1];
}

static bool elementwise(const struct param *p)
{
	return p->role != PARAM_MATRIX;
}

static size_t workspace(const struct optimizer *o, const struct param *p)
{
	int64_t rows, columns;

	if (elementwise(p))
		return 0;
	matrix_size(p, &rows, &columns);
	return o->kernels->muon_workspace(rows, columns);
}

static double adjusted(enum muon_adjust adjust, double rows, double columns)
{
	if (adjust == MUON_MATCH_RMS_ADAMW)
		return 0.2 * sqrt(fmax(rows, columns));
	return sqrt(fmax(1, rows / columns));
}

static void update_param(struct optimizer *o, const struct param *p)
{
	const size_t size = dtype_size(o->params->type);
	struct muon_constants constants = {
		.lr_ratio = o->options.muon.lr_ratio,
		.weight_decay = o->options.weight_decay,
		.momentum = o->options.muon.momentum,
		.eps = o->options.muon.eps,
		.nesterov = o->options.muon.nesterov,
		.steps = o->options.muon.steps,
	};
	int64_t rows, columns;

	matrix_size(p, &rows, &columns);
	constants.adjust = adjusted(o->options.muon.adjust, (double)rows, (double)columns);
	for (int64_t done = 0; done < p->count; done += rows * columns) {
		const size_t at = (size_t)(p->offset + done) * size;

		o->kernels->muon(o->backend, &o->state->factors, &constants, rows, columns,
				 (char *)o->blocks.p + at, (const char *)o->blocks.g + at,
				 (char *)o->blocks.m + at, o->work);
	}
}

static void update(struct optimizer *o)
{
	for (int i = 0; i < o->params->n; i++)
		if (!elementwise(&o->params->list[i]))
			update_param(o, &o->params->list[i]);
	optim_adamw_update(o);
}

const struct optim_type optim_muon = {
	.has_v = true,
	.elementwise = elementwise,
	.update = update,
	.workspace = workspace,
};
