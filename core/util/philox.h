/*
 * philox - Philox4x32-10, for the host and for devices.
 *
 * (J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.)
 * One header for all, so that a device draws what the CPU draws.  rng.h explains streams.
 */
#ifndef CORE_UTIL_PHILOX_H
#define CORE_UTIL_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define PHILOX_FUNCTION static __host__ __device__ inline
#else
#define PHILOX_FUNCTION static inline
#endif

/* Multipliers and Weyl constants of Philox4x32 (Salmon et al., table 2). */
#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u
#define PHILOX_ROUNDS 10

PHILOX_FUNCTION void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
	uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
	uint32_t k0 = key[0], k1 = key[1];

	for (int round = 0; round < PHILOX_ROUNDS; round++) {
		uint64_t p0 = (uint64_t)PHILOX_M0 * c0;
		uint64_t p1 = (uint64_t)PHILOX_M1 * c2;

		c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
		c1 = (uint32_t)p1;
		c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c3 = (uint32_t)p0;
		k0 += PHILOX_W0;
		k1 += PHILOX_W1;
	}
	out[0] = c0;
	out[1] = c1;
	out[2] = c2;
	out[3] = c3;
}

/* The block of four 32-bit words number `block` of a stream. */
PHILOX_FUNCTION void philox_block(const uint32_t key[2], uint64_t block, uint32_t out[4])
{
	const uint32_t counter[4] = { (uint32_t)block, (uint32_t)(block >> 32), 0, 0 };

	philox(counter, key, out);
}

/* The key of sub-stream `index`: the last counter word keeps it apart from what is drawn. */
PHILOX_FUNCTION void philox_subkey(const uint32_t key[2], uint64_t index, uint32_t out[2])
{
	const uint32_t counter[4] = { (uint32_t)index, (uint32_t)(index >> 32), 0, 1 };
	uint32_t word[4];

	philox(counter, key, word);
	out[0] = word[0];
	out[1] = word[1];
}

#endif
