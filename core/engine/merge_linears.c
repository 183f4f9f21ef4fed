/*
 * Finds sets of mergeable nodes, lets the op build the merged node, turns the old outputs into
 * slices of the new one, and sorts the nodes so that each follows the producers of its inputs.
 */
#include "core/engine/merge_linears.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------ which nodes can be merged */

/* Does it depend only on parameters? */
static bool depends_on_params_only(const struct tensor *t)
{
	const struct tensor *root = t ? tensor_root(t) : NULL;

	if (!root || root->kind == TENSOR_PARAM)
		return true;
	if (root->kind != TENSOR_ACTIVATION)
		return false;
	for (int i = 0; i < root->producer->n_in; i++)
		if (!depends_on_params_only(root->producer->in[i]))
			return false;
	return true;
}

/* Is it `root` reshaped, so that some trailing dimensions are a row of `root`? */
static bool keeps_rows(const struct tensor *t, const struct tensor *root)
{
	int64_t tail = 1;

	for (int i = t->ndim - 1; i >= 0 && tail < root->row; i--)
		tail *= t->dim[i];
	return tail == root->row && t->offset == 0 && tensor_contiguous(t) &&
	       tensor_count(t) == tensor_count(root);
}

/*
 * Describes `t`, which is `root` or a view of it, as if `root` were columns of a wider tensor.
 * Returns false if that is impossible.
 */
static bool as_columns(struct tensor *moved, const struct tensor *t, const struct tensor *root,
		       int64_t pitch)
{
	const bool is_slice = t->pitch == root->row && t->offset + t->row <= root->row;

	*moved = *t;
	if (!is_slice && !keeps_rows(t, root))
		return false;
	moved->row = is_slice ? t->row : root->row;
	moved->pitch = pitch;
	if (tensor_count(t) == moved->row) /* a single row is contiguous */
		moved->row = moved->pitch = tensor_dim(t, -1);
	return true;
}

static bool is_output(const struct graph *g, const struct tensor *root)
{
	for (int i = 0; i < g->n_outputs; i++)
		if (tensor_root(g->outputs[i].tensor) == root)
			return true;
	return false;
}

/* Does at least one node read it, and do all readers accept a slice? */
static bool is_read_as_slice(const struct graph *g, const struct tensor *root)
{
	struct tensor moved;
	bool is_read = false;

	for (int i = 0; i < g->n_tensors; i++)
		if (g->tensors[i]->base == root &&
		    !as_columns(&moved, g->tensors[i], root, root->row + 1))
			return false;
	for (int i = 0; i < g->n_nodes; i++)
		for (int j = 0; j < g->nodes[i]->n_in; j++) {
			const struct tensor *t = g->nodes[i]->in[j];

			if (!t || tensor_root(t) != root)
				continue;
			as_columns(&moved, t, root, root->row + 1);
			if (!op_takes(g->nodes[i]->op, j, &moved))
				return false;
			is_read = true;
		}
	return is_read;
}

static bool can_be_merged(const struct graph *g, const struct node *n)
{
	if (!n->op->merge || is_output(g, n->out[0]) || !is_read_as_slice(g, n->out[0]))
		return false;
	for (int i = 1; i < n->n_in; i++)
		if (!depends_on_params_only(n->in[i]))
			return false;
	return true;
}

static bool are_mergeable(const struct node *a, const struct node *b)
{
	return a->id == b->id && a->in[0] == b->in[0] &&
	       memcmp(a->attr, b->attr, a->op->attr_size) == 0;
}

/* ------------------------------------------------------------------ merging */

/* Turns `root` and all its views into columns of `merged`, from column `first` on. */
static void move_into(const struct graph *g, struct tensor *root, struct tensor *merged,
		      int64_t first)
{
	for (int i = 0; i < g->n_tensors; i++) {
		struct tensor *t = g->tensors[i], moved;

		if (t->base != root || !as_columns(&moved, t, root, merged->row))
			continue;
		*t = moved;
		t->base = merged;
		t->offset += first;
	}
	root->kind = TENSOR_VIEW;
	root->pitch = tensor_count(root) == root->row ? root->row : merged->row;
	root->base = merged;
	root->offset = first;
	root->producer = NULL;
}

/* Keeps the widest first, so that the others start at aligned columns. */
static void insert(struct node **nodes, int n, struct node *node)
{
	for (; n > 0 && nodes[n - 1]->out[0]->row < node->out[0]->row; n--)
		nodes[n] = nodes[n - 1];
	nodes[n] = node;
}

/* Merges `first` with the mergeable nodes among the first `known` nodes.  Returns their number. */
static int merge_with(struct graph *g, struct node *first, int known, bool *is_merged)
{
	struct node *nodes[OP_MAX_INPUTS];
	struct tensor *merged;
	int64_t column = 0;
	int n = 0;

	for (int i = first->index; i < known && n < OP_MAX_INPUTS; i++)
		if (!is_merged[i] && are_mergeable(g->nodes[i], first) &&
		    can_be_merged(g, g->nodes[i]))
			insert(nodes, n++, g->nodes[i]);
	if (n < 2)
		return 0;
	g->origin = first->origin;
	merged = first->op->merge(g, n, nodes);
	for (int i = 0; merged && i < n; i++) {
		is_merged[nodes[i]->index] = true;
		move_into(g, nodes[i]->out[0], merged, column);
		column += nodes[i]->out[0]->row;
	}
	return merged ? n : 0;
}

/* ------------------------------------------------------------------- order of nodes */

struct order {
	struct node **nodes;
	int n;
};

/* Appends a node after the producers of its inputs. */
static void append(struct order *o, struct node *n)
{
	if (n->index >= 0)
		return;
	n->index = 0;
	for (int i = 0; i < n->n_in; i++)
		if (n->in[i] && tensor_root(n->in[i])->producer)
			append(o, tensor_root(n->in[i])->producer);
	n->index = o->n;
	o->nodes[o->n++] = n;
}

static void sort_nodes(struct graph *g, const bool *is_merged, int known, struct node **scratch)
{
	struct order o = { scratch, 0 };

	for (int i = 0; i < g->n_nodes; i++)
		g->nodes[i]->index = -1;
	for (int i = 0; i < g->n_nodes; i++)
		if (i >= known || !is_merged[i])
			append(&o, g->nodes[i]);
	memcpy(g->nodes, o.nodes, (size_t)o.n * sizeof(*o.nodes));
	g->n_nodes = o.n;
}

/* Returns whether it merged anything. */
static bool merge_once(struct graph *g)
{
	const int known = g->n_nodes;
	bool *is_merged = calloc((size_t)known + 1, sizeof(*is_merged));
	struct node **scratch = NULL;
	int count = 0;

	for (int i = 0; is_merged && i < known && !g->failed; i++)
		if (!is_merged[i] && can_be_merged(g, g->nodes[i]))
			count += merge_with(g, g->nodes[i], known, is_merged);
	scratch = calloc((size_t)g->n_nodes + 1, sizeof(*scratch));
	if (is_merged && scratch) {
		sort_nodes(g, is_merged, known, scratch);
	} else if (!g->failed) {
		fail_memory(&g->err, "graph", (size_t)g->n_nodes * sizeof(*scratch));
		g->failed = true;
	}
	free(scratch);
	free(is_merged);
	return count > 0;
}

/*
 * Repeats until nothing changes: when the readers of weights were merged, the nodes that compute
 * those weights may become mergeable.
 */
void merge_linears(struct graph *g)
{
	while (!g->failed && merge_once(g))
		;
}
