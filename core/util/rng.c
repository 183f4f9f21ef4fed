#include "core/util/rng.h"

#include <math.h>

#include "core/util/hash.h"
#include "core/util/philox.h"

static const double TWO_PI = 6.283185307179586476925286766559;

void rng_philox(const uint32_t counter[4], struct rng_key key, uint32_t out[4])
{
	philox(counter, key.word, out);
}

static struct rng_key key_of(uint64_t bits)
{
	return (struct rng_key){ { (uint32_t)bits, (uint32_t)(bits >> 32) } };
}

struct rng_key rng_key(uint64_t seed, const char *name)
{
	return rng_subkey(key_of(hash_text(name)), seed);
}

struct rng_key rng_subkey(struct rng_key key, uint64_t index)
{
	struct rng_key out;

	philox_subkey(key.word, index, out.word);
	return out;
}

void rng_block(struct rng_key key, uint64_t block, uint32_t out[4])
{
	philox_block(key.word, block, out);
}

/* rng_philox() of BATCH counters side by side: every line of it becomes SIMD. */
#define BATCH RNG_AHEAD

static void batch_round(struct rng_key key, uint32_t c[4][BATCH])
{
#pragma omp simd
	for (int i = 0; i < BATCH; i++) {
		uint64_t p0 = (uint64_t)PHILOX_M0 * c[0][i];
		uint64_t p1 = (uint64_t)PHILOX_M1 * c[2][i];

		c[0][i] = (uint32_t)(p1 >> 32) ^ c[1][i] ^ key.word[0];
		c[1][i] = (uint32_t)p1;
		c[2][i] = (uint32_t)(p0 >> 32) ^ c[3][i] ^ key.word[1];
		c[3][i] = (uint32_t)p0;
	}
}

static void batch(struct rng_key key, uint64_t first, uint32_t *out)
{
	uint32_t c[4][BATCH] = { { 0 } };

	for (int i = 0; i < BATCH; i++) {
		c[0][i] = (uint32_t)(first + (uint64_t)i);
		c[1][i] = (uint32_t)((first + (uint64_t)i) >> 32);
	}
	for (int round = 0; round < PHILOX_ROUNDS; round++) {
		batch_round(key, c);
		key.word[0] += PHILOX_W0;
		key.word[1] += PHILOX_W1;
	}
#pragma omp simd
	for (int i = 0; i < BATCH; i++) {
		out[4 * i] = c[0][i];
		out[4 * i + 1] = c[1][i];
		out[4 * i + 2] = c[2][i];
		out[4 * i + 3] = c[3][i];
	}
}

void rng_blocks(struct rng_key key, uint64_t first, int64_t n, uint32_t *out)
{
	int64_t i = 0;

	for (; i + BATCH <= n; i += BATCH)
		batch(key, first + (uint64_t)i, out + 4 * i);
	for (; i < n; i++)
		rng_block(key, first + (uint64_t)i, out + 4 * i);
}

/* The bits of two words of a block. */
static uint64_t number(const uint32_t *words)
{
	return (uint64_t)words[0] << 32 | words[1];
}

uint64_t rng_u64(struct rng_key key, uint64_t index)
{
	uint32_t out[4];

	rng_block(key, index, out);
	return number(out);
}

/* In [0, 1). */
static double fraction(uint64_t drawn)
{
	return (double)(drawn >> 11) * 0x1p-53;
}

double rng_uniform(struct rng_key key, uint64_t index)
{
	return fraction(rng_u64(key, index));
}

/* Lemire's multiply-and-reject; rejected draws read the sub-stream of the index. */
static uint64_t below(uint64_t drawn, struct rng_key key, uint64_t index, uint64_t n)
{
	unsigned __int128 product = (unsigned __int128)drawn * n;

	if ((uint64_t)product < n) { /* the limit is less, and a division is slow */
		const uint64_t low_limit = -n % n;
		struct rng_key again = rng_subkey(key, index);

		for (uint64_t i = 0; (uint64_t)product < low_limit; i++)
			product = (unsigned __int128)rng_u64(again, i) * n;
	}
	return (uint64_t)(product >> 64);
}

uint64_t rng_below(struct rng_key key, uint64_t index, uint64_t n)
{
	return below(rng_u64(key, index), key, index, n);
}

void rng_normal_pair(struct rng_key key, uint64_t block, double pair[2])
{
	uint32_t out[4];
	double radius, angle;

	rng_block(key, block, out);
	/* (0, 1]: the logarithm never sees zero. */
	radius = ((double)(number(out) >> 11) + 1.0) * 0x1p-53;
	angle = fraction(number(out + 2));
	radius = sqrt(-2.0 * log(radius));
	pair[0] = radius * cos(TWO_PI * angle);
	pair[1] = radius * sin(TWO_PI * angle);
}

double rng_normal(struct rng_key key, uint64_t index)
{
	double pair[2];

	rng_normal_pair(key, index / 2, pair);
	return pair[index % 2];
}

static uint64_t next(struct rng_reader *r)
{
	const uint64_t first = r->until - RNG_AHEAD;

	if (r->next - first >= RNG_AHEAD) {
		uint32_t blocks[4 * RNG_AHEAD];

		rng_blocks(r->key, r->next, RNG_AHEAD, blocks);
		for (int i = 0; i < RNG_AHEAD; i++)
			r->ahead[i] = number(blocks + 4 * i);
		r->until = r->next + RNG_AHEAD;
	}
	return r->ahead[r->next++ + RNG_AHEAD - r->until];
}

uint64_t rng_next_below(struct rng_reader *r, uint64_t n)
{
	const uint64_t drawn = next(r);

	return below(drawn, r->key, r->next - 1, n);
}

double rng_next_uniform(struct rng_reader *r)
{
	return fraction(next(r));
}
