/*
 * Kernel launches.  Only this file launches kernels.
 *
 * On compute capability 9.0 and newer a launch uses programmatic dependent launch (PDL): the blocks
 * of a kernel start while the preceding kernel of the stream still runs, and pdl_wait() makes them
 * wait for its end.  Between the two a kernel may read only what no kernel of the run writes.
 */
#ifndef CUDA_DEVICE_LAUNCH_CUH
#define CUDA_DEVICE_LAUNCH_CUH

#include "core/backend/cuda/device/replicas.cuh"

#ifndef __CUDACC__
#include "core/backend/cuda/emulated/launch.cuh"
#else

#include <cuda_runtime.h>

/* What cudaLaunchKernelEx() does; replicas need zeros in the padding of parameters (replicas.cuh).
 */
template <typename... Parameters>
static void launch_copies(const cudaLaunchConfig_t *config,
			  void (*kernel)(struct replicas, Parameters...), struct replicas replicas,
			  union parameter<Parameters>... copies)
{
	void *all[] = { &replicas, &copies... };

	if constexpr (REPLICA_FORM)
		(__builtin_clear_padding(&copies), ...);
	cudaLaunchKernelExC(config, (const void *)kernel, all);
}

/*
 * For a kernel that calls pdl_wait() before it reads or writes what other kernels write.  With
 * `pdl` its blocks may start before the preceding kernel ends.
 *
 * `blocks` of one replica: the kernel's first parameter and the z of the grid follow from the
 * replicas.  `bytes`: dynamic shared memory, found by dynamic_smem().
 */
template <typename... Parameters, typename... Arguments>
static void launch_pdl(bool pdl, void (*kernel)(struct replicas, Parameters...), dim3 blocks,
		       int threads, int bytes, struct launch_stream on,
		       const Arguments &...arguments)
{
	cudaLaunchAttribute attribute = {};
	cudaLaunchConfig_t config = {};

	attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute.val.programmaticStreamSerializationAllowed = 1;
	config.gridDim = on.replicas.blocks(blocks);
	config.blockDim = dim3((unsigned)threads);
	config.dynamicSmemBytes = (size_t)bytes;
	config.stream = on.stream;
	config.attrs = &attribute;
	config.numAttrs = pdl ? 1 : 0;
	launch_copies<Parameters...>(&config, kernel, on.replicas,
				     parameter<Parameters>{ (Parameters)arguments }...);
}

/* For any other kernel. */
template <typename... Parameters, typename... Arguments>
static void launch_kernel(void (*kernel)(struct replicas, Parameters...), dim3 blocks, int threads,
			  int bytes, struct launch_stream on, const Arguments &...arguments)
{
	launch_pdl(false, kernel, blocks, threads, bytes, on, arguments...);
}

/*
 * Allows the next kernel to start, then waits until the preceding kernel has ended and its writes
 * are visible.  All threads call it before they touch global memory, except to read what no kernel
 * of the run writes: parameters, their copies, and cache entries of earlier runs.
 */
static __device__ __forceinline__ void pdl_wait(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/*
 * Starts to load a cache line into L2.  It returns no value, so another kernel may still write
 * there.
 */
static __device__ __forceinline__ void prefetch_l2(const void *at)
{
	asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/*
 * Makes the compiler issue all preceding loads before the code that follows.  Otherwise it delays
 * some of them to save registers.
 */
static __device__ __forceinline__ void issue_loads(void)
{
	__syncwarp(__activemask());
}

/*
 * The compute capability that the running code was compiled for: 90 for 9.0.  A newer GPU that runs
 * the PTX for 8.0 reports 80.
 */
template <typename... Parameters> static int ptx_version(void (*kernel)(Parameters...))
{
	cudaFuncAttributes attributes = {};

	return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess ? attributes.ptxVersion
									 : 0;
}

#endif
#endif
