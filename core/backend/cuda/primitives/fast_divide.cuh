/*
 * Division by a number that the host knows, as a multiplication and a shift.
 *
 * A 64-bit division costs a GPU about a hundred instructions.  The multiplication is exact for
 * dividends below 2^31.
 */
#ifndef CUDA_PRIMITIVES_FAST_DIVIDE_CUH
#define CUDA_PRIMITIVES_FAST_DIVIDE_CUH

#include <stdint.h>

struct divisor {
	int64_t d;
	uint32_t factor; /* 2^shift / d, rounded up; 0: dividends may be too large, so divide */
	int shift;

	__device__ int64_t quotient(int64_t n) const
	{
		return factor ? (int64_t)((uint64_t)(uint32_t)n * factor >> shift) : n / d;
	}
	__device__ int64_t remainder(int64_t n) const
	{
		return n - quotient(n) * d;
	}
};

/*
 * For dividends in [0, max].  factor * d exceeds 2^shift by less than d <= 2^bits, so quotients are
 * exact.
 */
static inline struct divisor divisor_of(int64_t d, int64_t max)
{
	const int64_t limit = (int64_t)1 << 31;
	int bits = 0;

	if (max >= limit || d >= limit)
		return { d, 0, 0 };
	while (((int64_t)1 << bits) < d)
		bits++;
	return { d, (uint32_t)(((limit << bits) + d - 1) / d), 31 + bits };
}

#endif
