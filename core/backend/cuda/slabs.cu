#include <stdlib.h>
#include <string.h>

#include "core/backend/cuda/slabs.cuh"

#define SLAB_ALIGNMENT 256 /* as of cudaMalloc() */

static size_t rounded_up(size_t bytes)
{
	return (bytes + SLAB_ALIGNMENT - 1) / SLAB_ALIGNMENT * SLAB_ALIGNMENT;
}

bool slabs_grow(struct cuda_context *g)
{
	struct slabs *s = &g->slabs;
	const size_t bytes = replica_stride(g->replicas) * (size_t)replica_count(g->replicas);
	void *list = realloc(s->list, (size_t)(s->n + 1) * sizeof(*s->list));
	cudaError_t error;

	if (!list)
		return false;
	s->list = (char **)list;
	error = cudaMalloc(&s->list[s->n], bytes);
	if (error != cudaSuccess) {
		cudaGetLastError();
		if (error != cudaErrorMemoryAllocation)
			cuda_note(g, error, "allocating memory");
		return false;
	}
	s->n++;
	g->allocated += bytes;
	g->peak = g->allocated > g->peak ? g->allocated : g->peak;
	return true;
}

/* Makes room for one more block in the list. */
static bool has_space(struct cuda_context *g)
{
	const int capacity = 2 * g->block_capacity + 64;
	void *list = g->blocks;

	if (g->n_blocks < g->block_capacity)
		return true;
	list = realloc(g->blocks, (size_t)capacity * sizeof(*g->blocks));
	if (!list)
		return false;
	g->blocks = (struct block *)list;
	g->block_capacity = capacity;
	return true;
}

static char *insert(struct cuda_context *g, int index, char *at, size_t bytes)
{
	memmove(g->blocks + index + 1, g->blocks + index,
		(size_t)(g->n_blocks - index) * sizeof(*g->blocks));
	g->blocks[index] = { at, bytes };
	g->n_blocks++;
	return at;
}

/* The first gap of `bytes` bytes in a slab that begins at `at`; NULL: there is none. */
static char *take_from(struct cuda_context *g, char *at, size_t bytes)
{
	const char *end = at + replica_stride(g->replicas);
	int i = 0;

	while (i < g->n_blocks && (char *)g->blocks[i].at < at)
		i++;
	for (; i < g->n_blocks && (char *)g->blocks[i].at < end; i++) {
		if ((size_t)((char *)g->blocks[i].at - at) >= bytes)
			return insert(g, i, at, bytes);
		at = (char *)g->blocks[i].at + g->blocks[i].bytes;
	}
	return (size_t)(end - at) >= bytes ? insert(g, i, at, bytes) : NULL;
}

void *slabs_alloc(struct cuda_context *g, size_t bytes)
{
	const size_t taken = rounded_up(bytes ? bytes : 1);

	if (taken > replica_stride(g->replicas) || !has_space(g))
		return NULL;
	for (int i = 0;; i++) {
		if (i == g->slabs.n && !slabs_grow(g))
			return NULL;
		if (char *at = take_from(g, g->slabs.list[i], taken))
			return tagged(at);
	}
}

void slabs_release(struct cuda_context *g, const void *at)
{
	const void *address = in_replica(g->replicas, at, 0);

	for (int i = 0; i < g->n_blocks; i++)
		if (g->blocks[i].at == address) {
			g->n_blocks--;
			memmove(g->blocks + i, g->blocks + i + 1,
				(size_t)(g->n_blocks - i) * sizeof(*g->blocks));
			return;
		}
}

void slabs_free(struct cuda_context *g)
{
	for (int i = 0; i < g->slabs.n; i++)
		cudaFree(g->slabs.list[i]);
	free(g->slabs.list);
	g->slabs = {};
}
