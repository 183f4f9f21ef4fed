/*
 * launch - core/backend/cuda/launch.cuh for the emulated GPU.
 */
#ifndef EMULATED_LAUNCH_CUH
#define EMULATED_LAUNCH_CUH

#include <cuda_runtime.h>

#include <tuple>

template <typename... Parameters, typename... Arguments>
static void launch_kernel(void (*kernel)(Parameters...), dim3 blocks, int threads, int bytes,
			  cudaStream_t stream, const Arguments &...arguments)
{
	const std::tuple<Parameters...> kept(arguments...);

	emulated_launch(stream, (const void *)kernel,
			{ __PRETTY_FUNCTION__, blocks, dim3((unsigned)threads), bytes,
			  [=] { std::apply(kernel, kept); } });
}

#endif
