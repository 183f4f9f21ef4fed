/*
 * threads - the threads of a block of an emulated GPU, one after another on one thread of the host.
 *
 * Each has a stack of its own.  It runs until it waits for others: at a barrier of its block, or at
 * one of its warp.  Then the next one runs.  So nothing is left to chance: a kernel does the same
 * every time.  These are mistakes, and end the kernel: a barrier that not all threads of the block
 * or warp reach, two barriers at once, an address outside the shared memory of the launch.
 */
#ifndef EMULATED_THREADS_H
#define EMULATED_THREADS_H

#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <string>

#define EMULATED_LANES 32
#define EMULATED_UNSET 0xff /* bytes of memory that was never written: NaN */
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

/* Of the thread that runs. */
extern EMULATED_HIDDEN struct uint3 threadIdx, blockIdx;
extern EMULATED_HIDDEN struct dim3 blockDim, gridDim;

namespace emulated
{
/* A kernel has the same result for either. */
enum order {
	FORWARDS,  /* first threads and blocks first; copies happen as late as they may */
	BACKWARDS, /* last threads and blocks first; copies happen at once */
};

struct launch {
	const char *kernel;
	struct dim3 blocks, threads;
	int bytes; /* of shared memory */
	std::function<void()> thread;
};

/* Why it failed; empty: it did not. */
EMULATED_HIDDEN std::string run(const struct launch &launch, enum order order);

/* Memory whose end a sanitizer knows. */
EMULATED_HIDDEN void *exact_memory(size_t alignment, size_t bytes);

/* ------------------------------------------------------- for the thread that runs */

/* Ends the kernel, and says where in the source. */
EMULATED_HIDDEN void fail [[noreturn]] (const char *why, const char *file, int line);

/* __syncthreads(), called there. */
EMULATED_HIDDEN void wait_for_block(const char *file, int line);

/* What the lanes of a warp tell each other. */
struct message {
	alignas(16) char bytes[48];
};

/*
 * All lanes of the warp leave a message, then each may read those of all.  The last one that comes
 * first calls together(messages), if that is not NULL, for all.
 */
EMULATED_HIDDEN struct message *tell_warp(const void *mine, size_t bytes,
					  void (*together)(struct message *), const char *file,
					  int line);

/* The shared memory that the launch asked for, and an address in it. */
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
 * Products that end later: add(x) adds to n numbers x, which are NaN until they were waited for. It
 * reads shared memory at once where copies are late, and as late as it may where they are not.
 * While it is under way, `bytes` bytes of its left factor stay as they are.
 */
EMULATED_HIDDEN void begin_product(float *x, size_t n, const void *left, size_t bytes,
				   std::function<void(float *)> add, const char *file, int line);
EMULATED_HIDDEN void end_products(void);
EMULATED_HIDDEN void wait_for_products(const float *x, size_t left, const char *file, int line);

/* Copies to shared memory that end later; from NULL: zeros. */
EMULATED_HIDDEN void begin_copy(uint32_t to, const void *from, size_t bytes, const char *file,
				int line);
EMULATED_HIDDEN void end_group(void);
EMULATED_HIDDEN void wait_for_cp_async(size_t left);
} // namespace emulated

#define EMULATED_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

#endif
