/* Fused attention in float. */
#include "core/backend/cuda/attention/flash_launch.cuh"

template struct fused<single_precision>;
