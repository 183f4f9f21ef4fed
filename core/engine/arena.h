/*
 * The memory plan: a place for every tensor of a lowered graph in one arena.
 *
 * A tensor occupies its place from the first instruction that uses it to the last.
 */
#ifndef CORE_ENGINE_ARENA_H
#define CORE_ENGINE_ARENA_H

#include <stdbool.h>
#include <stdio.h>

#include "core/engine/lower.h"
#include "core/engine/placement.h"

struct arena {
	struct placement *items; /* the allocations */
	int n_items;
	int *item_of; /* by tensor id (roots): index of its allocation; -1: in a struct params, or
			 unused */
	size_t bytes;
};

struct arena_options {
	bool separate;	  /* no two tensors share memory */
	bool has_streams; /* instructions run on several streams */
};

/* Only plans; the caller allocates the memory. */
enum status arena_plan(struct arena *a, const struct graph *g, const struct lowered *l,
		       struct arena_options options, struct error *err) MUST_CHECK;
void arena_free(struct arena *a);

/* The allocation of a root tensor; NULL: it has none. */
const struct placement *arena_placement(const struct arena *a, const struct tensor *root);

/* Parameters, their gradients and state live in a struct params, not in the arena. */
/* Does something else than an instruction fill it? */
static inline bool is_filled_outside(const struct tensor *t)
{
	return t->kind == TENSOR_INPUT || t->kind == TENSOR_CONSTANT;
}

static inline bool is_in_params(const struct tensor *root)
{
	return root->param >= 0;
}

#endif
