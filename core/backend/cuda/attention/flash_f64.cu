/* Flash attention with double operands. */
#include "core/backend/cuda/attention/flash_launch.cuh"

template struct flash<double_precision>;
