#include "core/util/pool.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((size_t)64 << 10)
#define ALIGNMENT _Alignof(max_align_t)

struct pool_chunk {
	struct pool_chunk *next;
	size_t used, size;
	_Alignas(max_align_t) unsigned char bytes[];
};

static struct pool_chunk *add_chunk(struct pool *r, size_t size)
{
	struct pool_chunk *chunk;

	if (size > SIZE_MAX - sizeof(*chunk))
		return NULL;
	chunk = calloc(1, sizeof(*chunk) + size);
	if (!chunk)
		return NULL;
	chunk->size = size;
	chunk->next = r->chunks;
	r->chunks = chunk;
	return chunk;
}

void *pool_alloc(struct pool *r, size_t size)
{
	struct pool_chunk *chunk = r->chunks;
	void *memory;

	if (size > SIZE_MAX - ALIGNMENT)
		return NULL;
	size = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	if (!chunk || chunk->size - chunk->used < size)
		chunk = add_chunk(r, size > CHUNK_BYTES ? size : CHUNK_BYTES);
	if (!chunk)
		return NULL;
	memory = chunk->bytes + chunk->used;
	chunk->used += size;
	return memory;
}

char *pool_vprintf(struct pool *r, const char *format, va_list args)
{
	va_list again;
	int length;
	char *text;

	va_copy(again, args);
	length = vsnprintf(NULL, 0, format, again);
	va_end(again);
	if (length < 0)
		return NULL;
	text = pool_alloc(r, (size_t)length + 1);
	if (text)
		vsnprintf(text, (size_t)length + 1, format, args);
	return text;
}

char *pool_printf(struct pool *r, const char *format, ...)
{
	va_list args;
	char *text;

	va_start(args, format);
	text = pool_vprintf(r, format, args);
	va_end(args);
	return text;
}

void pool_free(struct pool *r)
{
	while (r->chunks) {
		struct pool_chunk *chunk = r->chunks;

		r->chunks = chunk->next;
		free(chunk);
	}
}
