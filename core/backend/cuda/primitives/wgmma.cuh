/*
 * wgmma - instructions by which the four warps of a group multiply together: compute capability 9.0
 * (sm_90a).
 *
 * Tensor cores read factors from shared memory themselves, except a left factor in registers, and
 * go on while the group does other things.  All threads of a group call these functions together.
 * A product has 64 rows; x[n][e] is what mma() calls d, of the warp's 16 rows and the
 * columns 8 n ..
 */
#ifndef CUDA_PRIMITIVES_WGMMA_CUH
#define CUDA_PRIMITIVES_WGMMA_CUH

#define SWIZZLE_ROW_BYTES 128 /* bytes of a row in shared memory */

#ifndef __CUDACC__
#include "core/backend/cuda/emulated/wgmma.cuh"
#else

#include <stdint.h>

/* Code for other GPUs does without. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HAS_WGMMA true
#else
#define HAS_WGMMA false
#endif

/*
 * How tensor cores find a factor: its address, the bytes from 8 rows to the next 8, and those from
 * a column of 64 numbers to the next one.  (NVIDIA, "PTX ISA 9.0", matrix descriptors.)
 */
static __device__ __forceinline__ uint64_t smem_descriptor(uint32_t at, int column)
{
	const uint64_t swizzle_128 = (uint64_t)1 << 62;

	return swizzle_128 | (uint64_t)(8 * SWIZZLE_ROW_BYTES / 16) << 32 |
	       (uint64_t)(column / 16) << 16 | (at & 0x3ffff) >> 4;
}

/* The same factor, so many bytes on. */
static __device__ __forceinline__ uint64_t advance_descriptor(uint64_t factor, int bytes)
{
	return factor >> 32 << 32 | ((uint32_t)factor + (uint32_t)bytes / 16);
}

#define REGISTERS_4(x, n) "+f"(x[n][0]), "+f"(x[n][1]), "+f"(x[n][2]), "+f"(x[n][3])
#define REGISTERS_16(x, n) \
	REGISTERS_4(x, n), REGISTERS_4(x, n + 1), REGISTERS_4(x, n + 2), REGISTERS_4(x, n + 3)
#define OPERANDS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define OPERANDS_32 OPERANDS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define OPERANDS_64                                                                     \
	OPERANDS_32                                                                     \
	",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50," \
	"%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_SHAPE(n) "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 "

/* x = a b' or x += a b', a [64, 16] and b [8 COLUMNS, 16] in shared memory */
static __device__ __forceinline__ void wgmma(float (&x)[8][4], uint64_t a, uint64_t b, int add)
{
	asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; " WGMMA_SHAPE(
			     "64") "{" OPERANDS_32 "}, %32, %33, p, 1, 1, 0, 0; }"
		     : REGISTERS_16(x, 0), REGISTERS_16(x, 4)
		     : "l"(a), "l"(b), "r"(add));
}

static __device__ __forceinline__ void wgmma(float (&x)[16][4], uint64_t a, uint64_t b, int add)
{
	asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; " WGMMA_SHAPE(
			     "128") "{" OPERANDS_64 "}, %64, %65, p, 1, 1, 0, 0; }"
		     : REGISTERS_16(x, 0), REGISTERS_16(x, 4), REGISTERS_16(x, 8),
		       REGISTERS_16(x, 12)
		     : "l"(a), "l"(b), "r"(add));
}

/* x += a b, a [64, 16] in registers, b [16, 8 COLUMNS] in shared memory */
static __device__ __forceinline__ void wgmma(float (&x)[8][4], const uint32_t (&a)[4], uint64_t b)
{
	asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; " WGMMA_SHAPE(
			     "64") "{" OPERANDS_32 "}, {%32,%33,%34,%35}, %36, p, 1, 1, 1; }"
		     : REGISTERS_16(x, 0), REGISTERS_16(x, 4)
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

static __device__ __forceinline__ void wgmma(float (&x)[16][4], const uint32_t (&a)[4], uint64_t b)
{
	asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; " WGMMA_SHAPE(
			     "128") "{" OPERANDS_64 "}, {%64,%65,%66,%67}, %68, p, 1, 1, 1; }"
		     : REGISTERS_16(x, 0), REGISTERS_16(x, 4), REGISTERS_16(x, 8),
		       REGISTERS_16(x, 12)
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

/* Registers that a product of the group reads or adds to were written before this. */
static __device__ __forceinline__ void wgmma_fence(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* The products begun since the last call belong together. */
static __device__ __forceinline__ void wgmma_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until x is there: of all that was begun, at most `left` are under way. */
template <int LEFT, int COLUMNS>
static __device__ __forceinline__ void wgmma_wait(float (&x)[1][COLUMNS][4])
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
	for (int n = 0; n < COLUMNS; n++)
		asm volatile("" : REGISTERS_4(x[0], n)::"memory"); /* not read before */
}

/* Tensor cores see what this thread, and the copies that it waited for, wrote to shared memory. */
static __device__ __forceinline__ void fence_proxy_async(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
#endif
