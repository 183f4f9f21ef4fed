/* Fused attention in float. */
#include "core/backend/cuda/fused_passes.cuh"

template struct fused<single_precision>;
