/*
 * Lifetimes of tensors, in-place sharing, and their placement in the arena.
 *
 * Inputs and seeds live for the whole run, outputs to its end.  placement.c packs the lifetimes.
 */
#include "core/engine/arena.h"

#include <stdlib.h>

/*
 * With streams, the memory of a tensor is reused only this many instructions after its last use.
 * By then a new user rarely has to wait for the old one.
 */
#define REUSE_DELAY 32

/* A graph and its lowered form. */
struct lowered_pair {
	const struct graph *g;
	const struct lowered *l;
};

static int tensor_total(struct lowered_pair b)
{
	return b.g->n_tensors + b.l->n_tensors;
}

static const struct tensor *tensor_by_id(struct lowered_pair b, int i)
{
	return i < b.g->n_tensors ? b.g->tensors[i] : b.l->tensors[i - b.g->n_tensors];
}

static void extend(struct placement *life, const struct tensor *t, int when)
{
	struct placement *l;

	if (!t)
		return;
	l = &life[tensor_root(t)->id];
	if (l->last < 0)
		l->first = when;
	l->last = when;
}

static void extend_all(struct placement *life, struct tensor *const *list, int n, int when)
{
	for (int i = 0; i < n; i++)
		extend(life, list[i], when);
}

static void extend_instr(struct placement *life, const struct instr *instr, int when)
{
	extend_all(life, instr->in, OP_MAX_INPUTS, when);
	extend_all(life, instr->saved_out, OP_MAX_OUTPUTS, when);
	extend_all(life, instr->dout, OP_MAX_OUTPUTS, when);
	extend_all(life, instr->out, OP_MAX_OUTPUTS, when);
	extend_all(life, instr->din, OP_MAX_INPUTS, when);
	extend(life, instr->inner, when);
	extend(life, instr->work, when);
	extend(life, instr->zero, when);
}

static void keep_for_whole_run(struct placement *life, const struct tensor *t, int end)
{
	extend(life, t, 0);
	life[tensor_root(t)->id].first = 0;
	life[tensor_root(t)->id].last = end;
}

/* Finds the first and last instruction that use each tensor; last = -1: none does. */
static void find_lifetimes(struct lowered_pair b, struct placement *life)
{
	const struct lowered *l = b.l;
	const int end = l->n_instrs;

	for (int i = 0; i < tensor_total(b); i++)
		life[i] = (struct placement){
			.name = tensor_by_id(b, i)->name,
			.bytes = tensor_bytes(tensor_by_id(b, i)),
			.last = -1,
		};
	/*
	 * One call runs all its fused instructions, so their tensors live from its start to its
	 * end.
	 */
	for (int first = 0; first < l->n_instrs; first += l->instrs[first].fused) {
		const int next = first + l->instrs[first].fused;

		for (int i = first; i < next; i++) {
			extend_instr(life, &l->instrs[i], first);
			extend_instr(life, &l->instrs[i], next - 1);
		}
	}
	/* Filled before the run, or read after it. */
	for (int i = 0; i < b.g->n_tensors; i++)
		if (is_filled_outside(b.g->tensors[i]))
			keep_for_whole_run(life, b.g->tensors[i], end);
	for (int i = 0; i < l->n_seeds; i++)
		keep_for_whole_run(life, l->seeds[i].gradient, end);
	for (int i = 0; i < b.g->n_outputs; i++)
		life[tensor_root(b.g->outputs[i].tensor)->id].last = end;
}

static bool is_input_or_seed(struct lowered_pair b, const struct tensor *t)
{
	for (int i = 0; i < b.l->n_seeds; i++)
		if (b.l->seeds[i].gradient == t)
			return true;
	return is_filled_outside(t);
}

/* Delays the reuse of memory, since other streams may still work. */
static void delay_reuse(struct lowered_pair b, struct placement *life)
{
	for (int i = 0; i < tensor_total(b); i++)
		if (life[i].last >= 0 && life[i].last < b.l->n_instrs)
			life[i].last = life[i].last + REUSE_DELAY < b.l->n_instrs
					       ? life[i].last + REUSE_DELAY
					       : b.l->n_instrs;
}

/*
 * If an instruction may overwrite an input with its result, and reads it last, both share one
 * allocation.
 */
static void merge_in_place(struct lowered_pair b, struct placement *life, int *owner)
{
	for (int i = 0; i < b.l->n_instrs; i++) {
		const struct instr *instr = &b.l->instrs[i];
		const struct tensor *from = instr->dout[0];
		const struct tensor *to = instr->in_place ? instr->din[0] : instr->inner;
		int shared;

		if (!from || !to || is_in_params(from) || is_in_params(to) ||
		    is_input_or_seed(b, from) || life[from->id].bytes != life[to->id].bytes)
			continue;
		shared = owner[from->id];
		if (life[shared].last != i || life[to->id].first != i || owner[to->id] != to->id)
			continue;
		owner[to->id] = shared;
		life[shared].last = life[to->id].last;
	}
}

static void collect_placements(struct arena *a, struct lowered_pair b, const struct placement *life,
			       const int *owner)
{
	for (int i = 0; i < tensor_total(b); i++) {
		const struct tensor *t = tensor_by_id(b, i);

		a->item_of[i] = -1;
		if (t->base || is_in_params(t) || life[i].last < 0)
			continue;
		if (owner[i] != i) {
			a->item_of[i] = a->item_of[owner[i]];
			continue;
		}
		a->item_of[i] = a->n_items;
		a->items[a->n_items++] = life[i];
	}
}

enum status arena_plan(struct arena *a, const struct graph *g, const struct lowered *l,
		       struct arena_options options, struct error *err)
{
	const struct lowered_pair b = { g, l };
	const int n = tensor_total(b);
	struct placement *life = malloc((size_t)n * sizeof(*life));
	int *owner = malloc((size_t)n * sizeof(*owner));
	enum status status = FAIL;

	*a = (struct arena){
		.items = calloc((size_t)n, sizeof(*a->items)),
		.item_of = malloc((size_t)n * sizeof(*a->item_of)),
	};
	if (!life || !owner || !a->items || !a->item_of) {
		fail_memory(err, "memory planner", (size_t)n * sizeof(*life));
		goto free_life;
	}
	find_lifetimes(b, life);
	for (int i = 0; i < n; i++)
		owner[i] = i;
	if (options.has_streams)
		delay_reuse(b, life);
	else if (!options.separate)
		merge_in_place(b, life, owner);
	collect_placements(a, b, life, owner);
	status = placement_assign(a->items, a->n_items, options.separate, &a->bytes, err);
	if (status == OK)
		status = placement_verify(a->items, a->n_items, a->bytes, err);
free_life:
	free(life);
	free(owner);
	return status;
}

void arena_free(struct arena *a)
{
	free(a->items);
	free(a->item_of);
	*a = (struct arena){ 0 };
}

const struct placement *arena_placement(const struct arena *a, const struct tensor *root)
{
	const int item = a->item_of[root->id];

	return item < 0 ? NULL : &a->items[item];
}
