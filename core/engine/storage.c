#include "core/engine/storage.h"

const char *const precision_names[] = {
	[FLOAT32] = "float32",
	[FLOAT64] = "float64",
	[BFLOAT16] = "bfloat16",
	[BFLOAT16_STORED] = "bfloat16 stored",
	[BFLOAT16_STREAM] = "bfloat16 stored with residual",
	[PRECISIONS] = NULL,
};

enum dtype precision_type(enum precision precision)
{
	return precision == FLOAT64 ? F64 : F32;
}

/* Is its type chosen here? */
static bool is_chosen(const struct tensor *t)
{
	return t && (t->kind == TENSOR_ACTIVATION || t->kind == TENSOR_STATE) && t->type != I32;
}

static bool is_read(const struct graph *g, const struct tensor *root)
{
	for (int i = 0; i < g->n_nodes; i++)
		for (int j = 0; j < g->nodes[i]->n_in; j++)
			if (g->nodes[i]->in[j] && tensor_root(g->nodes[i]->in[j]) == root)
				return true;
	return false;
}

/* A scalar stays wide: its error would be that of all that it multiplies. */
static void keep_narrow_outputs(const struct graph *g, const struct node *n,
				enum precision precision)
{
	const bool narrows = precision_stores(precision) && g->type == F32;
	const unsigned may = storage_narrow_out(n->op, precision);

	for (int i = 0; i < n->n_out; i++)
		if (is_chosen(n->out[i]))
			n->out[i]->type = narrows && (may & BIT(i)) && tensor_count(n->out[i]) > 1
						  ? BF16
						  : g->type;
}

static void keep_wide(struct tensor *t, enum dtype wide)
{
	struct tensor *root = t && t->base ? t->base : t;

	if (is_chosen(root))
		root->type = wide;
}

/* State never rounds: it is narrow where what it keeps is, and where the state's memory says so. */
static void choose_state(const struct graph *g, const struct node *n, int number)
{
	/* Of several inputs, each has a state of its own. */
	const enum dtype kept = tensor_root(n->in[n->n_in > 1 ? number : 0])->type;
	struct tensor *t = n->out[number];

	if (t->type != kept)
		t->type = g->type;
	params_keep_as(g->state, t->param, t->type);
	t->type = g->state->list[t->param].type;
}

static void choose_states(const struct graph *g)
{
	for (int i = 0; i < g->n_nodes; i++)
		for (int j = 0; j < g->nodes[i]->n_out; j++)
			if (g->nodes[i]->out[j]->kind == TENSOR_STATE)
				choose_state(g, g->nodes[i], j);
}

/* Nothing flows back where runs continue each other. */
static void choose_lost(const struct graph *g)
{
	for (int i = 0; i < g->n_nodes; i++) {
		const struct node *n = g->nodes[i];

		if (n->op->rounding_error_out)
			n->out[n->op->rounding_error_out]->type =
				n->out[0]->type == BF16 && !g->state ? BF16 : NOTHING;
	}
}

static void choose_gradients(const struct graph *g)
{
	for (int i = 0; i < g->n_nodes; i++) {
		const struct node *n = g->nodes[i];

		for (int j = 0; j < n->n_out; j++)
			n->out[j]->gradient_type =
				n->op->full_gradient_out & BIT(j) ? g->type : n->out[j]->type;
	}
}

static void see_as_base(struct tensor *view)
{
	view->type = view->base->type;
	view->gradient_type = view->base->gradient_type;
}

void storage_assign(const struct graph *g, enum precision precision)
{
	const enum dtype wide = g->type;

	for (int i = 0; i < g->n_nodes; i++)
		keep_narrow_outputs(g, g->nodes[i], precision);
	for (int i = 0; i < g->n_nodes; i++)
		for (int j = 0; j < g->nodes[i]->n_in; j++)
			if (!(storage_narrow_in(g->nodes[i]->op, precision) & BIT(j)))
				keep_wide(g->nodes[i]->in[j], wide);
	/* What only the host reads is a result.  To look at an activation does not change it. */
	for (int i = 0; i < g->n_outputs; i++)
		if (!g->outputs[i].seeded && !is_read(g, tensor_root(g->outputs[i].tensor)))
			keep_wide(g->outputs[i].tensor, wide);
	choose_states(g);
	choose_lost(g);
	choose_gradients(g);
	for (int i = 0; i < g->n_tensors; i++)
		if (g->tensors[i]->base)
			see_as_base(g->tensors[i]);
}
