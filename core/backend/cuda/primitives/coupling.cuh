/*
 * The mapping of hidden channels to latent channels, for scalar_expand and scalar_pool.
 *
 * Latent channel i of `latent` owns the consecutive hidden channels c of `hidden` with
 * floor(c latent / hidden) = i.
 */
#ifndef CUDA_PRIMITIVES_COUPLING_CUH
#define CUDA_PRIMITIVES_COUPLING_CUH

#include "core/backend/cuda/primitives/kernel.cuh"

struct coupling {
	int64_t tokens, hidden, latent, scalars;

	/* The first hidden channel of latent channel i; its channels end at first(i + 1). */
	__device__ int64_t first(int64_t i) const
	{
		return (i * hidden + latent - 1) / latent;
	}
};

static inline struct coupling coupling_of(const struct node *n, const struct tensor *hidden,
					  const struct tensor *latent)
{
	return { hidden->dim[0] * hidden->dim[1], hidden->dim[2], latent->dim[2],
		 n->in[1]->dim[0] };
}

/* Bytes of scratch memory for the column sums over all tokens, and for their result. */
template <typename P>
static size_t coupling_work(int sms, int64_t tokens, const struct tensor *columns)
{
	struct scratch m = count_scratch(sms);

	m.alloc<typename P::real>(column_scratch(sms, tokens, columns->dim[2]));
	m.alloc<typename P::real>(columns->dim[2]);
	return m.used;
}

/* ds[iS/n] = sum over i of d [n]: the gradient of S scalars, each shared by a range of channels. */
template <typename P>
static void sum_scalars(const struct call *c, const typename P::real *d, int64_t n, int64_t scalars,
			gradient_view<P> ds)
{
	each(c, scalars, [=] __device__(int64_t h) {
		const int64_t first = (h * n + scalars - 1) / scalars;
		const int64_t last = ((h + 1) * n + scalars - 1) / scalars;
		typename P::real sum = 0;

		for (int64_t i = first; i < last; i++)
			sum += d[i];
		ds.put(h, sum);
	});
}

#endif
