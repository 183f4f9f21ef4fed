/*
 * placement - places in one arena for things whose lifetimes are known.
 *
 * Items that are alive at the same instruction never overlap in memory.
 * Largest first, each in the smallest gap that holds it (greedy by size,
 * as in Y. Pisarchyk, J. Lee, "Efficient memory management for deep neural
 * net inference", 2020).
 */
#ifndef CORE_ENGINE_PLACEMENT_H
#define CORE_ENGINE_PLACEMENT_H

#include <stddef.h>

#include "core/util/status.h"

#define PLACEMENT_ALIGNMENT 64

struct placement {
	const char *name;
	size_t bytes;
	int first, last; /* instructions, inclusive */
	size_t offset;	 /* the answer */
};

/* `separate`: no two items share memory. */
enum status placement_assign(struct placement *items, int n, bool separate, size_t *total,
			     struct error *err) MUST_CHECK;

/* Fails, naming both, if two items that live at the same time overlap. */
enum status placement_verify(const struct placement *items, int n, size_t total,
			     struct error *err) MUST_CHECK;

#endif
