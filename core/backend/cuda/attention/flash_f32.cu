/* Fused attention in float. */
#include "core/backend/cuda/attention/flash_launch.cuh"

template struct flash<single_precision>;
