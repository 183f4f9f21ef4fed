/*
 * Launches of one thread per element, per vector or per row.  kernel.cuh includes this file.
 *
 * A kernel is a device lambda: each(c, n, f) calls f(i) for every element, each_vec() f(p) for
 * every vector of VEC elements, each_row() f(row) with a whole block.  each_of_buffers() covers
 * many buffers with one launch.  Memory bandwidth bounds them; each_vec() reaches it with 16-byte
 * accesses.
 */
#ifndef CUDA_PRIMITIVES_ELEMENTWISE_CUH
#define CUDA_PRIMITIVES_ELEMENTWISE_CUH

#ifndef BLOCK
#define BLOCK 256 /* threads per block; the emulated GPU uses fewer */
#endif
#define WARP 32

template <typename F>
static __global__ void elementwise_kernel(struct replicas replicas, int64_t n,
					  const __grid_constant__ F given_f)
{
	const auto &f = replicas.own(given_f);
	pdl_wait();
	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
	     i += (int64_t)gridDim.x * blockDim.x)
		f(i);
}

#define MAX_BLOCKS (1 << 16)

/* f(i) for i in [0, n), one thread per element. */
template <typename F> static void each(const struct call *c, int64_t n, F f)
{
	const int64_t blocks = (n + BLOCK - 1) / BLOCK;

	if (n == 0)
		return;
	launch_for(c, elementwise_kernel<F>, (unsigned)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS),
		   BLOCK, 0, n, f);
}

template <int N, enum vec_kind KIND, typename F>
static __global__ void vectorized_elementwise_kernel(struct replicas replicas, int64_t vecs,
						     const __grid_constant__ F given_f)
{
	const auto &f = replicas.own(given_f);
	pdl_wait();
	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < vecs;
	     i += (int64_t)gridDim.x * blockDim.x)
		f(vec_index<N, KIND>{ i * N });
}

template <int N, enum vec_kind KIND = VEC_OF_ANY, typename F>
static void launch_vecs(const struct call *c, int64_t vecs, F f)
{
	const int64_t blocks = (vecs + BLOCK - 1) / BLOCK;

	launch_for(c, vectorized_elementwise_kernel<N, KIND, F>,
		   (unsigned)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS), BLOCK, 0, vecs, f);
}

/*
 * f(p) for all vectors of n elements, one thread per vector.  A vector has VEC elements if `width`
 * is a multiple of VEC, else one; no vector crosses a multiple of `width`.  f takes a parameter
 * `auto p`, reads x[p] and writes y.put(p, values).
 */
#define VEC 8

template <typename F> static void each_vec(const struct call *c, int64_t n, int64_t width, F f)
{
	if (n == 0)
		return;
	if (width % VEC == 0)
		launch_vecs<VEC>(c, n / VEC, f);
	else
		launch_vecs<1>(c, n, f);
}

template <int N_, enum vec_kind KIND_>
struct vec_form {
	static constexpr int N = N_; static constexpr enum vec_kind KIND = KIND_;
};

/*
 * Calls use(form) with the form of the vectors of these tensors: if they share one type and are
 * aligned, the compiler knows it, and no load waits for a branch.
 */
template <typename P, typename F>
static void with_vec_form(int64_t width, const tensors<P> &of, F use)
{
	if (width % VEC != 0)
		use(vec_form<1, VEC_OF_ANY>());
	else if (ROUNDS<P> && of.kind() == VEC_OF_BF16)
		use(vec_form < VEC, ROUNDS<P> ? VEC_OF_BF16 : VEC_OF_REAL > ());
	else if (of.kind() == VEC_OF_REAL)
		use(vec_form<VEC, VEC_OF_REAL>());
	else
		use(vec_form<VEC, VEC_OF_ANY>());
}

/* each_vec() for an f that accesses only the tensors of all_of<P>(...). */
template <typename P, typename F>
static void each_vec(const struct call *c, int64_t n, int64_t width, const tensors<P> &of, F f)
{
	if (n == 0)
		return;
	with_vec_form<P>(width, of, [&](auto form) {
		launch_vecs<decltype(form)::N, decltype(form)::KIND>(c, n / decltype(form)::N, f);
	});
}

template <typename F>
static __global__ void rowwise_kernel(struct replicas replicas, int64_t rows,
				      const __grid_constant__ F given_f)
{
	const auto &f = replicas.own(given_f);
	pdl_wait();
	for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
		f(row);
		__syncthreads();
	}
}

/* f(row) for every row, one block of BLOCK threads per row. */
template <typename F> static void each_row(const struct call *c, int64_t rows, F f)
{
	if (rows == 0)
		return;
	launch_for(c, rowwise_kernel<F>, (unsigned)(rows < MAX_BLOCKS ? rows : MAX_BLOCKS), BLOCK,
		   0, rows, f);
}

/* Elements per block: one per thread, until there are more blocks than the GPU runs at a time. */
static inline int64_t elements_per_block(const struct call *c, int64_t total)
{
	return total <= blocks_to_fill(context_of(c)->sm_count, 8) * BLOCK ? BLOCK : 8 * BLOCK;
}

/* The index of the buffer that holds element i, by binary search. */
template <typename L> static __device__ int buffer_of(const L &list, int64_t i)
{
	int low = 0, high = list.n - 1;

	while (low < high) {
		const int middle = (low + high + 1) / 2;

		if (list.before(middle) <= i)
			low = middle;
		else
			high = middle - 1;
	}
	return low;
}

template <typename L, typename F>
static __global__ void multi_buffer_kernel(struct replicas replicas,
					   const __grid_constant__ L given, int64_t total,
					   int64_t part, const __grid_constant__ F given_f)
{
	const auto &f = replicas.own(given_f);
	const auto &list = replicas.own_copy(given);
	const int64_t first = blockIdx.x * part, last = first + part < total ? first + part : total;

	pdl_wait();
	int at = buffer_of(list, first);

	for (int64_t i = first + threadIdx.x; i < last; i += BLOCK) {
		while (at + 1 < list.n && i >= list.before(at + 1))
			at++;
		f(list, at, i);
	}
}

/*
 * f(list, buffer, i) for i in [0, total), the elements of list.n buffers numbered consecutively.
 * list.before(k) elements lie in the buffers before buffer k.
 */
template <typename L, typename F>
static void each_of_buffers(const struct call *c, const L &list, int64_t total, F f)
{
	const int64_t part = elements_per_block(c, total), blocks = (total + part - 1) / part;

	if (total == 0)
		return;
	launch_for(c, multi_buffer_kernel<L, F>, (unsigned)blocks, BLOCK, 0, list, total, part, f);
}

#endif
