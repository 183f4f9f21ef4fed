/*
 * Sums over the channels of each head, and over the tokens of each head.
 *
 * A row is one head of one token, numbered [token, head].  Rows are short, so `row_threads` threads
 * of a warp share a row, and a warp serves several rows.  Memory bandwidth bounds both sums.
 */
#ifndef CUDA_PRIMITIVES_ROW_SUMS_CUH
#define CUDA_PRIMITIVES_ROW_SUMS_CUH

#include "core/backend/cuda/primitives/kernel.cuh"
#include "core/backend/cuda/primitives/fast_divide.cuh"

template <typename R, int N, enum vec_kind KIND, typename F, typename G>
static __global__ void row_reduce_kernel(struct replicas replicas, int64_t rows, int64_t width,
					 int row_threads, const __grid_constant__ F given_value,
					 const __grid_constant__ G given_finish)
{
	const auto &value = replicas.own(given_value);
	const auto &finish = replicas.own(given_finish);
	const int64_t rows_per_pass = BLOCK / row_threads, step = gridDim.x * rows_per_pass;
	const int thread = threadIdx.x % row_threads;

	pdl_wait();
	for (int64_t first = blockIdx.x * rows_per_pass; first < rows; first += step) {
		const int64_t row = first + threadIdx.x / row_threads;
		R sum = 0;

		for (int64_t i = thread * N; row < rows && i < width; i += row_threads * N)
			sum += value(row, vec_index<N, KIND>{ row * width + i });
		for (int bit = row_threads / 2; bit > 0; bit /= 2)
			sum += __shfl_xor_sync(0xffffffffu, sum, bit);
		if (row < rows && thread == 0)
			finish(row, sum);
	}
}

/* As many blocks as a GPU runs at a time: starting a block costs as much as summing a row. */
#define ROW_BLOCKS_PER_SM 16

template <typename R, int N, enum vec_kind KIND = VEC_OF_ANY, typename F, typename G>
static void launch_rows(const struct call *c, int64_t rows, int64_t width, F value, G finish)
{
	int row_threads = 1;

	while (row_threads < WARP && row_threads * N < width)
		row_threads *= 2;
	const int64_t resident = ROW_BLOCKS_PER_SM * context_of(c)->sm_count;
	const int64_t rows_per_pass = BLOCK / row_threads,
		      blocks = (rows + rows_per_pass - 1) / rows_per_pass;

	launch_for(c, row_reduce_kernel<R, N, KIND, F, G>,
		   (unsigned)(blocks < resident ? blocks : resident), BLOCK, 0, rows, width,
		   row_threads, value, finish);
}

/*
 * finish(row, sum of value(row, p) over the vectors p of the row) for rows of `width` elements.
 * value takes a parameter `auto p`, as f of each_vec() does, and may also write.
 */
template <typename R, typename F, typename G>
static void sum_rows(const struct call *c, int64_t rows, int64_t width, F value, G finish)
{
	if (rows == 0)
		return;
	if (width % VEC == 0)
		launch_rows<R, VEC>(c, rows, width, value, finish);
	else
		launch_rows<R, 1>(c, rows, width, value, finish);
}

/* The same for a value that accesses only the tensors of all_of<P>(...), as for each_vec(). */
template <typename P, typename F, typename G>
static void sum_rows(const struct call *c, int64_t rows, int64_t width, const tensors<P> &of,
		     F value, G finish)
{
	typedef typename P::real R;

	if (rows == 0)
		return;
	with_vec_form<P>(width, of, [&](auto form) {
		launch_rows<R, decltype(form)::N, decltype(form)::KIND>(c, rows, width, value,
									finish);
	});
}

/* The number of token ranges with a partial sum of their own. */
static inline int64_t head_parts(int64_t tokens)
{
	const int64_t parts = (tokens + 31) / 32;

	return parts < BLOCK ? parts : BLOCK;
}

/* The scratch memory of sum_heads(). */
static inline double *alloc_head_parts(struct scratch *m, int64_t tokens, int64_t heads)
{
	return m->alloc<double>(head_parts(tokens) * heads);
}

/*
 * Block i writes to partial[i] the sums of all heads over its token range.  Adjacent threads read
 * adjacent rows; all rows of a thread belong to one head.
 */
template <typename F>
static __global__ void head_reduce_kernel(struct replicas replicas, int64_t tokens, int heads,
					  const __grid_constant__ F given_value, double *partial)
{
	replicas.to_own(partial);
	const auto &value = replicas.own(given_value);
	__shared__ double sums[BLOCK];
	const int across = heads < BLOCK ? heads : BLOCK, tokens_per_pass = BLOCK / across;
	const int64_t first = tokens * blockIdx.x / gridDim.x;
	const int64_t last = tokens * (blockIdx.x + 1) / gridDim.x;

	pdl_wait();
	for (int head = threadIdx.x % across; head - (int)threadIdx.x % across < heads;
	     head += across) {
		double sum = 0;

		if ((int)threadIdx.x < tokens_per_pass * across && head < heads)
			for (int64_t t = first + threadIdx.x / across; t < last;
			     t += tokens_per_pass)
				sum += (double)value(t * heads + head);
		sums[threadIdx.x] = sum;
		__syncthreads();
		if ((int)threadIdx.x < across && head < heads) {
			for (int i = 1; i < tokens_per_pass; i++)
				sum += sums[i * across + threadIdx.x];
			partial[(int64_t)blockIdx.x * heads + head] = sum;
		}
		__syncthreads();
	}
}

/* finish(head, sum of value(row) over the rows of that head), in a fixed order. */
template <typename F, typename G>
static void sum_heads(const struct call *c, int64_t tokens, int64_t heads, F value, double *partial,
		      G finish)
{
	const int64_t parts = head_parts(tokens);

	launch_for(c, head_reduce_kernel<F>, (unsigned)parts, BLOCK, 0, tokens, (int)heads, value,
		   partial);
	each_row(c, heads, [=] __device__(int64_t head) {
		const double sum = block_sum(
			(int64_t)threadIdx.x < parts ? partial[threadIdx.x * heads + head] : 0);

		if (threadIdx.x == 0)
			finish(head, sum);
	});
}

#endif
