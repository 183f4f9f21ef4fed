/*
 * Rotary position embedding: angles, and the work split of kernels whose blocks serve one position.
 *
 * At position t, pair i of a head of `width` channels rotates by t theta^(-2i/width).  A sine costs
 * more than the rotation, so a block computes the rotations of its position once, in shared memory,
 * for all heads and several examples.
 */
#ifndef CUDA_PRIMITIVES_ROTARY_CUH
#define CUDA_PRIMITIVES_ROTARY_CUH

#include "core/backend/cuda/primitives/fast_math.cuh"
#include "core/backend/cuda/primitives/kernel.cuh"
#include "core/backend/cuda/primitives/fast_divide.cuh"

/* Position past + t rotates pair i by (past + t) theta^(-2i/width), computed in double. */
struct angles {
	const struct run *run;
	double step; /* log2 of the ratio of the angles of adjacent pairs */

	template <typename P>
	__device__ void rotation(int64_t t, int64_t i, typename P::real *cosine,
				 typename P::real *sine) const
	{
		fast_sincos<P>((double)(run->past + t) * exp2((double)i * step), cosine, sine);
	}
};

static inline struct angles angles_of(const struct call *c, double theta, double width)
{
	return { run_of(c), -2 / width * log2(theta) };
}

#define MAX_ROTATIONS 1024   /* rotations of a position in shared memory */
#define POSITION_BLOCKS 2048 /* enough for a large GPU; more would compute more rotations */
#define POSITION_THREADS 128

struct head_index {
	int64_t token, head;
};

/* The heads that a block serves: those of one position in some examples. */
struct block_heads {
	int64_t n, first,
		length; /* number of heads; token of the first example; tokens per example */
	struct divisor per_token;

	__device__ struct head_index operator[](int64_t i) const
	{
		const int64_t example = per_token.quotient(i);

		return { first + example * length, i - example * per_token.d };
	}
};

struct positions {
	int64_t batch, length;
	struct divisor per_token; /* heads per token */

	dim3 blocks() const
	{
		const int64_t wanted = (POSITION_BLOCKS + length - 1) / length;

		return dim3((unsigned)length, (unsigned)(wanted < batch ? wanted : batch));
	}
	__device__ struct block_heads of_block() const
	{
		const int64_t first = batch * blockIdx.y / gridDim.y;
		const int64_t last = batch * (blockIdx.y + 1) / gridDim.y;

		return { (last - first) * per_token.d, first * length + blockIdx.x, length,
			 per_token };
	}
};

static inline struct positions positions_of(const struct tensor *x)
{
	return { x->dim[0], x->dim[1], divisor_of(x->dim[2], x->dim[0] * x->dim[2]) };
}

/*
 * All threads compute the n rotations of the block's position from pair `first` on.  They depend on
 * no other kernel, so this may precede pdl_wait().
 */
template <typename P>
static __device__ void compute_rotations(const struct angles &angles, int64_t first, int64_t n,
					 typename P::real *cosine, typename P::real *sine)
{
	for (int64_t i = threadIdx.x; i < n; i += POSITION_THREADS)
		angles.rotation<P>(blockIdx.x, first + i, &cosine[i], &sine[i]);
	__syncthreads();
}

template <typename R> static __device__ void rotate_pair(R cosine, R sine, R *a, R *b)
{
	const R u = *a;

	*a = u * cosine - *b * sine;
	*b = *b * cosine + u * sine;
}

#endif
