/*
 * Faults on a GPU and takes its memory, for tools/kablate/gpu_fault_longtest.py.
 *
 * A library.  With LD_PRELOAD: when the file GPU_FAULT appears, a kernel in the context of the
 * process writes to an address that is not there, and the file is removed.  The context is unusable
 * after that.  Without: the test calls the functions in a process of their own.
 *
 * It needs only the driver (libcuda.so.1), and no header of CUDA.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define LOOK_MICROSECONDS 500

static const char kernel[] = ".version 7.0\n"
			     ".target sm_70\n"
			     ".address_size 64\n"
			     ".visible .entry fault()\n"
			     "{\n"
			     "	.reg .u64 %at;\n"
			     "	.reg .u32 %value;\n"
			     "	mov.u64 %at, 16;\n"
			     "	mov.u32 %value, 1;\n"
			     "	st.global.u32 [%at], %value;\n"
			     "	ret;\n"
			     "}\n";

/* A function of the driver's, whose arguments are pointers and integers. */
#define DRIVER(name, ...) \
	((int (*)(__VA_ARGS__))(uintptr_t)dlsym(dlopen("libcuda.so.1", RTLD_NOW), name))

int gpu_open(void)
{
	void *context;
	int device, error = DRIVER("cuInit", unsigned)(0);

	if (!error)
		error = DRIVER("cuDeviceGet", int *, int)(&device, 0);
	if (!error)
		error = DRIVER("cuDevicePrimaryCtxRetain", void **, int)(&context, device);
	return error ? error : DRIVER("cuCtxSetCurrent", void *)(context);
}

/* The error that the kernel causes: 700, an illegal address. */
int gpu_fault(void)
{
	void *module, *function;
	int error = DRIVER("cuModuleLoadData", void **, const void *)(&module, kernel);

	if (!error)
		error = DRIVER("cuModuleGetFunction", void **, void *,
			       const char *)(&function, module, "fault");
	if (!error)
		error = DRIVER("cuLaunchKernel", void *, unsigned, unsigned, unsigned, unsigned,
			       unsigned, unsigned, unsigned, void *, void **,
			       void **)(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
	return error ? error : DRIVER("cuCtxSynchronize", void)();
}

#define MAX_BLOCKS 4096
#define LARGEST ((size_t)1 << 30)
#define SMALLEST ((size_t)1 << 21)

static uint64_t blocks[MAX_BLOCKS];
static int n_blocks;

/* Returns the number of blocks. */
int gpu_hold(void)
{
	for (size_t bytes = LARGEST; bytes >= SMALLEST; bytes /= 2)
		while (n_blocks < MAX_BLOCKS &&
		       DRIVER("cuMemAlloc_v2", uint64_t *, size_t)(&blocks[n_blocks], bytes) == 0)
			n_blocks++;
	return n_blocks;
}

int gpu_give_back(void)
{
	while (n_blocks > 0)
		DRIVER("cuMemFree_v2", uint64_t)(blocks[--n_blocks]);
	return 0;
}

static void *wait_for_file(void *path)
{
	while (access(path, F_OK) != 0)
		usleep(LOOK_MICROSECONDS);
	if (gpu_open() == 0)
		gpu_fault();
	unlink(path);
	return NULL;
}

static __attribute__((constructor)) void begin(void)
{
	char *path = getenv("GPU_FAULT");
	pthread_t thread;

	if (path)
		pthread_create(&thread, NULL, wait_for_file, path);
}
