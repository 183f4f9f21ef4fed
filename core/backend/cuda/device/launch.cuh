/*
 * launch - gives a kernel to the GPU: the only place that launches.
 */
#ifndef CUDA_DEVICE_LAUNCH_CUH
#define CUDA_DEVICE_LAUNCH_CUH

#ifndef __CUDACC__
#include "core/backend/cuda/emulated/launch.cuh"
#else

#include <cuda_runtime.h>

/* `bytes` of shared memory, which the kernel finds by dynamic_smem(). */
template <typename... Parameters, typename... Arguments>
static void launch_kernel(void (*kernel)(Parameters...), dim3 blocks, int threads, int bytes,
			  cudaStream_t stream, const Arguments &...arguments)
{
	kernel<<<blocks, threads, bytes, stream>>>(arguments...);
}

/*
 * As launch_kernel(), for a kernel that calls pdl_wait() before it touches what others write.
 * If it `overlaps`, its blocks come to the GPU while the kernel before still runs, and wait there.
 */
template <typename... Parameters, typename... Arguments>
static void launch_pdl(bool pdl, void (*kernel)(Parameters...), dim3 blocks, int threads, int bytes,
		       cudaStream_t stream, const Arguments &...arguments)
{
	cudaLaunchAttribute attribute = {};
	cudaLaunchConfig_t config = {};

	attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute.val.programmaticStreamSerializationAllowed = 1;
	config.gridDim = blocks;
	config.blockDim = dim3((unsigned)threads);
	config.dynamicSmemBytes = (size_t)bytes;
	config.stream = stream;
	config.attrs = &attribute;
	config.numAttrs = pdl ? 1 : 0;
	cudaLaunchKernelEx(&config, kernel, (Parameters)arguments...);
}

/*
 * Lets the next kernel come, and waits until the one before has ended and all can see what it
 * wrote.  All threads call it before they read or write, but for what a run finds as it is:
 * parameters and their copies, and what earlier runs wrote to a cache.  Then a kernel ends only
 * after all before it have.
 */
static __device__ __forceinline__ void pdl_wait(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Begin to bring memory nearer; nothing is read yet, so it may be written still. */
static __device__ __forceinline__ void prefetch_l2(const void *at)
{
	asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/* What was to be read before this is under way: otherwise the compiler delays some of it, to save
 * registers. */
static __device__ __forceinline__ void issue_loads(void)
{
	__syncwarp(__activemask());
}

/* For which GPUs was the code made that runs here?  90: compute capability 9.0; 80 on newer ones,
 * too. */
template <typename... Parameters> static int ptx_version(void (*kernel)(Parameters...))
{
	cudaFuncAttributes attributes = {};

	return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess ? attributes.ptxVersion
									 : 0;
}

#endif
#endif
