/* Fused attention with products in bfloat16. */
#include "core/backend/cuda/attention/flash_launch.cuh"

template struct flash<bfloat16_products>;
