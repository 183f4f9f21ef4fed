/*
 * storage - which tensors are one, and which are not?
 *
 * No two tensors lie on each other in memory.  The embedding and the head read one table if and
 * only if CONFIG_MODEL_TIE_HEAD says so.  A tensor that was made for a layer is read by one layer;
 * what layers share is made for none (block_shared_table()).
 */
#include <stdlib.h>
#include <string.h>

#include "models/audit/auditor.h"

static size_t bytes_of(const struct param *p)
{
	return (size_t)p->count * dtype_size(p->type);
}

static bool overlap(const struct params *params, int i, int j)
{
	const char *a = param_data(params, i), *b = param_data(params, j);

	return a < b + bytes_of(&params->list[j]) && b < a + bytes_of(&params->list[i]);
}

static enum status audit_memory(const struct auditor *a, struct error *err)
{
	const struct param *list = a->params->list;
	char detail[160] = "";

	for (int i = 0; i < a->params->n; i++)
		for (int j = 0; j < i; j++)
			if (overlap(a->params, i, j))
				snprintf(detail, sizeof(detail), "%.70s lies on %.70s",
					 list[i].name, list[j].name);
	return auditor_add(a, "wiring", "memory", !detail[0], detail, err);
}

/* The parameter that an input is, or a part of; -1: none. */
static int param_of(const struct tensor *t)
{
	const struct tensor *root = t ? tensor_root(t) : NULL;

	return root && root->kind == TENSOR_PARAM ? root->param : -1;
}

/* The parameter that the last node of this kind has as input number `i`. */
static int param_read_by(const struct graph *g, enum op_id id, int i)
{
	for (int k = g->n_nodes - 1; k >= 0; k--)
		if (g->nodes[k]->id == id)
			return param_of(g->nodes[k]->in[i]);
	return -1;
}

static enum status audit_tying(const struct auditor *a, struct error *err)
{
	const char *const value = config_raw(a->config, "MODEL_TIE_HEAD");
	const bool tied = value && strcmp(value, "y") == 0;
	const int table = param_read_by(a->training.g, OP_embedding, 0);
	const int head = param_read_by(a->training.g, OP_head_loss, 1);
	char detail[160];

	snprintf(detail, sizeof(detail), "MODEL_TIE_HEAD=%s, and embedding and head read %s",
		 tied ? "y" : "n", table == head ? "one table" : "two tables");
	return auditor_add(a, "wiring", "tied head", (table == head) == tied, detail, err);
}

/* Which layer reads each parameter; -1: none yet. */
static void find_second_reader(const struct auditor *a, const struct node *n, int *layer,
			       char detail[160])
{
	for (int i = 0; i < n->n_in && n->origin.layer >= 0; i++) {
		const int p = param_of(n->in[i]);

		if (p < 0 || a->params->list[p].origin.layer < 0)
			continue;
		if (layer[p] >= 0 && layer[p] != n->origin.layer)
			snprintf(detail, 160, "layers %d and %d read %.100s", layer[p],
				 n->origin.layer, a->params->list[p].name);
		layer[p] = n->origin.layer;
	}
}

static enum status audit_layers(const struct auditor *a, struct error *err)
{
	int *layer = malloc((size_t)a->params->n * sizeof(*layer));
	char detail[160] = "";

	if (!layer)
		return fail_memory(err, "audit", (size_t)a->params->n * sizeof(*layer));
	for (int i = 0; i < a->params->n; i++)
		layer[i] = -1;
	for (int i = 0; i < a->training.g->n_nodes; i++)
		find_second_reader(a, a->training.g->nodes[i], layer, detail);
	free(layer);
	return auditor_add(a, "wiring", "layers", !detail[0], detail, err);
}

enum status audit_storage(struct auditor *a, struct error *err)
{
	if (audit_memory(a, err) != OK || audit_tying(a, err) != OK)
		return FAIL;
	return audit_layers(a, err);
}
