/* Flash attention with bfloat16 operands. */
#include "core/backend/cuda/attention/flash_launch.cuh"

template struct flash<bfloat16_products>;
