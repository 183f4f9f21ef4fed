/*
 * bfloat16 of the emulated GPU.
 */
#ifndef EMULATED_CUDA_BF16_H
#define EMULATED_CUDA_BF16_H

#include <cuda_runtime.h>

struct __nv_bfloat16 {
	uint16_t bits;

	__nv_bfloat16() = default;
	/* Rounds to nearest, ties to even. */
	__nv_bfloat16(float x)
	{
		uint32_t all;

		memcpy(&all, &x, sizeof(all));
		bits = x != x ? 0x7fff : (uint16_t)((all + 0x7fff + (all >> 16 & 1)) >> 16);
	}
	operator float() const
	{
		const uint32_t all = (uint32_t)bits << 16;
		float x;

		memcpy(&x, &all, sizeof(x));
		return x;
	}
};

struct alignas(4) __nv_bfloat162 {
	__nv_bfloat16 x, y;
};

static inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high)
{
	return { low, high };
}

/* The maximum; of a number and a NaN, the number. */
static inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b)
{
	return { fmaxf(a.x, b.x), fmaxf(a.y, b.y) };
}

#endif
