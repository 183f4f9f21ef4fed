/*
 * Views of a call's tensors, in the type in which they are stored.
 *
 * Kernels compute in P::real.  In the precision bfloat16_products, activations may be stored in
 * bfloat16 (core/engine/storage.h).  A view knows the type at run time: x[i] converts to P::real,
 * and y[i] = x rounds once.  All threads of a kernel take the same branch.  A vec_index selects N
 * consecutive elements, which one thread accesses 16 bytes at a time.
 */
#ifndef CUDA_PRIMITIVES_VIEW_CUH
#define CUDA_PRIMITIVES_VIEW_CUH

struct single_precision {
	typedef float real;
	typedef float factor; /* input type of matrix products */
};
struct double_precision {
	typedef double real;
	typedef double factor;
};
struct bfloat16_products {
	typedef float real;
	typedef __nv_bfloat16 factor;
};

/* Are the inputs of matrix products rounded to bfloat16?  Only then may tensors be stored in it. */
template <typename P>
static constexpr bool ROUNDS = sizeof(typename P::factor) < sizeof(typename P::real);

static inline bool is_bf16(const struct tensor *t)
{
	return t && t->type == BF16;
}

static inline bool has_bf16_gradient(const struct tensor *t)
{
	return t && t->gradient_type == BF16;
}

/*
 * What the compiler knows about all tensors that a kernel accesses by vectors: nothing, or their
 * storage type and that every vector is aligned.  With the type known, no load waits for a branch.
 */
enum vec_kind { VEC_OF_ANY, VEC_OF_REAL, VEC_OF_BF16 };

/*
 * The N consecutive elements of a tensor from index `first` on, for one thread.  It uses 16-byte
 * accesses where the address is aligned: one for eight elements of bfloat16.
 */
template <int N, enum vec_kind KIND = VEC_OF_ANY> struct vec_index {
	int64_t first;

	static constexpr int n = N;
	/* the kind for a tensor in P::real at an equally aligned place */
	static constexpr enum vec_kind WIDE = KIND == VEC_OF_ANY ? VEC_OF_ANY : VEC_OF_REAL;
};

template <typename R, int N> struct vec {
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

struct alignas(16) vec16 {
	uint32_t word[4];
};

/* The size of one access when a thread copies BYTES bytes: at most 16. */
template <int BYTES> struct access_of {
	static constexpr int SIZE = BYTES % 16 == 0  ? 16
				    : BYTES % 8 == 0 ? 8
				    : BYTES % 4 == 0 ? 4
						     : 2;
};
template <int SIZE> struct access_type;
template <> struct access_type<16> {
	typedef struct vec16 type;
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

/*
 * Copies N elements between registers and memory.  `memory` is whichever of `to` and `from` is no
 * local array.  ALIGNED: its address allows the largest access.
 */
template <typename T, int N, bool ALIGNED>
static __device__ void copy_vec(T *to, const T *from, const void *memory)
{
	constexpr int BYTES = N * (int)sizeof(T), SIZE = access_of<BYTES>::SIZE;

	if (ALIGNED || SIZE <= (int)sizeof(T) || (uintptr_t)memory % SIZE == 0)
		copy_by<typename access_type<SIZE>::type, BYTES>(to, from);
	else
		copy_by<typename access_type<access_of<(int)sizeof(T)>::SIZE>::type, BYTES>(to,
											    from);
}

template <typename T, typename R, int N, bool ALIGNED = false>
static __device__ vec<R, N> load_vec(const T *from)
{
	alignas(16) T stored[N];
	vec<R, N> x;

	copy_vec<T, N, ALIGNED>(stored, from, from);
#pragma unroll
	for (int k = 0; k < N; k++)
		x[k] = (R)stored[k];
	return x;
}

template <bool ALIGNED = false, typename T, typename R, int N>
static __device__ void store_vec(T *to, const vec<R, N> &x)
{
	alignas(16) T stored[N];

#pragma unroll
	for (int k = 0; k < N; k++)
		stored[k] = (T)x[k];
	copy_vec<T, N, ALIGNED>(to, stored, to);
}

/* An input tensor.  It is false if the tensor is absent. */
template <typename P> struct input_view {
	typedef typename P::real real;
	typedef typename P::factor factor;

	const void *at;
	bool bf16_storage; /* stored as P::factor */

	__host__ __device__ explicit operator bool() const
	{
		return at;
	}
	__host__ __device__ struct input_view operator+(int64_t i) const
	{
		return { ROUNDS<P> && bf16_storage ? (const void *)((const factor *)at + i)
						   : (const void *)((const real *)at + i),
			 bf16_storage };
	}
	__device__ real operator[](int64_t i) const
	{
		return ROUNDS<P> && bf16_storage ? (real)((const factor *)at)[i]
						 : ((const real *)at)[i];
	}
	template <int N, enum vec_kind KIND>
	__device__ vec<real, N> operator[](vec_index<N, KIND> p) const
	{
		constexpr bool aligned = KIND != VEC_OF_ANY;

		return ROUNDS<P> && (aligned ? KIND == VEC_OF_BF16 : bf16_storage)
			       ? load_vec<factor, real, N, aligned>((const factor *)at + p.first)
			       : load_vec<real, real, N, aligned>((const real *)at + p.first);
	}
};

/* An output tensor.  A kernel may read back what it wrote. */
template <typename P> struct output_view {
	typedef typename P::real real;
	typedef typename P::factor factor;

	void *at;
	bool bf16_storage;

	struct element {
		void *at; /* start of the tensor */
		bool bf16_storage;
		int64_t i;

		element &operator=(const element &) = delete;
		__device__ operator real() const
		{
			return input_view<P>{ at, bf16_storage }[i];
		}
		__device__ void operator=(real x) const
		{
			if (ROUNDS<P> && bf16_storage)
				((factor *)at)[i] = (factor)x;
			else
				((real *)at)[i] = x;
		}
	};

	__host__ __device__ explicit operator bool() const
	{
		return at;
	}
	__host__ __device__ operator input_view<P>() const
	{
		return { at, bf16_storage };
	}
	__host__ __device__ struct output_view operator+(int64_t i) const
	{
		return { (void *)(input_view<P>{ at, bf16_storage } + i).at, bf16_storage };
	}
	__device__ struct element operator[](int64_t i) const
	{
		return { at, bf16_storage, i };
	}
	template <int N, enum vec_kind KIND>
	__device__ void put(vec_index<N, KIND> p, const vec<real, N> &x) const
	{
		constexpr bool aligned = KIND != VEC_OF_ANY;

		if (ROUNDS<P> && (aligned ? KIND == VEC_OF_BF16 : bf16_storage))
			store_vec<aligned>((factor *)at + p.first, x);
		else
			store_vec<aligned>((real *)at + p.first, x);
	}
};

/* The value that a later read of to[i] = x returns. */
template <typename P>
static __device__ typename P::real as_stored(output_view<P> to, typename P::real x)
{
	return ROUNDS<P> && to.bf16_storage ? (typename P::real)(typename P::factor)x : x;
}

/*
 * The gradient of an input; false if it is not needed.  The first contribution overwrites it, later
 * ones add.
 */
template <typename P> struct gradient_view {
	output_view<P> to;
	bool add;

	__host__ __device__ explicit operator bool() const
	{
		return to.at;
	}
	__device__ void put(int64_t i, typename P::real value) const
	{
		to[i] = add ? to[i] + value : value;
	}
	template <int N, enum vec_kind KIND>
	__device__ void put(vec_index<N, KIND> p, vec<typename P::real, N> x) const
	{
		if (add) {
			const auto old = ((input_view<P>)to)[p];

#pragma unroll
			for (int k = 0; k < N; k++)
				x[k] += old[k];
		}
		to.put(p, x);
	}
};

/* Finds the vec_kind that holds for several tensors.  Absent tensors do not count. */
template <typename P> struct tensors {
	bool any_bf16, any_real, aligned;

	tensors() : any_bf16(false), any_real(false), aligned(true)
	{
	}
	void note(input_view<P> x)
	{
		if (!x)
			return;
		any_bf16 |= x.bf16_storage;
		any_real |= !x.bf16_storage;
		aligned &= (uintptr_t)x.at % 16 == 0;
	}
	void note(gradient_view<P> x)
	{
		note((input_view<P>)x.to);
	}
	enum vec_kind kind() const
	{
		return !aligned || (any_bf16 && any_real) ? VEC_OF_ANY
		       : any_bf16			  ? VEC_OF_BF16
							  : VEC_OF_REAL;
	}
};

/* The tensors that a kernel accesses by vectors, for each_vec() and the like. */
template <typename P, typename... Rest> static tensors<P> all_of(const Rest &...of)
{
	tensors<P> all;

	(all.note(of), ...);
	return all;
}

/* ------------------------------------------------------------- tensors of a call */

template <typename P> static input_view<P> input(const struct call *c, int i)
{
	return { c->in[i], is_bf16(c->node->in[i]) };
}

template <typename P> static output_view<P> output(const struct call *c, int i)
{
	return { c->out[i], is_bf16(c->node->out[i]) };
}

template <typename P> static input_view<P> output_gradient(const struct call *c, int i)
{
	return { c->dout[i], has_bf16_gradient(c->node->out[i]) };
}

template <typename P> static gradient_view<P> input_gradient(const struct call *c, int i)
{
	return { { c->din[i], has_bf16_gradient(c->node->in[i]) }, call_adds(c, i) };
}

/* A view of memory that is always P::real, such as scratch memory. */
template <typename P> static output_view<P> real_view(typename P::real *at)
{
	return { at, false };
}

/*
 * Plain pointers to tensors that are never stored in bfloat16: parameters, statistics, losses
 * (op.h).
 */
template <typename P> static const typename P::real *real_input(const struct call *c, int i)
{
	return (const typename P::real *)c->in[i];
}

template <typename P> static typename P::real *real_output(const struct call *c, int i)
{
	return (typename P::real *)c->out[i];
}

template <typename P>
static const typename P::real *real_output_gradient(const struct call *c, int i)
{
	return (const typename P::real *)c->dout[i];
}

template <typename P> static typename P::real *real_input_gradient(const struct call *c, int i)
{
	return (typename P::real *)c->din[i];
}

#endif
