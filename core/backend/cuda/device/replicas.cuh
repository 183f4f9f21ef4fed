/*
 * Replicas: many runs of one step, trained by the same launches.
 *
 * Everything that kernels touch exists once per replica, `stride` bytes apart (slabs.cuh).  The
 * engine and the ops see one address for all of them: that of replica 0 with REPLICA_TAG in its
 * upper 16 bits.  launch.cuh multiplies the grid by the number of replicas, along z, and a kernel
 * first of all replaces the addresses in its parameters by those of its own replica.  From there
 * on, a block executes exactly what it executes in a run alone: no sum, no order and no bit can
 * depend on the other replicas.  A kernel that forgets a parameter faults, since no device accepts
 * a tagged address.
 *
 * Only a library of its own is compiled with REPLICAS (tools/make/cuda.mk).  In the ordinary one,
 * struct replicas is empty and its functions do nothing.
 */
#ifndef CUDA_DEVICE_REPLICAS_CUH
#define CUDA_DEVICE_REPLICAS_CUH

#include <stdint.h>
#include <string.h>

#include <type_traits>

#include <cuda_runtime.h>

/*
 * A parameter of a kernel, whose padding __builtin_clear_padding() can clear.  Outside a union gcc
 * 12 loses its place after an array of structs: it clears numbers and leaves padding.
 */
template <typename T> union parameter {
	T value;
};

#ifdef REPLICAS

static constexpr bool REPLICA_FORM = true;

/*
 * No other 64 bits of a kernel's parameters begin with these 16: read as a double or a float they
 * are a NaN, as one integer below -2^48, as the upper one of two integers about -100,000 or,
 * without a sign, 2^32 - 100,000.  Padding could, since it holds what was there before: so it is
 * set to zero.
 */
#define REPLICA_TAG 0xfffeull
#define TAG_SHIFT 48

/*
 * The words of a parameter, read where it lies: copies of a struct need not keep its padding.  So
 * launch.cuh sets it to zero last of all; the emulated GPU does so here, since it passes parameters
 * through functions.
 */
template <typename T, int N>
static __device__ __forceinline__ void copy_words(const T &from, char *(&word)[N])
{
#ifdef __CUDACC__
	memcpy(word, &from, sizeof(word));
#else
	union parameter<T> copy = {
		from
	};

	__builtin_clear_padding(&copy);
	memcpy(word, &copy, sizeof(word));
#endif
}

struct replicas {
	int64_t stride; /* bytes from one replica to the next */
	unsigned count;

	/* The replica of this block, and the rest of blockIdx.z. */
	__device__ unsigned of_block() const
	{
		return blockIdx.z / (gridDim.z / count);
	}
	__device__ unsigned block_z() const
	{
		return blockIdx.z % (gridDim.z / count);
	}

	/* Replaces the addresses in parameters by those of the block's replica. */
	template <typename... T> __device__ __forceinline__ void to_own(T &...parameters) const
	{
		(shift(parameters), ...);
	}
	/* The same for a parameter that cannot be written. */
	template <typename T> __device__ __forceinline__ T own(const T &given) const
	{
		T copy = given;

		shift(given, copy);
		return copy;
	}
	/*
	 * The same for a long list, or one that is indexed at run time: in shared memory, because
	 * registers cannot be indexed.  All threads of the block call it.
	 */
	template <typename T> __device__ __forceinline__ const T &own_copy(const T &given) const
	{
		constexpr int WORDS = sizeof(T) / sizeof(char *);
		static_assert(std::is_class<T>::value && alignof(T) == alignof(char *));
		__shared__ char *word[WORDS];
#ifdef __CUDACC__
		char *const *from = (char *const *)&given;
#else
		char *from[WORDS];

		copy_words(given, from);
#endif

		for (int i = (int)threadIdx.x; i < WORDS; i += (int)blockDim.x) {
			word[i] = from[i];
			shift(word[i]);
		}
		__syncthreads();
		return *(const T *)word;
	}

	/* Blocks of a launch for all replicas. */
	dim3 blocks(dim3 of_one) const
	{
		of_one.z *= count;
		return of_one;
	}

	/* The result is in global memory, which the compiler would forget otherwise. */
	template <typename T> __device__ __forceinline__ void shift(T *&address) const
	{
		const uintptr_t at = (uintptr_t)address;
		const uintptr_t distance =
			(uintptr_t)(of_block() * stride) - (uintptr_t)(REPLICA_TAG << TAG_SHIFT);

		address = (T *)__cvta_global_to_generic(
			at + (at >> TAG_SHIFT == REPLICA_TAG ? distance : 0));
	}
	template <typename T>
	__device__ __forceinline__ typename std::enable_if<std::is_class<T>::value>::type
	shift(T &parameter) const
	{
		shift(parameter, parameter);
	}
	/* A view, a struct or a lambda: each of its words that is an address. */
	template <typename T> __device__ __forceinline__ void shift(const T &given, T &result) const
	{
		static_assert(std::is_class<T>::value &&
			      std::is_trivially_copy_constructible<T>::value &&
			      std::is_trivially_destructible<T>::value);
		if constexpr (alignof(T) >= alignof(char *)) {
			constexpr int WORDS = sizeof(T) / sizeof(char *);
			char *word[WORDS];

			copy_words(given, word);
#pragma unroll
			for (int i = 0; i < WORDS; i++)
				shift(word[i]);
			memcpy((void *)&result, word, sizeof(word));
		}
	}
};

/* Where the engine's address lies in a replica: for calls of CUDA that take addresses. */
template <typename T> static inline T *in_replica(const struct replicas &all, T *address, int64_t r)
{
	if ((uintptr_t)address >> TAG_SHIFT != REPLICA_TAG)
		return address;
	return (T *)((uintptr_t)address - (REPLICA_TAG << TAG_SHIFT) + (uintptr_t)(r * all.stride));
}

/* The engine's address of memory of replica 0. */
static inline void *tagged(void *address)
{
	return (void *)((uintptr_t)address + (REPLICA_TAG << TAG_SHIFT));
}

static inline struct replicas replicas_of(int count, size_t bytes)
{
	return { (int64_t)bytes, (unsigned)count };
}

static inline int replica_count(const struct replicas &all)
{
	return (int)all.count;
}

static inline size_t replica_stride(const struct replicas &all)
{
	return (size_t)all.stride;
}

#else

static constexpr bool REPLICA_FORM = false;

struct replicas {
	__device__ unsigned block_z() const
	{
		return blockIdx.z;
	}
	template <typename... T> __device__ __forceinline__ void to_own(T &...) const
	{
	}
	template <typename T> __device__ __forceinline__ const T &own(const T &given) const
	{
		return given;
	}
	template <typename T> __device__ __forceinline__ const T &own_copy(const T &given) const
	{
		return given;
	}
	dim3 blocks(dim3 of_one) const
	{
		return of_one;
	}
};

template <typename T> static inline T *in_replica(const struct replicas &, T *address, int64_t)
{
	return address;
}

static inline void *tagged(void *address)
{
	return address;
}

static inline struct replicas replicas_of(int, size_t)
{
	return {};
}

static inline int replica_count(const struct replicas &)
{
	return 1;
}

static inline size_t replica_stride(const struct replicas &)
{
	return 0;
}

#endif

/* Where a kernel runs: what launch.cuh needs. */
struct launch_stream {
	cudaStream_t stream;
	struct replicas replicas;

	operator cudaStream_t() const
	{
		return stream;
	}
};

#endif
