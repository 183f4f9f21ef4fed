/*
 * The emulated form of core/backend/cuda/device/launch.cuh.
 */
#ifndef EMULATED_LAUNCH_CUH
#define EMULATED_LAUNCH_CUH

#include <cuda_runtime.h>

#include <tuple>

template <typename... Parameters, typename... Arguments>
static void launch_kernel(void (*kernel)(struct replicas, Parameters...), dim3 blocks, int threads,
			  int bytes, struct launch_stream on, const Arguments &...arguments)
{
	const std::tuple<struct replicas, Parameters...> copies(on.replicas, arguments...);

	emulated_launch(on.stream, (const void *)kernel,
			{ __PRETTY_FUNCTION__, on.replicas.blocks(blocks), dim3((unsigned)threads),
			  bytes, [=] { std::apply(kernel, copies); } });
}

/* No overlap: a kernel starts when the preceding one has ended. */
template <typename... Parameters, typename... Arguments>
static void launch_pdl(bool, void (*kernel)(struct replicas, Parameters...), dim3 blocks,
		       int threads, int bytes, struct launch_stream on,
		       const Arguments &...arguments)
{
	launch_kernel(kernel, blocks, threads, bytes, on, arguments...);
}

static inline void pdl_wait(void)
{
}

static inline void prefetch_l2(const void *)
{
}

static inline void issue_loads(void)
{
}

/* 9.0 only with KABLATE_EMULATED_WGMMA=on, since emulated wgmma is slow. */
template <typename... Parameters> static int ptx_version(void (*)(Parameters...))
{
	return emulated_has_wgmma() ? 90 : 80;
}

#endif
