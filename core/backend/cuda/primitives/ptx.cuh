/*
 * PTX instructions without a CUDA C++ equivalent: shared memory, mma, ldmatrix, cp.async, and
 * approximate functions.
 *
 * An address in shared memory is a uint32_t.  All 32 lanes of a warp call mma() and ldmatrix()
 * together.
 */
#ifndef CUDA_PRIMITIVES_PTX_CUH
#define CUDA_PRIMITIVES_PTX_CUH

#ifndef __CUDACC__
#include "core/backend/cuda/emulated/ptx.cuh"
#else

#include <cuda_bf16.h>
#include <stdint.h>

/* --------------------------------------------------------------- shared memory */

/* The dynamic shared memory of the launch. */
static __device__ __forceinline__ char *dynamic_smem(void)
{
	extern __shared__ __align__(1024) char shared[];

	return shared;
}

static __device__ __forceinline__ uint32_t smem_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* Loads of 16 bytes. */
static __device__ __forceinline__ void ld_shared_vec16(float (&x)[4], uint32_t address)
{
	asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
		     : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
		     : "r"(address)
		     : "memory");
}

static __device__ __forceinline__ void ld_shared_vec16(double (&x)[2], uint32_t address)
{
	asm volatile("ld.shared.v2.f64 {%0,%1}, [%2];"
		     : "=d"(x[0]), "=d"(x[1])
		     : "r"(address)
		     : "memory");
}

static __device__ __forceinline__ void st_shared_vec16(uint32_t address, uint4 x)
{
	asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};"
		     :
		     : "r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
		     : "memory");
}

/*
 * Stores 16 bytes to global memory with one instruction.  For values that were just rounded, the
 * compiler would emit four stores.
 */
static __device__ __forceinline__ void st_global_vec16(void *to, uint4 x)
{
	asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};"
		     :
		     : "l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
		     : "memory");
}

/* --------------------------------------------------------------- tensor cores */

static __device__ __forceinline__ uint32_t pack_bf16x2(float low, float high)
{
	const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);

	return *(const uint32_t *)&two;
}

/* d [16,8] += a [16,16] b [8,16]' */
static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
					   uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
		     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/*
 * Loads four 8 x 8 matrices of bfloat16.  Lane l passes the address of row l % 8 of matrix l / 8.
 * It gets two elements of row l / 4 of each matrix; ldmatrix_trans() gives it two of column l / 4.
 */
static __device__ __forceinline__ void ldmatrix(uint32_t (&x)[4], uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
		     : "r"(address)
		     : "memory");
}

static __device__ __forceinline__ void ldmatrix_trans(uint32_t (&x)[4], uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
		     : "r"(address)
		     : "memory");
}

/* ------------------------------------------------------------------ arithmetic */

#define APPROXIMATION(name, instruction)                                       \
	static __device__ __forceinline__ float name(float x)                  \
	{                                                                      \
		float y;                                                       \
                                                                               \
		asm(instruction ".approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); \
		return y;                                                      \
	}
APPROXIMATION(ex2_approx, "ex2") /* 2^x, within 2 ulp; denormal results become 0 */
APPROXIMATION(rcp_approx, "rcp") /* 1 / x, within 1 ulp */
APPROXIMATION(lg2_approx, "lg2") /* log2(x), with an error of 2^-22 for x in [1/2, 2] */
APPROXIMATION(sin_approx, "sin") /* of x in [-pi, pi], with an error of 2^-20 */
APPROXIMATION(cos_approx, "cos")
#undef APPROXIMATION

/* ------------------------------------------------------- asynchronous copies */

/*
 * Starts to copy 16 bytes from global to shared memory, or to write zeros if !valid.  The data is
 * there after cp_async_wait().
 */
static __device__ __forceinline__ void cp_async_vec16(uint32_t to, const void *from, bool valid)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		     :
		     : "r"(to), "l"(from), "r"(valid ? 16 : 0)
		     : "memory");
}

/* The same for one element of 4 or 8 bytes. */
template <typename R>
static __device__ __forceinline__ void cp_async_element(uint32_t to, const R *from, bool valid)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
		     :
		     : "r"(to), "l"(from), "n"(sizeof(R)), "r"(valid ? (int)sizeof(R) : 0)
		     : "memory");
}

/* Puts the copies that this thread started since the last commit into one group. */
static __device__ __forceinline__ void cp_async_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most LEFT groups of this thread are in flight. */
template <int LEFT> static __device__ __forceinline__ void cp_async_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

#endif
#endif
