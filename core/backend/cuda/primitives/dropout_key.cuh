/*
 * The Philox key of a dropout node, derived from its name, the seed, the iteration and the
 * micro-batch.  The CPU derives the same key, so both draw the same masks.
 */
#ifndef CUDA_PRIMITIVES_DROPOUT_KEY_CUH
#define CUDA_PRIMITIVES_DROPOUT_KEY_CUH

#include "core/backend/cuda/primitives/kernel.cuh"
#include "core/util/philox.h"

extern "C" {
#include "core/util/hash.h"
}

static __global__ void dropout_key_kernel(struct replicas replicas, uint64_t name,
					  const struct run *run, uint32_t *key)
{
	replicas.to_own(run, key);
	const uint32_t of_name[2] = { (uint32_t)name, (uint32_t)(name >> 32) };
	uint32_t of_seed[2], of_iteration[2];

	philox_subkey(of_name, run->seed, of_seed);
	philox_subkey(of_seed, run->iteration, of_iteration);
	philox_subkey(of_iteration, run->micro, key);
}

/*
 * Returns two words in device memory, computed there from the values of the run.  They are valid
 * until the next call on the same stream: launches of a stream run in order.
 */
static inline const uint32_t *dropout_key(const struct call *c)
{
	uint32_t *key = context_of(c)->dropout_key;

	launch_kernel(dropout_key_kernel, 1, 1, 0, stream_of(c), hash_text(c->node->name),
		      run_of(c), key);
	note_launch(c);
	return key;
}

#endif
