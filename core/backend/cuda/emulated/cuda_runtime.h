/*
 * The part of the CUDA runtime that core/backend/cuda uses, emulated on the CPU.
 *
 * Work stays queued in its stream until the host waits for the stream.  So a host that reads too
 * early, or changes data that is still to be read, gets wrong results.  A stream that waits for an
 * event runs the other stream up to that event, and no further.  So work that no event orders comes
 * late; with KABLATE_EMULATED_RACES=on every second stream runs as early as it can.  A capture
 * records work for later launches.  Memory is NaN until it is written.
 */
#ifndef EMULATED_CUDA_RUNTIME_H
#define EMULATED_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/backend/cuda/emulated/threads.h"

#define MANY_RESULTS 1024 /* minimum results of a GEMM for cuBLASLt: small, for tests */
#define FEW_RESULTS 2048  /* maximum results of a GEMM that cuBLAS does not compute */

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("emulated_shared")))

struct alignas(8) float2 {
	float x, y;
};
struct alignas(16) float4 {
	float x, y, z, w;
};
struct alignas(16) uint4 {
	unsigned x, y, z, w;
};
struct alignas(16) double2 {
	double x, y;
};

/* --------------------------------------------------------------- for kernels */

static inline void __syncthreads(EMULATED_PLACE)
{
	emulated::wait_for_block(file, line);
}

static inline void __syncwarp(EMULATED_PLACE)
{
	emulated::exchange_in_warp(NULL, 0, NULL, file, line);
}

static inline int emulated_lane(void)
{
	return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) %
		     EMULATED_LANES);
}

template <typename T> static inline T __shfl_sync(unsigned mask, T value, int from, EMULATED_PLACE)
{
	const struct emulated::message *all;

	static_assert(sizeof(T) == 4 || sizeof(T) == 8);
	if (mask != 0xffffffffu)
		emulated::fail("a part of a warp is not emulated", file, line);
	all = emulated::exchange_in_warp(&value, sizeof(value), NULL, file, line);
	memcpy(&value, all[from % EMULATED_LANES].bytes, sizeof(value));
	return value;
}

template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, EMULATED_PLACE)
{
	return __shfl_sync(mask, value, emulated_lane() ^ bits, file, line);
}

static inline int __all_sync(unsigned mask, int holds, EMULATED_PLACE)
{
	for (int bits = 1; bits < EMULATED_LANES; bits *= 2)
		holds = __shfl_xor_sync(mask, holds, bits, file, line) && holds;
	return holds;
}

/* Blocks run one after the other, so fences and atomics are trivial. */
static inline void __threadfence(void)
{
}

static inline unsigned atomicInc(unsigned *at, unsigned limit)
{
	const unsigned before = *at;

	*at = before >= limit ? 0 : before + 1;
	return before;
}

static inline void *__cvta_global_to_generic(size_t address)
{
	return (void *)address;
}

template <typename T> static inline T __ldcg(const T *at)
{
	return *at;
}

/* -------------------------------------------------------------- for the host */

enum cudaError_t {
	cudaSuccess = 0,
	cudaErrorInvalidValue = 1,
	cudaErrorMemoryAllocation = 2,
	cudaErrorInvalidConfiguration = 9,
	cudaErrorLaunchFailure = 719,
	cudaErrorStreamCaptureUnsupported = 900,
	cudaErrorStreamCaptureInvalidated = 901,
	cudaErrorStreamCaptureUnjoined = 904,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum { cudaStreamNonBlocking = 1 };
enum { cudaEventDisableTiming = 2 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

struct cudaDeviceProp {
	char name[256];
	int multiProcessorCount;
	size_t sharedMemPerBlockOptin;
	struct {
		char bytes[16];
	} uuid;
};

typedef struct emulated_stream *cudaStream_t;
typedef struct emulated_event *cudaEvent_t;
typedef struct emulated_graph *cudaGraph_t, *cudaGraphExec_t;

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);

const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);

cudaError_t emulated_malloc(void **memory, size_t bytes);
cudaError_t emulated_malloc_host(void **memory, size_t bytes);
template <typename T> static inline cudaError_t cudaMalloc(T **memory, size_t bytes)
{
	return emulated_malloc((void **)memory, bytes);
}
template <typename T> static inline cudaError_t cudaMallocHost(T **memory, size_t bytes)
{
	return emulated_malloc_host((void **)memory, bytes);
}
cudaError_t cudaFree(void *memory);
cudaError_t cudaFreeHost(void *memory);

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
			    cudaStream_t stream);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
			      size_t width, size_t rows, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t rows,
			      cudaStream_t stream);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);

/* Is this compute capability 9.0, with wgmma? */
bool emulated_has_wgmma(void);
cudaError_t emulated_set_shared_memory(const void *kernel, int bytes);
template <typename Kernel>
static inline cudaError_t cudaFuncSetAttribute(Kernel *kernel, cudaFuncAttribute, int bytes)
{
	return emulated_set_shared_memory((const void *)kernel, bytes);
}

/*
 * Every call that can fail on a GPU asks this first; `kind`: alloc, copy, launch, sync or other.
 * KABLATE_EMULATED_FAIL names one that fails.
 */
cudaError_t emulated_call(const char *kind, cudaStream_t stream);

/* Queues work on a stream. */
void emulated_enqueue(cudaStream_t stream, std::function<void()> work);
void emulated_launch(cudaStream_t stream, const void *kernel,
		     const struct emulated::launch &launch);

/* Marks a device allocation as scratch memory, whose contents are not compared. */
void emulated_set_scratch(const void *block);

#endif
