/*
 * numbers - the elements of a call's tensors, in the type in which they are kept.
 *
 * Kernels compute in P::real.  Where products are in bfloat16, activations may be kept in it, too
 * (core/engine/storage.h); whether a tensor is, all threads of a kernel agree.  x[i] reads a number
 * as P::real, and y[i] = x rounds it once.
 */
#ifndef CUDA_NUMBERS_CUH
#define CUDA_NUMBERS_CUH

struct single_precision {
	typedef float real;
	typedef float factor; /* what products read */
};
struct double_precision {
	typedef double real;
	typedef double factor;
};
struct bfloat16_products {
	typedef float real;
	typedef __nv_bfloat16 factor;
};

/* Do products take rounded numbers?  Only then may tensors be narrow. */
template <typename P>
static constexpr bool ROUNDS = sizeof(typename P::factor) < sizeof(typename P::real);

static inline bool is_narrow(const struct tensor *t)
{
	return t && t->type == BF16;
}

/* To be read.  Without memory they are false. */
template <typename P> struct numbers {
	typedef typename P::real real;
	typedef typename P::factor factor;

	const void *at;
	bool narrow; /* kept as P::factor */

	__host__ __device__ explicit operator bool() const
	{
		return at;
	}
	__host__ __device__ struct numbers operator+(int64_t i) const
	{
		return { ROUNDS<P> && narrow ? (const void *)((const factor *)at + i)
					     : (const void *)((const real *)at + i),
			 narrow };
	}
	__device__ real operator[](int64_t i) const
	{
		return ROUNDS<P> && narrow ? (real)((const factor *)at)[i] : ((const real *)at)[i];
	}
};

/* To be written, and read where they were written. */
template <typename P> struct results {
	typedef typename P::real real;
	typedef typename P::factor factor;

	void *at;
	bool narrow;

	struct element {
		void *at; /* of the tensor */
		bool narrow;
		int64_t i;

		element &operator=(const element &) = delete;
		__device__ operator real() const
		{
			return numbers<P>{ at, narrow }[i];
		}
		__device__ void operator=(real x) const
		{
			if (ROUNDS<P> && narrow)
				((factor *)at)[i] = (factor)x;
			else
				((real *)at)[i] = x;
		}
	};

	__host__ __device__ explicit operator bool() const
	{
		return at;
	}
	__host__ __device__ operator struct numbers<P>() const
	{
		return { at, narrow };
	}
	__host__ __device__ struct results operator+(int64_t i) const
	{
		return { (void *)(numbers<P>{ at, narrow } + i).at, narrow };
	}
	__device__ struct element operator[](int64_t i) const
	{
		return { at, narrow, i };
	}
};

/* The gradient of an input; without memory it is not wanted.  The first contribution overwrites. */
template <typename P> struct gradient {
	struct results<P> to;
	bool add;

	__host__ __device__ explicit operator bool() const
	{
		return to.at;
	}
	__device__ void put(int64_t i, typename P::real value) const
	{
		to[i] = add ? to[i] + value : value;
	}
};

/* ------------------------------------------------------------------ of a call */

template <typename P> static struct numbers<P> input(const struct call *c, int i)
{
	return { c->in[i], is_narrow(c->node->in[i]) };
}

template <typename P> static struct results<P> output(const struct call *c, int i)
{
	return { c->out[i], is_narrow(c->node->out[i]) };
}

template <typename P> static struct numbers<P> output_gradient(const struct call *c, int i)
{
	return { c->dout[i], is_narrow(c->node->out[i]) };
}

template <typename P> static struct gradient<P> input_gradient(const struct call *c, int i)
{
	return { { c->din[i], is_narrow(c->node->in[i]) }, call_adds(c, i) };
}

/* Memory of a kernel's own, or of a tensor that is never narrow. */
template <typename P> static struct results<P> wide(typename P::real *at)
{
	return { at, false };
}

/* What is never narrow: parameters, statistics, losses (op.h). */
template <typename P> static const typename P::real *wide_input(const struct call *c, int i)
{
	return (const typename P::real *)c->in[i];
}

template <typename P> static typename P::real *wide_output(const struct call *c, int i)
{
	return (typename P::real *)c->out[i];
}

template <typename P> static const typename P::real *wide_output_gradient(const struct call *c, int i)
{
	return (const typename P::real *)c->dout[i];
}

template <typename P> static typename P::real *wide_input_gradient(const struct call *c, int i)
{
	return (typename P::real *)c->din[i];
}

#endif
