#include "data/tokenizer/intern.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 1024 };

uint64_t hash_bytes(const uint8_t *bytes, size_t size)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (size_t i = 0; i < size; i++)
		h = (h ^ bytes[i]) * 0x100000001b3u;
	h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
	h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
	return h ^ h >> 33;
}

static uint32_t slot_of(const struct strings *s, const uint8_t *bytes, size_t size)
{
	uint32_t at = (uint32_t)hash_bytes(bytes, size) & (s->slots - 1);

	for (; s->slot[at]; at = (at + 1) & (s->slots - 1)) {
		uint32_t number = s->slot[at] - 1;

		if (strings_size(s, number) == size && !memcmp(strings_at(s, number), bytes, size))
			break;
	}
	return at;
}

static bool strings_grow(struct strings *s)
{
	uint32_t slots = s->slots ? 2 * s->slots : FIRST_SLOTS;
	uint64_t *start = realloc(s->start, (slots / 2 + 1) * sizeof(*start));
	uint32_t *slot;

	if (!start)
		return false;
	start[s->count] = s->pool_used;
	s->start = start;
	slot = calloc(slots, sizeof(*slot));
	if (!slot)
		return false;
	free(s->slot);
	s->slot = slot;
	s->slots = slots;
	for (uint32_t i = 0; i < s->count; i++)
		s->slot[slot_of(s, strings_at(s, i), strings_size(s, i))] = i + 1;
	return true;
}

static bool pool_reserve(struct strings *s, size_t size)
{
	size_t room = s->pool_room ? s->pool_room : 16 * FIRST_SLOTS;
	uint8_t *pool;

	if (s->pool && s->pool_room - s->pool_used >= size)
		return true;
	while (room - s->pool_used < size)
		room *= 2;
	pool = realloc(s->pool, room);
	if (!pool)
		return false;
	s->pool = pool;
	s->pool_room = room;
	return true;
}

uint32_t strings_add(struct strings *s, const uint8_t *bytes, size_t size)
{
	uint32_t at;

	if (s->count >= s->slots / 2 && (s->count >= 1u << 30 || !strings_grow(s)))
		return INTERN_NONE;
	at = slot_of(s, bytes, size);
	if (s->slot[at])
		return s->slot[at] - 1;
	if (!pool_reserve(s, size))
		return INTERN_NONE;
	if (size)
		memcpy(s->pool + s->pool_used, bytes, size);
	s->pool_used += size;
	s->start[++s->count] = s->pool_used;
	s->slot[at] = s->count;
	return s->count - 1;
}

uint32_t strings_find(const struct strings *s, const uint8_t *bytes, size_t size)
{
	return s->slots ? s->slot[slot_of(s, bytes, size)] - 1 : INTERN_NONE;
}

void strings_free(struct strings *s)
{
	free(s->pool);
	free(s->start);
	free(s->slot);
	*s = (struct strings){ 0 };
}

static bool pairs_grow(struct pairs *p)
{
	struct pairs bigger = { .count = p->count, .slots = p->slots ? 2 * p->slots : FIRST_SLOTS };

	bigger.slot = calloc(bigger.slots, sizeof(*bigger.slot));
	if (!bigger.slot)
		return false;
	for (uint32_t i = 0; i < p->slots; i++)
		if (p->slot[i].number)
			bigger.slot[pairs_slot(&bigger, p->slot[i].pair)] = p->slot[i];
	free(p->slot);
	*p = bigger;
	return true;
}

uint32_t pairs_add(struct pairs *p, uint32_t pair)
{
	struct pair_slot *slot;

	if (p->count >= p->slots / 2 && (p->count >= 1u << 30 || !pairs_grow(p)))
		return INTERN_NONE;
	slot = &p->slot[pairs_slot(p, pair)];
	if (!slot->number)
		*slot = (struct pair_slot){ pair, ++p->count };
	return slot->number - 1;
}

void pairs_free(struct pairs *p)
{
	free(p->slot);
	*p = (struct pairs){ 0 };
}
