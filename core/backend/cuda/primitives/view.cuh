/*
 * numbers - the elements of a call's tensors, in the type in which they are kept.
 *
 * Kernels compute in P::real.  Where products are in bfloat16, activations may be kept in it, too
 * (core/engine/storage.h); whether a tensor is, all threads of a kernel agree.  x[i] reads a number
 * as P::real, and y[i] = x rounds it once.
 */
#ifndef CUDA_PRIMITIVES_VIEW_CUH
#define CUDA_PRIMITIVES_VIEW_CUH

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

static inline bool has_narrow_gradient(const struct tensor *t)
{
	return t && t->gradient_type == BF16;
}

/*
 * What a kernel knows of all tensors whose spans it takes: nothing, or how they are kept, and that
 * addresses of spans are aligned.  Then no access waits for a decision about the one before.
 */
enum span_kind { SPAN_OF_ANY, SPAN_OF_WIDE, SPAN_OF_NARROW };

/*
 * N neighbouring elements of a tensor, from number `first` on.  One thread takes them, by accesses
 * of 16 bytes where their address allows that: eight of bfloat16 with one.
 */
template <int N, enum span_kind KIND = SPAN_OF_ANY> struct span {
	int64_t first;

	static constexpr int n = N;
	/* Of a tensor that is known to be wide, at a place as aligned as this one. */
	static constexpr enum span_kind WIDE = KIND == SPAN_OF_ANY ? SPAN_OF_ANY : SPAN_OF_WIDE;
};

template <typename R, int N> struct values {
	R x[N];

	__device__ R &operator[](int k)
	{
		return x[k];
	}
	__device__ R operator[](int k) const
	{
		return x[k];
	}
};

struct alignas(16) sixteen_bytes {
	uint32_t word[4];
};

/* What an access moves of so many bytes: at most 16 of them. */
template <int BYTES> struct access_of {
	static constexpr int SIZE = BYTES % 16 == 0  ? 16
				    : BYTES % 8 == 0 ? 8
				    : BYTES % 4 == 0 ? 4
						     : 2;
};
template <int SIZE> struct access_type;
template <> struct access_type<16> {
	typedef struct sixteen_bytes type;
};
template <> struct access_type<8> {
	typedef uint64_t type;
};
template <> struct access_type<4> {
	typedef uint32_t type;
};
template <> struct access_type<2> {
	typedef uint16_t type;
};

template <typename A, int BYTES> static __device__ void copy_by(void *to, const void *from)
{
#pragma unroll
	for (int k = 0; k < BYTES / (int)sizeof(A); k++)
		((A *)to)[k] = ((const A *)from)[k];
}

/* `memory`: the one of both that is not the thread's own.  ALIGNED: its address allows the largest
 * access. */
template <typename T, int N, bool ALIGNED>
static __device__ void copy_span(T *to, const T *from, const void *memory)
{
	constexpr int BYTES = N * (int)sizeof(T), SIZE = access_of<BYTES>::SIZE;

	if (ALIGNED || SIZE <= (int)sizeof(T) || (uintptr_t)memory % SIZE == 0)
		copy_by<typename access_type<SIZE>::type, BYTES>(to, from);
	else
		copy_by<typename access_type<access_of<(int)sizeof(T)>::SIZE>::type, BYTES>(to,
											    from);
}

template <typename T, typename R, int N, bool ALIGNED = false>
static __device__ values<R, N> load_span(const T *from)
{
	alignas(16) T kept[N];
	struct values<R, N> x;

	copy_span<T, N, ALIGNED>(kept, from, from);
#pragma unroll
	for (int k = 0; k < N; k++)
		x[k] = (R)kept[k];
	return x;
}

template <bool ALIGNED = false, typename T, typename R, int N>
static __device__ void store_span(T *to, const struct values<R, N> &x)
{
	alignas(16) T kept[N];

#pragma unroll
	for (int k = 0; k < N; k++)
		kept[k] = (T)x[k];
	copy_span<T, N, ALIGNED>(to, kept, to);
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
	template <int N, enum span_kind KIND>
	__device__ struct values<real, N> operator[](struct span<N, KIND> p) const
	{
		constexpr bool aligned = KIND != SPAN_OF_ANY;

		return ROUNDS<P> && (aligned ? KIND == SPAN_OF_NARROW : narrow)
			       ? load_span<factor, real, N, aligned>((const factor *)at + p.first)
			       : load_span<real, real, N, aligned>((const real *)at + p.first);
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
	__host__ __device__ operator struct numbers<P>() const {
		return { at, narrow };
	} __host__ __device__ struct results operator+(int64_t i) const
	{
		return { (void *)(numbers<P>{ at, narrow } + i).at, narrow };
	}
	__device__ struct element operator[](int64_t i) const
	{
		return { at, narrow, i };
	}
	template <int N, enum span_kind KIND>
	__device__ void put(struct span<N, KIND> p, const struct values<real, N> &x) const
	{
		constexpr bool aligned = KIND != SPAN_OF_ANY;

		if (ROUNDS<P> && (aligned ? KIND == SPAN_OF_NARROW : narrow))
			store_span<aligned>((factor *)at + p.first, x);
		else
			store_span<aligned>((real *)at + p.first, x);
	}
};

/* What is read where x is written. */
template <typename P>
static __device__ typename P::real as_kept(struct results<P> to, typename P::real x)
{
	return ROUNDS<P> && to.narrow ? (typename P::real)(typename P::factor)x : x;
}

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
	template <int N, enum span_kind KIND>
	__device__ void put(struct span<N, KIND> p, struct values<typename P::real, N> x) const
	{
		if (add) {
			const auto before = ((struct numbers<P>)to)[p];

#pragma unroll
			for (int k = 0; k < N; k++)
				x[k] += before[k];
		}
		to.put(p, x);
	}
};

/* What is the same for all of these tensors; those without memory do not count. */
template <typename P> struct tensors {
	bool any_narrow, any_wide, aligned;

	tensors() : any_narrow(false), any_wide(false), aligned(true)
	{
	}
	void note(struct numbers<P> x)
	{
		if (!x)
			return;
		any_narrow |= x.narrow;
		any_wide |= !x.narrow;
		aligned &= (uintptr_t)x.at % 16 == 0;
	}
	void note(struct gradient<P> x)
	{
		note((struct numbers<P>)x.to);
	}
	enum span_kind kind() const
	{
		return !aligned || (any_narrow && any_wide) ? SPAN_OF_ANY
		       : any_narrow			    ? SPAN_OF_NARROW
							    : SPAN_OF_WIDE;
	}
};

/* For a span form: of which kind are the spans of all of these? */
template <typename P, typename... Rest> static tensors<P> all_of(const Rest &...of)
{
	struct tensors<P> all;

	(all.note(of), ...);
	return all;
}

/* ------------------------------------------------------------------ of a call */

template <typename P> static numbers<P> input(const struct call *c, int i)
{
	return { c->in[i], is_narrow(c->node->in[i]) };
}

template <typename P> static results<P> output(const struct call *c, int i)
{
	return { c->out[i], is_narrow(c->node->out[i]) };
}

template <typename P> static numbers<P> output_gradient(const struct call *c, int i)
{
	return { c->dout[i], has_narrow_gradient(c->node->out[i]) };
}

template <typename P> static gradient<P> input_gradient(const struct call *c, int i)
{
	return { { c->din[i], has_narrow_gradient(c->node->in[i]) }, call_adds(c, i) };
}

/* Memory of a kernel's own, or of a tensor that is never narrow. */
template <typename P> static results<P> wide(typename P::real *at)
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

template <typename P>
static const typename P::real *wide_output_gradient(const struct call *c, int i)
{
	return (const typename P::real *)c->dout[i];
}

template <typename P> static typename P::real *wide_input_gradient(const struct call *c, int i)
{
	return (typename P::real *)c->din[i];
}

#endif
