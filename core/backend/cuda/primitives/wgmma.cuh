/*
 * wgmma, the asynchronous matrix instructions of a warpgroup (compute capability 9.0, sm_90a).
 *
 * Tensor cores read operands from shared memory themselves, except a left operand in registers, and
 * run while the warpgroup does other work.  All 128 threads of a warpgroup call these functions
 * together.  A product has 64 rows; x[n][e] is element e of the thread's fragment of 16 rows and
 * columns 8 n to 8 n + 7, in the layout of mma() (mma_tile.cuh).
 */
#ifndef CUDA_PRIMITIVES_WGMMA_CUH
#define CUDA_PRIMITIVES_WGMMA_CUH

#define SWIZZLE_ROW_BYTES 128 /* bytes of a row in the 128-byte swizzle */

#ifndef __CUDACC__
#include "core/backend/cuda/emulated/wgmma.cuh"
#else

#include <stdint.h>

/* Only code for sm_90a has these instructions. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define HAS_WGMMA true
#else
#define HAS_WGMMA false
#endif

/*
 * The matrix descriptor of an operand: its address, the stride of 8 rows, and the stride `column`
 * of 64 columns, in bytes.  (NVIDIA, "PTX ISA 9.0", matrix descriptors.)
 */
static __device__ __forceinline__ uint64_t smem_descriptor(uint32_t at, int column)
{
	const uint64_t swizzle_128 = (uint64_t)1 << 62;

	return swizzle_128 | (uint64_t)(8 * SWIZZLE_ROW_BYTES / 16) << 32 |
	       (uint64_t)(column / 16) << 16 | (at & 0x3ffff) >> 4;
}

/* The descriptor of the same operand, `bytes` further on. */
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

/* Orders register writes before the wgmma that reads or accumulates into them. */
static __device__ __forceinline__ void wgmma_fence(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Puts the wgmmas since the last commit into one group. */
static __device__ __forceinline__ void wgmma_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most LEFT groups are in flight.  x may be read then. */
template <int LEFT, int COLUMNS>
static __device__ __forceinline__ void wgmma_wait(float (&x)[1][COLUMNS][4])
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
	for (int n = 0; n < COLUMNS; n++)
		asm volatile(""
			     : REGISTERS_4(x[0],
					   n)::"memory"); /* the compiler must not read x earlier */
}

/* Makes this thread's writes to shared memory, and the copies it waited for, visible to wgmma. */
static __device__ __forceinline__ void fence_proxy_async(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
#endif
