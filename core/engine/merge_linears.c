#include "core/engine/merge_linears.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ who can be joined */

/* Nothing of it waits for an activation that depends on the data. */
static bool is_made_of_params(const struct tensor *t)
{
	const struct tensor *root = t ? tensor_root(t) : NULL;

	if (!root || root->kind == TENSOR_PARAM)
		return true;
	if (root->kind != TENSOR_ACTIVATION)
		return false;
	for (int i = 0; i < root->producer->n_in; i++)
		if (!is_made_of_params(root->producer->in[i]))
			return false;
	return true;
}

/* Is it `root` under another shape, in which some trailing dimensions are a row of `root`? */
static bool keeps_rows(const struct tensor *t, const struct tensor *root)
{
	int64_t tail = 1;

	for (int i = t->ndim - 1; i >= 0 && tail < root->row; i--)
		tail *= t->dim[i];
	return tail == root->row && t->offset == 0 && tensor_contiguous(t) &&
	       tensor_count(t) == tensor_count(root);
}

/* `t`, which is `root` or a view of it, if `root` were columns of a wider tensor; false: it cannot
 * be. */
static bool as_columns(struct tensor *moved, const struct tensor *t, const struct tensor *root,
		       int64_t pitch)
{
	const bool is_slice = t->pitch == root->row && t->offset + t->row <= root->row;

	*moved = *t;
	if (!is_slice && !keeps_rows(t, root))
		return false;
	moved->row = is_slice ? t->row : root->row;
	moved->pitch = pitch;
	if (tensor_count(t) == moved->row) /* one row: as any other tensor without gaps */
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

/* Do some nodes read it, and all of them take it as a slice? */
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

static bool can_be_joined(const struct graph *g, const struct node *n)
{
	if (!n->op->merge || is_output(g, n->out[0]) || !is_read_as_slice(g, n->out[0]))
		return false;
	for (int i = 1; i < n->n_in; i++)
		if (!is_made_of_params(n->in[i]))
			return false;
	return true;
}

static bool are_siblings(const struct node *a, const struct node *b)
{
	return a->id == b->id && a->in[0] == b->in[0] &&
	       memcmp(a->attr, b->attr, a->op->attr_size) == 0;
}

/* ------------------------------------------------------------------ one for all */

/* `root` and all views of it see columns of `wide` from now on, from `first` on. */
static void move_into(const struct graph *g, struct tensor *root, struct tensor *wide,
		      int64_t first)
{
	for (int i = 0; i < g->n_tensors; i++) {
		struct tensor *t = g->tensors[i], moved;

		if (t->base != root || !as_columns(&moved, t, root, wide->row))
			continue;
		*t = moved;
		t->base = wide;
		t->offset += first;
	}
	root->kind = TENSOR_VIEW;
	root->pitch = tensor_count(root) == root->row ? root->row : wide->row;
	root->base = wide;
	root->offset = first;
	root->producer = NULL;
}

/* The widest first: the others begin at multiples of large numbers then, which devices like. */
static void insert(struct node **nodes, int n, struct node *node)
{
	for (; n > 0 && nodes[n - 1]->out[0]->row < node->out[0]->row; n--)
		nodes[n] = nodes[n - 1];
	nodes[n] = node;
}

/* Joins `first` and its siblings among the first `known` nodes; returns how many. */
static int join_with(struct graph *g, struct node *first, int known, bool *is_gone)
{
	struct node *nodes[OP_MAX_INPUTS];
	struct tensor *wide;
	int64_t column = 0;
	int n = 0;

	for (int i = first->index; i < known && n < OP_MAX_INPUTS; i++)
		if (!is_gone[i] && are_siblings(g->nodes[i], first) &&
		    can_be_joined(g, g->nodes[i]))
			insert(nodes, n++, g->nodes[i]);
	if (n < 2)
		return 0;
	g->origin = first->origin;
	wide = first->op->merge(g, n, nodes);
	for (int i = 0; wide && i < n; i++) {
		is_gone[nodes[i]->index] = true;
		move_into(g, nodes[i]->out[0], wide, column);
		column += nodes[i]->out[0]->row;
	}
	return wide ? n : 0;
}

/* ------------------------------------------------------------------- the order */

struct order {
	struct node **nodes;
	int n;
};

/* After all that it reads. */
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

static void put_in_order(struct graph *g, const bool *is_gone, int known, struct node **room)
{
	struct order o = { room, 0 };

	for (int i = 0; i < g->n_nodes; i++)
		g->nodes[i]->index = -1;
	for (int i = 0; i < g->n_nodes; i++)
		if (i >= known || !is_gone[i])
			append(&o, g->nodes[i]);
	memcpy(g->nodes, o.nodes, (size_t)o.n * sizeof(*o.nodes));
	g->n_nodes = o.n;
}

/* Returns whether anything was joined. */
static bool join_once(struct graph *g)
{
	const int known = g->n_nodes;
	bool *is_gone = calloc((size_t)known + 1, sizeof(*is_gone));
	struct node **room = NULL;
	int joined = 0;

	for (int i = 0; is_gone && i < known && !g->failed; i++)
		if (!is_gone[i] && can_be_joined(g, g->nodes[i]))
			joined += join_with(g, g->nodes[i], known, is_gone);
	room = calloc((size_t)g->n_nodes + 1, sizeof(*room));
	if (is_gone && room) {
		put_in_order(g, is_gone, known, room);
	} else if (!g->failed) {
		fail_memory(&g->err, "graph", (size_t)g->n_nodes * sizeof(*room));
		g->failed = true;
	}
	free(room);
	free(is_gone);
	return joined > 0;
}

/* Again as long as it helps: makers of weights become siblings when what reads those takes slices
 * of them. */
void merge_linears(struct graph *g)
{
	while (!g->failed && join_once(g))
		;
}
