#include "core/engine/placement.h"

#include <stdint.h>
#include <stdlib.h>

static size_t aligned(size_t bytes)
{
	return (bytes + PLACEMENT_ALIGNMENT - 1) / PLACEMENT_ALIGNMENT * PLACEMENT_ALIGNMENT;
}

static bool alive_together(const struct placement *a, const struct placement *b)
{
	return a->first <= b->last && b->first <= a->last;
}

/* Larger first; ties in the order of birth, so that the plan is the same everywhere. */
static int by_size(const void *a, const void *b)
{
	const struct placement *x = *(struct placement *const *)a,
			       *y = *(struct placement *const *)b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	if (x->first != y->first)
		return x->first < y->first ? -1 : 1;
	return x < y ? -1 : x > y;
}

/* `placed` is sorted by offset; returns the start of the smallest gap that holds the item. */
static size_t best_gap(struct placement *const *placed, int n, const struct placement *item)
{
	size_t best = SIZE_MAX, best_size = SIZE_MAX, end = 0;

	for (int i = 0; i < n; i++) {
		if (!alive_together(placed[i], item))
			continue;
		if (placed[i]->offset > end) {
			size_t gap = placed[i]->offset - end;

			if (gap >= aligned(item->bytes) && gap < best_size) {
				best = end;
				best_size = gap;
			}
		}
		if (placed[i]->offset + aligned(placed[i]->bytes) > end)
			end = placed[i]->offset + aligned(placed[i]->bytes);
	}
	return best != SIZE_MAX ? best : end;
}

static void insert_by_offset(struct placement **placed, int n, struct placement *item)
{
	int i = n;

	for (; i > 0 && placed[i - 1]->offset > item->offset; i--)
		placed[i] = placed[i - 1];
	placed[i] = item;
}

enum status placement_assign(struct placement *items, int n, bool separate, size_t *total,
			     struct error *err)
{
	const size_t room = (size_t)(n ? n : 1);
	struct placement **order = malloc(2 * room * sizeof(*order)), **placed;

	if (!order)
		return fail_memory(err, "memory planner", 2 * room * sizeof(*order));
	placed = order + room;
	for (int i = 0; i < n; i++)
		order[i] = &items[i];
	qsort(order, (size_t)n, sizeof(*order), by_size);
	*total = 0;
	for (int i = 0; i < n; i++) {
		struct placement *item = order[i];

		item->offset = separate ? *total : best_gap(placed, i, item);
		if (item->offset + aligned(item->bytes) > *total)
			*total = item->offset + aligned(item->bytes);
		insert_by_offset(placed, i, item);
	}
	free(order);
	return OK;
}

enum status placement_verify(const struct placement *items, int n, size_t total, struct error *err)
{
	for (int i = 0; i < n; i++) {
		const struct placement *a = &items[i];

		if (a->first > a->last || a->offset + a->bytes > total)
			return fail(err, "memory plan: '%s' has no valid place", a->name);
		for (int j = 0; j < i; j++) {
			const struct placement *b = &items[j];

			if (alive_together(a, b) && a->offset < b->offset + b->bytes &&
			    b->offset < a->offset + a->bytes)
				return fail(err, "memory plan: '%s' and '%s' overlap", a->name,
					    b->name);
		}
	}
	return OK;
}
