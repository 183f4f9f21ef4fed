/*
 * rng - counter-based random numbers: Philox4x32-10.
 *
 * (J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.)
 * A stream is a key; a number is a pure function of (key, index).  There is no
 * state, so threads, resumes and added parameters never change what another
 * consumer draws.
 */
#ifndef CORE_UTIL_RNG_H
#define CORE_UTIL_RNG_H

#include <stddef.h>
#include <stdint.h>

struct rng_key {
	uint32_t word[2];
};

/* Philox4x32-10 itself; the streams below use counters that end in 0 and, for keys, in 1. */
void rng_philox(const uint32_t counter[4], struct rng_key key, uint32_t out[4]);

/* The stream of this seed and name: "init/h.0.attn.c_attn.weight", "train/windows", ... */
struct rng_key rng_key(uint64_t seed, const char *name);

/* A sub-stream of a stream, for instance per iteration. */
struct rng_key rng_subkey(struct rng_key key, uint64_t index);

/* The block of four 32-bit words number `block` of a stream. */
void rng_block(struct rng_key key, uint64_t block, uint32_t out[4]);

/* The blocks [first, first + n), one after another, several at a time. */
void rng_blocks(struct rng_key key, uint64_t first, int64_t n, uint32_t *out);

/* One 64-bit number per index. */
uint64_t rng_u64(struct rng_key key, uint64_t index);

/* Uniform in [0, 1) with 53 bits. */
double rng_uniform(struct rng_key key, uint64_t index);

/* Uniform integer in [0, n), without bias (n > 0). */
uint64_t rng_below(struct rng_key key, uint64_t index, uint64_t n);

/* Standard normal (Box-Muller in double: indices 2n and 2n + 1 share block n). */
double rng_normal(struct rng_key key, uint64_t index);

/* The two normals of one block. */
void rng_normal_pair(struct rng_key key, uint64_t block, double out[2]);

#define RNG_AHEAD 16

/* A reader that draws one number after another from a stream; it starts with the key alone. */
struct rng_reader {
	struct rng_key key;
	uint64_t next;
	uint64_t until, ahead[RNG_AHEAD]; /* the numbers before `until`, made together */
};

uint64_t rng_next_below(struct rng_reader *r, uint64_t n);
double rng_next_uniform(struct rng_reader *r);

#endif
