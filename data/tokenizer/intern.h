/*
 * intern - distinct byte strings, and distinct pairs of ids, numbered in order of arrival.
 *
 * Callers keep what they know about a string or pair in arrays indexed by its number.
 * Hash tables with open addressing, at most half full; nothing is ever removed.
 */
#ifndef DATA_TOKENIZER_INTERN_H
#define DATA_TOKENIZER_INTERN_H

#include <stddef.h>
#include <stdint.h>

#define INTERN_NONE UINT32_MAX

/* FNV-1a, then the finalizer of MurmurHash3 so that every bit depends on every byte. */
uint64_t hash_bytes(const uint8_t *bytes, size_t size);

struct strings {
	uint8_t *pool;
	size_t pool_used, pool_room;
	uint64_t *start; /* count + 1 places in the pool */
	uint32_t *slot;	 /* number + 1, or 0 */
	uint32_t count, slots;
};

/* The number of the string, which is added if it is new; INTERN_NONE without memory. */
uint32_t strings_add(struct strings *s, const uint8_t *bytes, size_t size);
/* The number of the string, or INTERN_NONE. */
uint32_t strings_find(const struct strings *s, const uint8_t *bytes, size_t size);
void strings_free(struct strings *s);

static inline const uint8_t *strings_at(const struct strings *s, uint32_t number)
{
	return s->pool + s->start[number];
}

static inline size_t strings_size(const struct strings *s, uint32_t number)
{
	return s->start[number + 1] - s->start[number];
}

struct pairs {
	struct pair_slot {
		uint32_t pair, number; /* number + 1, or 0 */
	} * slot;
	uint32_t count, slots;
};

/* Ids are below 2^16, so a pair of them is one word. */
static inline uint32_t pair_of(uint32_t left, uint32_t right)
{
	return left << 16 | right;
}

uint32_t pairs_add(struct pairs *p, uint32_t pair);
void pairs_free(struct pairs *p);

/* Multiplicative hashing (Knuth, TAOCP 6.4): the golden ratio times 2^64. */
static inline uint32_t pairs_slot(const struct pairs *p, uint32_t pair)
{
	uint32_t at = (uint32_t)((pair * 0x9e3779b97f4a7c15u) >> 32) & (p->slots - 1);

	while (p->slot[at].number && p->slot[at].pair != pair)
		at = (at + 1) & (p->slots - 1);
	return at;
}

static inline uint32_t pairs_find(const struct pairs *p, uint32_t pair)
{
	/* A free slot holds 0, and 0 - 1 is INTERN_NONE. */
	return p->slots ? p->slot[pairs_slot(p, pair)].number - 1 : INTERN_NONE;
}

#endif
