/*
 * launch - gives a kernel to the GPU: the only place that launches.
 */
#ifndef CUDA_LAUNCH_CUH
#define CUDA_LAUNCH_CUH

#ifndef __CUDACC__
#include "core/backend/cuda/emulated/launch.cuh"
#else

#include <cuda_runtime.h>

/* `bytes` of shared memory, which the kernel finds by launch_memory(). */
template <typename... Parameters, typename... Arguments>
static void launch_kernel(void (*kernel)(Parameters...), dim3 blocks, int threads, int bytes,
			  cudaStream_t stream, const Arguments &...arguments)
{
	kernel<<<blocks, threads, bytes, stream>>>(arguments...);
}

#endif
#endif
