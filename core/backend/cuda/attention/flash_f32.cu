/* Flash attention with float operands. */
#include "core/backend/cuda/attention/flash_launch.cuh"

template struct flash<single_precision>;
