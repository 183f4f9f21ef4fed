/* Fused attention in double. */
#include "core/backend/cuda/fused_passes.cuh"

template struct fused<double_precision>;
