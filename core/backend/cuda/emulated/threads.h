/*
 * The threads of an emulated thread block, run one after another on one host thread.
 *
 * Each thread has a stack of its own (a fiber).  It runs until it waits at a barrier of its block
 * or its warp; then the next thread runs.  So a kernel does the same every time.  These errors end
 * the kernel: a barrier that not all threads of the block or warp reach, threads at two barriers at
 * once, an address outside the shared memory of the launch.
 */
#ifndef EMULATED_THREADS_H
#define EMULATED_THREADS_H

#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <string>

#define EMULATED_LANES 32
#define EMULATED_UNSET 0xff /* fills memory that was never written: NaN */
#define EMULATED_HIDDEN __attribute__((visibility("hidden")))

struct uint3 {
	unsigned x, y, z;
};

struct dim3 {
	unsigned x, y, z;

	constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
	{
	}
	uint64_t count() const
	{
		return (uint64_t)x * y * z;
	}
};

/* Of the running thread. */
extern EMULATED_HIDDEN struct uint3 threadIdx, blockIdx;
extern EMULATED_HIDDEN struct dim3 blockDim, gridDim;

namespace emulated
{
/* The order of threads.  A correct kernel gives the same result in both. */
enum order {
	FORWARDS,  /* first threads and blocks first; copies complete as late as possible */
	BACKWARDS, /* last threads and blocks first; copies complete at once */
};

struct launch {
	const char *kernel;
	struct dim3 blocks, threads;
	int bytes; /* dynamic shared memory */
	std::function<void()> thread;
};

/* Runs a kernel.  Returns the error message, or an empty string. */
EMULATED_HIDDEN std::string run(const struct launch &launch, enum order order);

/* Allocates exactly `bytes` bytes, so that a sanitizer sees an overrun. */
EMULATED_HIDDEN void *exact_memory(size_t alignment, size_t bytes);

/* ------------------------------------------------------- called by the running thread */

/* Ends the kernel with an error that names the source line. */
EMULATED_HIDDEN void fail [[noreturn]] (const char *why, const char *file, int line);

/* __syncthreads() at this source line. */
EMULATED_HIDDEN void wait_for_block(const char *file, int line);

/* What a lane passes to the other lanes of its warp. */
struct message {
	alignas(16) char bytes[48];
};

/*
 * Exchanges messages between all lanes of the warp, and returns them.  The last lane to arrive
 * first calls combine(messages), if that is not NULL.
 */
EMULATED_HIDDEN struct message *exchange_in_warp(const void *mine, size_t bytes,
						 void (*combine)(struct message *),
						 const char *file, int line);

/* The dynamic shared memory of the launch, and an address in it. */
extern EMULATED_HIDDEN char *shared_memory;
extern EMULATED_HIDDEN size_t shared_bytes;

static inline char *shared_at(uint32_t address, size_t bytes, const char *file, int line)
{
	if (address % bytes)
		fail("an address of shared memory is not aligned", file, line);
	if (address + bytes > shared_bytes)
		fail("an address is outside the shared memory of the launch", file, line);
	return shared_memory + address;
}

/*
 * An asynchronous product (wgmma): add(x) adds to n elements x, which are NaN until they were
 * waited for.  With FORWARDS it reads shared memory at once, with BACKWARDS as late as possible.
 * While it is in flight, `bytes` bytes of its left operand must not change.
 */
EMULATED_HIDDEN void begin_product(float *x, size_t n, const void *left, size_t bytes,
				   std::function<void(float *)> add, const char *file, int line);
EMULATED_HIDDEN void end_products(void);
EMULATED_HIDDEN void wait_for_products(const float *x, size_t left, const char *file, int line);

/* An asynchronous copy to shared memory (cp.async); from NULL: zeros. */
EMULATED_HIDDEN void begin_copy(uint32_t to, const void *from, size_t bytes, const char *file,
				int line);
EMULATED_HIDDEN void end_group(void);
EMULATED_HIDDEN void wait_for_cp_async(size_t left);
} // namespace emulated

#define EMULATED_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

#endif
