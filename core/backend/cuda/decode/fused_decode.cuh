/*
 * fused_decode - runs several nodes of a decoding step as one kernel (backend.h, fusable and
 * run_fused).
 *
 * With few sequences a step consists of many short kernels, and launch latency dominates. The fused
 * kernel is gemv_kernel: a norm, the linears that read its output, and the gelu or cache write that
 * follows.
 */
#ifndef CUDA_DECODE_FUSED_DECODE_CUH
#define CUDA_DECODE_FUSED_DECODE_CUH

extern "C" {
#include "core/engine/backend.h"
}

int cuda_fusable(enum dtype type, const struct node *const *nodes, int n);
void cuda_run_fused(enum dtype type, const struct call *calls, int n);

#endif
