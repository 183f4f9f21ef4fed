/*
 * joined - several nodes of a decoding step in one kernel (backend.h, joins and together).
 *
 * A token of few sequences is many short kernels, and starting them takes most of the time.  So one
 * kernel does a norm, products of what it normalises, and the gelu or the cache that follows them.
 */
#ifndef CUDA_DECODE_FUSED_DECODE_CUH
#define CUDA_DECODE_FUSED_DECODE_CUH

extern "C" {
#include "core/engine/backend.h"
}

int cuda_fusable(enum dtype type, const struct node *const *nodes, int n);
void cuda_run_fused(enum dtype type, const struct call *calls, int n);

#endif
