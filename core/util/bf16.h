/*
 * bf16 - bfloat16: the upper half of a float.
 */
#ifndef CORE_UTIL_BF16_H
#define CORE_UTIL_BF16_H

#include <stdint.h>
#include <string.h>

typedef uint16_t bf16;

static inline float bf16_widen(bf16 x)
{
	const uint32_t bits = (uint32_t)x << 16;
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* To nearest, ties to even; a NaN stays one. */
static inline bf16 bf16_round(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	if ((bits & 0x7fffffff) > 0x7f800000)
		return (bf16)(bits >> 16 | 0x40);
	return (bf16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
