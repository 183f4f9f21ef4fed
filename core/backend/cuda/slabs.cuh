/*
 * slabs - the memory of replicas: each allocation at one place in all of them.
 *
 * A slab has `stride` bytes for each replica, one replica after another.  All slabs have the same
 * stride, so the distance from one replica to the next is the same everywhere.
 */
#ifndef CUDA_SLABS_CUH
#define CUDA_SLABS_CUH

#include "core/backend/cuda/primitives/kernel.cuh"

/* False when the GPU has too little memory for one more slab. */
bool slabs_grow(struct cuda_context *g);

/*
 * The engine's address of `bytes` bytes in every replica, not cleared.  NULL: the GPU, or the
 * stride, is too small.
 */
void *slabs_alloc(struct cuda_context *g, size_t bytes);
void slabs_release(struct cuda_context *g, const void *at);

void slabs_free(struct cuda_context *g);

#endif
