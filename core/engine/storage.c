#include "core/engine/storage.h"

const char *const precision_names[] = {
	[FLOAT32] = "float32",
	[FLOAT64] = "float64",
	[BFLOAT16] = "bfloat16",
	[BFLOAT16_STORED] = "bfloat16 stored",
	[PRECISIONS] = NULL,
};

enum dtype precision_type(enum precision precision)
{
	return precision == FLOAT64 ? F64 : F32;
}

static bool is_real_activation(const struct tensor *t)
{
	return t && t->kind == TENSOR_ACTIVATION && t->type != I32;
}

static bool is_read(const struct graph *g, const struct tensor *root)
{
	for (int i = 0; i < g->n_nodes; i++)
		for (int j = 0; j < g->nodes[i]->n_in; j++)
			if (g->nodes[i]->in[j] && tensor_root(g->nodes[i]->in[j]) == root)
				return true;
	return false;
}

static void keep_narrow_outputs(const struct node *n, enum dtype wide, enum dtype narrow)
{
	for (int i = 0; i < n->n_out; i++)
		if (is_real_activation(n->out[i]))
			n->out[i]->type = n->op->narrow_out & BIT(i) ? narrow : wide;
}

static void keep_wide(struct tensor *t, enum dtype wide)
{
	struct tensor *root = t && t->base ? t->base : t;

	if (is_real_activation(root))
		root->type = wide;
}

void storage_assign(const struct graph *g, enum precision precision)
{
	const bool narrows = precision == BFLOAT16_STORED && g->type == F32;
	const enum dtype wide = g->type, narrow = narrows ? BF16 : wide;

	for (int i = 0; i < g->n_nodes; i++)
		keep_narrow_outputs(g->nodes[i], wide, narrow);
	for (int i = 0; i < g->n_nodes; i++)
		for (int j = 0; j < g->nodes[i]->n_in; j++)
			if (!(g->nodes[i]->op->narrow_in & BIT(j)))
				keep_wide(g->nodes[i]->in[j], wide);
	/* What only the host reads is a result.  To look at an activation does not change it. */
	for (int i = 0; i < g->n_outputs; i++)
		if (!g->outputs[i].seeded && !is_read(g, tensor_root(g->outputs[i].tensor)))
			keep_wide(g->outputs[i].tensor, wide);
	for (int i = 0; i < g->n_tensors; i++)
		if (g->tensors[i]->base)
			g->tensors[i]->type = g->tensors[i]->base->type;
}
