/* Fused attention with products in bfloat16. */
#include "core/backend/cuda/fused_passes.cuh"

template struct fused<bfloat16_products>;
