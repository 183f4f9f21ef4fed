/*
 * heap - a binary heap, smallest (major, minor) first.
 *
 * The caller provides the memory: `item` must have room for all entries.
 */
#ifndef DATA_TOKENIZER_HEAP_H
#define DATA_TOKENIZER_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap_item {
	uint64_t major, minor;
};

struct heap {
	struct heap_item *item;
	size_t count;
};

static inline bool heap_before(struct heap_item a, struct heap_item b)
{
	return a.major < b.major || (a.major == b.major && a.minor < b.minor);
}

static inline void heap_push(struct heap *h, struct heap_item item)
{
	size_t at = h->count++;

	for (; at > 0 && heap_before(item, h->item[(at - 1) / 2]); at = (at - 1) / 2)
		h->item[at] = h->item[(at - 1) / 2];
	h->item[at] = item;
}

static inline struct heap_item heap_pop(struct heap *h)
{
	struct heap_item top = h->item[0], last = h->item[--h->count];
	size_t at = 0, child;

	while ((child = 2 * at + 1) < h->count) {
		if (child + 1 < h->count && heap_before(h->item[child + 1], h->item[child]))
			child++;
		if (!heap_before(h->item[child], last))
			break;
		h->item[at] = h->item[child];
		at = child;
	}
	h->item[at] = last;
	return top;
}

#endif
